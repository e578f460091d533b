"""The allowed moves, written a second time, and every other pair refused."""

from __future__ import annotations

from enum import StrEnum
from itertools import product

import pytest

from cdr_core.errors import Refused
from cdr_core.metadata import states
from cdr_core.metadata.states import MOVES, Phase, RecoveryState, move

ALLOWED = {
    states.RecoveryState: """
        CREATED>READING READING>FILTERING FILTERING>SPILLING SPILLING>DRAINING DRAINING>COMMITTING COMMITTING>DONE
        READING>READING FILTERING>FILTERING SPILLING>SPILLING DRAINING>DRAINING COMMITTING>COMMITTING
        READING>FAILED FILTERING>FAILED SPILLING>FAILED DRAINING>FAILED COMMITTING>FAILED
        FAILED>READING FAILED>FILTERING FAILED>SPILLING FAILED>DRAINING FAILED>COMMITTING
        CREATED>CANCELLED READING>CANCELLED FILTERING>CANCELLED SPILLING>CANCELLED DRAINING>CANCELLED
        COMMITTING>CANCELLED FAILED>CANCELLED
        CREATED>REPLACED READING>REPLACED FILTERING>REPLACED SPILLING>REPLACED DRAINING>REPLACED COMMITTING>REPLACED
        FAILED>REPLACED CANCELLED>REPLACED
    """,
    states.PhaseState: "PENDING>RUNNING RUNNING>DONE RUNNING>FAILED FAILED>RUNNING",
    states.AttemptState: "RUNNING>DONE RUNNING>FAILED RUNNING>FENCED",
    states.SpillSetState: "SEALED>RELEASED SEALED>LOST",
    states.RecoveryCheckpointState: "TRIGGERED>COMPLETED TRIGGERED>ABORTED TRIGGERED>SUBSUMED COMPLETED>EXPIRED",
    states.CommitState: "INTENT>PUBLISHED PUBLISHED>DONE",
    states.CommandState: """
        REQUESTED>ACCEPTED REQUESTED>DONE REQUESTED>REFUSED ACCEPTED>ACCEPTED ACCEPTED>DONE ACCEPTED>REFUSED
    """,
}


def pairs() -> list[tuple[type[StrEnum], StrEnum, StrEnum]]:
    return [(kind, current, to) for kind in ALLOWED for current, to in product(kind, kind)]


@pytest.mark.parametrize(("kind", "current", "to"), pairs(), ids=lambda value: str(value))
def test_a_move_is_allowed_or_refused(kind: type[StrEnum], current: StrEnum, to: StrEnum) -> None:
    if f"{current}>{to}" in ALLOWED[kind].split():
        assert move(current, to) is to
    else:
        with pytest.raises(Refused, match=f"cannot go from {current} to {to}"):
            move(current, to)


def test_the_walk_covers_every_kind_and_every_state_has_its_moves() -> None:
    assert set(MOVES) == set(ALLOWED)
    assert all(set(MOVES[kind]) == set(kind) for kind in ALLOWED)


def test_states_of_two_kinds_do_not_mix_although_their_words_are_equal() -> None:
    with pytest.raises(Refused, match="cannot become"):
        move(states.PhaseState.RUNNING, states.AttemptState.DONE)


def test_moves_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        MOVES[RecoveryState] = {}  # type: ignore[index]
    with pytest.raises(TypeError):
        MOVES[RecoveryState][RecoveryState.DONE] = frozenset()  # type: ignore[index]


def test_phases_know_their_neighbours_and_their_states() -> None:
    assert [phase.predecessor for phase in Phase] == [None, Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN]
    assert [phase.successor for phase in Phase] == [Phase.FILTER, Phase.SPILL, Phase.DRAIN, Phase.COMMIT, None]
    assert " ".join(phase.running_state for phase in Phase) == "READING FILTERING SPILLING DRAINING COMMITTING"


def test_only_done_cancelled_and_replaced_are_final() -> None:
    final = {RecoveryState.DONE, RecoveryState.CANCELLED, RecoveryState.REPLACED}
    assert {state for state in RecoveryState if state.is_final} == final
