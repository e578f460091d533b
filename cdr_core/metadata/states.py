"""States of everything that has one, and the moves between them, as data.

The database stores these words. Every change of a state goes through ``move``; a move that is not listed is refused, so
that a zombie or a bug cannot bring a finished recovery back to life.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

from cdr_core.errors import Refused

CANCEL = "cancel"
"""The kind of command that every runner obeys."""


HAND_OVER = "hand-over"
"""The grant every spill set is born with; the drain releases it when it is over."""


class Phase(StrEnum):
    """The five phases of a recovery, in the order in which they run."""

    READ = "read"
    FILTER = "filter"
    SPILL = "spill"
    DRAIN = "drain"
    COMMIT = "commit"

    @property
    def predecessor(self) -> Phase | None:
        """The phase whose result this one needs; ``None`` for the first."""
        place = _ORDER.index(self)
        return _ORDER[place - 1] if place else None

    @property
    def successor(self) -> Phase | None:
        """The phase that needs this one's result; ``None`` for the last."""
        place = _ORDER.index(self)
        return _ORDER[place + 1] if place + 1 < len(_ORDER) else None

    @property
    def running_state(self) -> RecoveryState:
        """The state of a recovery while this phase runs."""
        return RUNNING_STATES[self]


_ORDER = tuple(Phase)


class RecoveryState(StrEnum):
    """A recovery as a whole. FAILED is not final: a retry or ``resume`` takes it back to a running state.

    REPLACED = its user started the same checkpoint and target over, before anything was published.
    """

    CREATED = "CREATED"
    READING = "READING"
    FILTERING = "FILTERING"
    SPILLING = "SPILLING"
    DRAINING = "DRAINING"
    COMMITTING = "COMMITTING"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    REPLACED = "REPLACED"

    @property
    def is_final(self) -> bool:
        """Whether no attempt can continue it."""
        return self in (RecoveryState.DONE, RecoveryState.CANCELLED, RecoveryState.REPLACED)


class PhaseState(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"


class AttemptState(StrEnum):
    """One process's go at a phase. FENCED = a newer attempt took the recovery away from it."""

    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    FENCED = "FENCED"


class SpillSetState(StrEnum):
    """RELEASED = the last grant is gone, its files may go; LOST = its files are gone, another set replaces it."""

    SEALED = "SEALED"
    RELEASED = "RELEASED"
    LOST = "LOST"


class RecoveryCheckpointState(StrEnum):
    """SUBSUMED = a later one completed first; EXPIRED = it was complete and is no longer kept."""

    TRIGGERED = "TRIGGERED"
    COMPLETED = "COMPLETED"
    ABORTED = "ABORTED"
    SUBSUMED = "SUBSUMED"
    EXPIRED = "EXPIRED"


class CommitState(StrEnum):
    """INTENT = it may or may not be in the sink, only a look-up tells; PUBLISHED = it is; DONE = cleaned up as well."""

    INTENT = "INTENT"
    PUBLISHED = "PUBLISHED"
    DONE = "DONE"


class CommandState(StrEnum):
    REQUESTED = "REQUESTED"
    ACCEPTED = "ACCEPTED"
    DONE = "DONE"
    REFUSED = "REFUSED"


class DrillOutcome(StrEnum):
    """How a drill ended; written once, so it has no moves."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    COULD_NOT_RUN = "COULD_NOT_RUN"


RUNNING_STATES: Mapping[Phase, RecoveryState] = MappingProxyType(
    {
        Phase.READ: RecoveryState.READING,
        Phase.FILTER: RecoveryState.FILTERING,
        Phase.SPILL: RecoveryState.SPILLING,
        Phase.DRAIN: RecoveryState.DRAINING,
        Phase.COMMIT: RecoveryState.COMMITTING,
    }
)

_State = TypeVar("_State", bound=StrEnum)


def _moves(allowed: dict[_State, set[_State]]) -> Mapping[_State, frozenset[_State]]:
    return MappingProxyType({state: frozenset(successors) for state, successors in allowed.items()})


_R = RecoveryState
# A running state may follow itself: that is a new attempt at the same phase.
RECOVERY_MOVES: Mapping[RecoveryState, frozenset[RecoveryState]] = _moves(
    {
        _R.CREATED: {_R.READING, _R.CANCELLED, _R.REPLACED},
        _R.READING: {_R.READING, _R.FILTERING, _R.FAILED, _R.CANCELLED, _R.REPLACED},
        _R.FILTERING: {_R.FILTERING, _R.SPILLING, _R.FAILED, _R.CANCELLED, _R.REPLACED},
        _R.SPILLING: {_R.SPILLING, _R.DRAINING, _R.FAILED, _R.CANCELLED, _R.REPLACED},
        _R.DRAINING: {_R.DRAINING, _R.COMMITTING, _R.FAILED, _R.CANCELLED, _R.REPLACED},
        _R.COMMITTING: {_R.COMMITTING, _R.DONE, _R.FAILED, _R.CANCELLED, _R.REPLACED},
        _R.FAILED: {_R.READING, _R.FILTERING, _R.SPILLING, _R.DRAINING, _R.COMMITTING, _R.CANCELLED, _R.REPLACED},
        _R.DONE: set(),
        _R.CANCELLED: {_R.REPLACED},
        _R.REPLACED: set(),
    }
)

_P = PhaseState
PHASE_MOVES: Mapping[PhaseState, frozenset[PhaseState]] = _moves(
    {
        _P.PENDING: {_P.RUNNING},
        _P.RUNNING: {_P.DONE, _P.FAILED},
        _P.FAILED: {_P.RUNNING},
        _P.DONE: set(),
    }
)

_A = AttemptState
ATTEMPT_MOVES: Mapping[AttemptState, frozenset[AttemptState]] = _moves(
    {_A.RUNNING: {_A.DONE, _A.FAILED, _A.FENCED}, _A.DONE: set(), _A.FAILED: set(), _A.FENCED: set()}
)

_S = SpillSetState
SPILL_SET_MOVES: Mapping[SpillSetState, frozenset[SpillSetState]] = _moves(
    {_S.SEALED: {_S.RELEASED, _S.LOST}, _S.RELEASED: set(), _S.LOST: set()}
)

_C = RecoveryCheckpointState
RECOVERY_CHECKPOINT_MOVES: Mapping[RecoveryCheckpointState, frozenset[RecoveryCheckpointState]] = _moves(
    {
        _C.TRIGGERED: {_C.COMPLETED, _C.ABORTED, _C.SUBSUMED},
        _C.COMPLETED: {_C.EXPIRED},
        _C.ABORTED: set(),
        _C.SUBSUMED: set(),
        _C.EXPIRED: set(),
    }
)

_L = CommitState
COMMIT_MOVES: Mapping[CommitState, frozenset[CommitState]] = _moves(
    {_L.INTENT: {_L.PUBLISHED}, _L.PUBLISHED: {_L.DONE}, _L.DONE: set()}
)

_Q = CommandState
# ACCEPTED may follow itself: its runner died, the next attempt takes the command over.
COMMAND_MOVES: Mapping[CommandState, frozenset[CommandState]] = _moves(
    {
        _Q.REQUESTED: {_Q.ACCEPTED, _Q.DONE, _Q.REFUSED},
        _Q.ACCEPTED: {_Q.ACCEPTED, _Q.DONE, _Q.REFUSED},
        _Q.DONE: set(),
        _Q.REFUSED: set(),
    }
)

MOVES: Mapping[type[StrEnum], Mapping[Any, frozenset[Any]]] = MappingProxyType(
    {
        RecoveryState: RECOVERY_MOVES,
        PhaseState: PHASE_MOVES,
        AttemptState: ATTEMPT_MOVES,
        SpillSetState: SPILL_SET_MOVES,
        RecoveryCheckpointState: RECOVERY_CHECKPOINT_MOVES,
        CommitState: COMMIT_MOVES,
        CommandState: COMMAND_MOVES,
    }
)
"""Every allowed move, by the kind of thing that moves."""


def move(current: _State, to: _State) -> _State:
    """``to``, if it may follow ``current``; every other pair, also one of two kinds, raises ``Refused``."""
    # Members of two kinds with the same word are equal as strings, so the kinds are compared first.
    if type(current) is not type(to):
        raise Refused(f"{type(current).__name__} {current} cannot become {type(to).__name__} {to}")
    if to not in MOVES[type(current)][current]:
        raise Refused(f"{type(current).__name__} cannot go from {current} to {to}")
    return to
