"""What may happen to a commit coordinator, and what each of these things is in each of its states: as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from cdr_core.commit.committable import Committable


class State(StrEnum):
    """RESTORING = what was prepared up to a complete checkpoint is being collected, nothing else is taken before."""

    CREATED = "CREATED"
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    CLOSED = "CLOSED"


MOVES: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.CREATED: frozenset({State.RESTORING, State.RUNNING, State.CLOSED}),
        State.RESTORING: frozenset({State.RUNNING, State.CLOSED}),
        State.RUNNING: frozenset({State.CLOSED}),
        State.CLOSED: frozenset(),
    }
)
"""Nothing leads back: a restart makes a new coordinator."""


@dataclass(frozen=True, slots=True)
class ResetToCheckpoint:
    """Before the start: what counts is the last complete checkpoint; 0 = there is none, nothing is restored."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class Start:
    """Load the durable state; without a checkpoint to restore, run."""


@dataclass(frozen=True, slots=True)
class CheckpointCoordinator:
    """A checkpoint begins: the coordinator's own state becomes durable, before any subtask is asked for its own."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class CommittableEvent:
    """A subtask's entry for a checkpoint is durable. It has no answer. ``epoch`` is the attempt's."""

    entry: Committable
    epoch: int


@dataclass(frozen=True, slots=True)
class RestoredCommittableEvent:
    """All durable entries of a subtask, also when there are none; exactly one per subtask and restore."""

    subtask: int
    checkpoint: int
    entries: tuple[Committable, ...]


@dataclass(frozen=True, slots=True)
class CheckpointComplete:
    """The checkpoint is complete and durable: everything up to it may be committed."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    """It was given up. What was prepared for it stays and goes with the next one that completes."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class SubtaskReset:
    """A subtask begins again from a complete checkpoint; what it handed over since must never be committed."""

    subtask: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Close:
    """Nothing will happen any more."""


Event = (
    ResetToCheckpoint
    | Start
    | CheckpointCoordinator
    | CommittableEvent
    | RestoredCommittableEvent
    | CheckpointComplete
    | CheckpointAborted
    | SubtaskReset
    | Close
)


class Reaction(StrEnum):
    """What an event is. FAIL_CHECKPOINT fails that checkpoint only; FAIL_JOB and ILLEGAL close the coordinator.

    FAIL_JOB can happen when things go wrong around it; ILLEGAL is a fault of the caller.
    """

    HANDLE = "HANDLE"
    IGNORE = "IGNORE"
    FAIL_CHECKPOINT = "FAIL_CHECKPOINT"
    FAIL_JOB = "FAIL_JOB"
    ILLEGAL = "ILLEGAL"


_H, _I, _C, _J, _X = Reaction.HANDLE, Reaction.IGNORE, Reaction.FAIL_CHECKPOINT, Reaction.FAIL_JOB, Reaction.ILLEGAL


def _row(created: Reaction, restoring: Reaction, running: Reaction, closed: Reaction = _X) -> Mapping[State, Reaction]:
    return MappingProxyType(dict(zip(State, (created, restoring, running, closed), strict=True)))


TABLE: Mapping[type[Event], Mapping[State, Reaction]] = MappingProxyType(
    {
        # event                     CREATED RESTORING RUNNING
        ResetToCheckpoint: _row(_H, _X, _X),
        Start: _row(_H, _H, _X),
        CheckpointCoordinator: _row(_X, _C, _H),
        CommittableEvent: _row(_X, _J, _H),
        RestoredCommittableEvent: _row(_X, _H, _I),
        CheckpointComplete: _row(_X, _J, _H),
        SubtaskReset: _row(_X, _X, _H),
        CheckpointAborted: _row(_X, _X, _I),
        Close: _row(_H, _H, _H, _I),
    }
)
"""Every event in every state."""
