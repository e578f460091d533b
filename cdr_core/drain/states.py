"""States of a recovering subtask, the moves between them, and who answers a checkpoint request in each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from types import MappingProxyType

from cdr_core.errors import IllegalState


class State(StrEnum):
    """INIT nothing done; FETCH its spill set is looked at; CONVERT its channels are made, without credit; DRAINING
    pages are delivered; DELIVERED all are, the end markers too; CONSUMED every channel has consumed its end marker.
    """

    INIT = "INIT"
    FETCH = "FETCH"
    CONVERT = "CONVERT"
    DRAINING = "DRAINING"
    DELIVERED = "DELIVERED"
    CONSUMED = "CONSUMED"
    FAILED = "FAILED"


class Answerer(Enum):
    """Who says what a checkpoint holds of this subtask's recovered data."""

    NOT_READY = "nobody yet: ask again later, it is not counted"
    DRAINER = "the drainer: memory part and tail"
    NOTHING = "nobody: there is no recovered data left"
    FAILURE = "the failure: it is raised"


_S = State
MOVES: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        _S.INIT: frozenset({_S.FETCH, _S.FAILED}),
        # Nothing to recover: straight to CONSUMED, the channels are live at once.
        _S.FETCH: frozenset({_S.CONVERT, _S.CONSUMED, _S.FAILED}),
        _S.CONVERT: frozenset({_S.DRAINING, _S.FAILED}),
        _S.DRAINING: frozenset({_S.DELIVERED, _S.FAILED}),
        _S.DELIVERED: frozenset({_S.CONSUMED, _S.FAILED}),
        _S.CONSUMED: frozenset({_S.FAILED}),
        _S.FAILED: frozenset(),
    }
)
"""Every allowed move."""

ANSWERS: Mapping[State, Answerer] = MappingProxyType(
    {
        _S.INIT: Answerer.NOT_READY,
        _S.FETCH: Answerer.NOT_READY,
        _S.CONVERT: Answerer.NOT_READY,
        _S.DRAINING: Answerer.DRAINER,
        _S.DELIVERED: Answerer.DRAINER,
        _S.CONSUMED: Answerer.NOTHING,
        _S.FAILED: Answerer.FAILURE,
    }
)
"""With checkpoints during recovery."""

ANSWERS_AFTER_RECOVERY: Mapping[State, Answerer] = MappingProxyType(
    {**ANSWERS, _S.DRAINING: Answerer.NOT_READY, _S.DELIVERED: Answerer.NOT_READY}
)
"""Without: nobody answers until recovery is over."""


def move(current: State, to: State) -> State:
    """``to``, if it may follow ``current``."""
    if to not in MOVES[current]:
        raise IllegalState(f"a recovering subtask cannot go from {current} to {to}")
    return to
