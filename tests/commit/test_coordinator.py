"""The commit coordinator's rules: every event in every state, and what is committed when."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import product
from typing import Any

import pytest

from cdr_core.commit import events
from cdr_core.commit.committable import Committable
from cdr_core.commit.events import (
    MOVES,
    TABLE,
    CheckpointAborted,
    CheckpointComplete,
    CheckpointCoordinator,
    Close,
    CommittableEvent,
    Event,
    Reaction,
    ResetToCheckpoint,
    RestoredCommittableEvent,
    Start,
    State,
    SubtaskReset,
)
from cdr_core.errors import Fenced, IllegalState, NotReady, Refused
from tests.commit.coordination import EPOCH, World, entry

EXPECTED = """
                          CREATED RESTORING        RUNNING CLOSED
ResetToCheckpoint         HANDLE  ILLEGAL          ILLEGAL ILLEGAL
Start                     HANDLE  HANDLE           ILLEGAL ILLEGAL
CheckpointCoordinator     ILLEGAL FAIL_CHECKPOINT  HANDLE  ILLEGAL
CommittableEvent          ILLEGAL FAIL_JOB         HANDLE  ILLEGAL
RestoredCommittableEvent  ILLEGAL HANDLE           IGNORE  ILLEGAL
CheckpointComplete        ILLEGAL FAIL_JOB         HANDLE  ILLEGAL
SubtaskReset              ILLEGAL ILLEGAL          HANDLE  ILLEGAL
CheckpointAborted         ILLEGAL ILLEGAL          IGNORE  ILLEGAL
Close                     HANDLE  HANDLE           HANDLE  IGNORE
"""
EVENTS: dict[str, Event] = {
    "ResetToCheckpoint": ResetToCheckpoint(1),
    "Start": Start(),
    "CheckpointCoordinator": CheckpointCoordinator(1),
    "CommittableEvent": CommittableEvent(entry(0, 1, "a"), EPOCH),
    "RestoredCommittableEvent": RestoredCommittableEvent(0, 1, (entry(0, 1, "a"),)),
    "CheckpointComplete": CheckpointComplete(1),
    "SubtaskReset": SubtaskReset(0, 0),
    "CheckpointAborted": CheckpointAborted(1),
    "Close": Close(),
}
HEAD, *LINES = [line.split() for line in EXPECTED.strip().splitlines()]
CELLS = [(line[0], State(state), Reaction(cell)) for line in LINES for state, cell in zip(HEAD, line[1:], strict=True)]


def in_state(state: State) -> World:
    world = World()
    world.coordinator = world.new()
    if state is State.RESTORING:
        world.coordinator.deliver(ResetToCheckpoint(1))
    elif state is not State.CREATED:
        world.coordinator.deliver(Start())
    if state is State.RUNNING:
        world.hand(entry(1, 1))
    if state is State.CLOSED:
        world.coordinator.deliver(Close())
    assert world.coordinator.state is state
    return world


@pytest.mark.seed("004-20")
@pytest.mark.parametrize(("name", "state", "reaction"), CELLS, ids=[f"{n}-{s}" for n, s, _ in CELLS])
def test_every_event_in_every_state_is_what_the_table_says(name: str, state: State, reaction: Reaction) -> None:
    """Four states, every cell; nothing illegal changes what is committed."""
    assert TABLE[getattr(events, name)][state] is reaction
    world = in_state(state)
    if name == "CheckpointComplete" and state is State.RUNNING:
        world.hand(entry(0, 1, "a"))
    if reaction in (Reaction.ILLEGAL, Reaction.FAIL_JOB):
        with pytest.raises(IllegalState):
            world.coordinator.deliver(EVENTS[name])
        assert world.coordinator.state is State.CLOSED, "the attempt is over"
    elif reaction is Reaction.FAIL_CHECKPOINT:
        with pytest.raises(NotReady):
            world.coordinator.deliver(EVENTS[name])
        assert world.coordinator.state is state
    else:
        before = world.coordinator.pending
        world.coordinator.deliver(EVENTS[name])
        if reaction is Reaction.IGNORE:
            assert (world.coordinator.state, world.coordinator.pending) == (state, before)
    assert world.target.ids == ([1] if (name, state) == ("CheckpointComplete", State.RUNNING) else [])


def test_the_table_has_every_event_and_every_state() -> None:
    assert {kind.__name__ for kind in TABLE} == set(EVENTS)
    assert all(set(row) == set(State) for row in TABLE.values())
    assert len(CELLS) == len(EVENTS) * len(State)


@pytest.mark.parametrize(("before", "after"), list(product(State, State)))
def test_only_listed_moves_are_made(before: State, after: State) -> None:
    coordinator = in_state(before).coordinator
    if after in MOVES[before]:
        coordinator._move(after)
        assert coordinator.state is after
    else:
        with pytest.raises(IllegalState):
            coordinator._move(after)


def test_without_a_checkpoint_to_restore_it_just_runs() -> None:
    world = World()
    world.restart(0)
    assert world.coordinator.state is State.RUNNING


@pytest.mark.seed("004-09", "004-10")
def test_what_all_subtasks_handed_over_is_one_commit_when_the_checkpoint_completes_and_not_before() -> None:
    """Staged when every subtask has handed over, visible only after completion."""
    world = World()
    world.hand(entry(0, 1, "a"), entry(1, 1, "b"))
    assert world.target.ids == []
    world.complete(1)
    assert (world.target.ids, world.target.rows) == ([1], Counter("ab"))


def test_entries_of_a_later_checkpoint_wait_for_it() -> None:
    world = World()
    world.hand(entry(0, 1, "a"), entry(1, 1), entry(0, 2, "b"))
    world.complete(1)
    assert (world.target.ids, world.target.rows) == ([1], Counter("a"))


@pytest.mark.seed("E39")
def test_a_subtask_without_an_entry_fails_the_job_and_nothing_is_committed() -> None:
    """Missing is a fault, empty is an answer."""
    world = World()
    world.hand(entry(0, 1, "a"))
    with pytest.raises(IllegalState, match="without an entry of subtask 1"):
        world.complete(1)
    assert world.target.ids == []
    world.restart(0)
    world.hand(entry(0, 2, "a"), entry(1, 2))
    world.complete(2)
    assert world.target.rows == Counter("a")


@pytest.mark.seed("004-17", "E30")
def test_abort_is_not_rollback_each_checkpoint_keeps_its_own_number() -> None:
    """Ten are prepared, only the last completes: all rows, ascending, under their own ids."""
    world = World()
    for number in range(1, 11):
        world.hand(entry(0, number, f"a{number}"), entry(1, number, f"b{number}"))
        if number < 10:
            world.coordinator.deliver(CheckpointAborted(number))
    assert world.target.ids == []
    world.complete(10)
    assert world.target.ids == list(range(1, 11))
    assert set(world.target.rows.values()) == {1}
    assert len(world.target.rows) == 20


def test_at_the_end_everything_is_one_commit_with_the_last_number() -> None:
    world = World(together=True)
    for number in (1, 2, 3):
        world.hand(entry(0, number, f"a{number}"), entry(1, number, f"b{number}"))
    world.complete(3)
    assert world.target.ids == [3]
    assert len(world.target.rows) == 6


@pytest.mark.seed("004-12")
def test_an_entry_is_handed_over_once_and_numbers_grow() -> None:
    for again in (entry(0, 2, "a"), entry(0, 2, "other"), entry(0, 1, "late")):
        world = World()
        world.hand(entry(0, 2, "a"))
        with pytest.raises(IllegalState):
            world.hand(again)
        assert world.coordinator.state is State.CLOSED


def test_a_checkpoint_completes_once() -> None:
    world = World()
    world.hand(entry(0, 2, "a"), entry(1, 2))
    world.complete(2)
    with pytest.raises(IllegalState):
        world.complete(2)


@pytest.mark.seed("004-13", "E38")
def test_an_entry_of_a_dead_attempt_is_rejected_and_changes_nothing() -> None:
    """Only the current epoch hands over, and the rest goes on."""
    world = World()
    world.hand(entry(0, 1, "a"), entry(1, 1, "b"))
    for epoch in (EPOCH - 1, EPOCH + 1):
        with pytest.raises(Fenced):
            world.coordinator.deliver(CommittableEvent(entry(0, 2, "zombie"), epoch))
    world.complete(1)
    world.hand(entry(0, 2, "c"), entry(1, 2))
    world.complete(2)
    assert world.target.rows == Counter("abc")


@pytest.mark.seed("004-24")
def test_stale_staged_output_of_a_failed_attempt_is_dropped_with_one_subtask() -> None:
    """Attempt A hands over CK1 and fails before it completes; B replays the same records into CK2."""
    world = World(subtasks=1)
    world.hand(entry(0, 1, "records by A"))
    world.coordinator.deliver(CheckpointAborted(1))
    world.coordinator.deliver(SubtaskReset(0, 0))
    world.hand(entry(0, 2, "records by B"))
    world.complete(2)
    assert (world.target.ids, world.target.rows) == ([2], Counter(["records by B"]))


@pytest.mark.seed("004-24")
def test_stale_staged_output_of_a_failed_attempt_is_dropped_and_others_keep_theirs() -> None:
    """Subtask 0 fails after both handed over CK1; subtask 1 has not failed, so its CK1 counts."""
    world = World(subtasks=2)
    world.hand(entry(0, 1, "x by A"), entry(1, 1, "y"))
    world.coordinator.deliver(CheckpointAborted(1))
    world.coordinator.deliver(SubtaskReset(0, 0))
    world.hand(entry(0, 2, "x by B"), entry(1, 2, "z"))
    world.complete(2)
    assert world.target.ids == [1, 2]
    assert world.target.rows == Counter(["x by B", "y", "z"])


@pytest.mark.seed("004-24")
def test_a_subtask_that_is_reset_while_its_commit_waits_fails_the_job_and_the_restore_commits_it() -> None:
    """The reset overtakes the completion; nothing is lost, because the entries are durable."""
    world = World()
    world.hand(entry(0, 1, "a"), entry(1, 1, "b"))
    world.coordinator.deliver(SubtaskReset(0, 1))
    with pytest.raises(IllegalState):
        world.complete(1)
    assert world.target.ids == []
    world.restart(1)
    assert world.target.rows == Counter("ab")


def test_a_reset_below_what_was_never_committed_fails_the_job() -> None:
    world = World()
    world.hand(entry(0, 1, "a"))
    with pytest.raises(IllegalState):
        world.coordinator.deliver(SubtaskReset(0, 2))


@pytest.mark.seed("004-12")
def test_a_writer_that_restores_while_others_run_is_ignored() -> None:
    """Its entries are committed already, or will be made again."""
    world = World()
    world.hand(entry(0, 1, "a"), entry(1, 1, "b"))
    world.complete(1)
    world.coordinator.deliver(RestoredCommittableEvent(0, 1, (entry(0, 1, "a"),)))
    world.hand(entry(0, 2, "c"), entry(1, 2))
    world.complete(2)
    assert world.target.rows == Counter("abc")


@pytest.mark.seed("004-14", "004-16", "E29")
def test_restoring_waits_for_every_subtask_and_then_commits_what_is_missing() -> None:
    """Completed, and the coordinator died before it could commit."""
    world = World()
    world.hand(entry(0, 1, "a"), entry(1, 1, "b"))
    world.coordinator = world.new()
    world.coordinator.deliver(ResetToCheckpoint(1))
    world.coordinator.deliver(Start())
    world.coordinator.deliver(RestoredCommittableEvent(0, 1, (entry(0, 1, "a"),)))
    assert (world.coordinator.state, world.target.ids) == (State.RESTORING, [])
    world.coordinator.deliver(RestoredCommittableEvent(1, 1, (entry(1, 1, "b"),)))
    assert (world.coordinator.state, world.target.ids) == (State.RUNNING, [1])


def test_a_subtask_that_restores_an_older_checkpoint_or_twice_fails_the_job() -> None:
    for wrong in (RestoredCommittableEvent(0, 1, ()), RestoredCommittableEvent(1, 2, (entry(0, 2),))):
        world = World()
        world.coordinator = world.new()
        world.coordinator.deliver(ResetToCheckpoint(2))
        with pytest.raises(IllegalState):
            world.coordinator.deliver(wrong)


@pytest.mark.seed("004-14", "E44")
@pytest.mark.parametrize("committed", range(5))
def test_killed_in_the_middle_of_several_ids_it_goes_on_at_the_first_that_is_absent(committed: int) -> None:
    """Four checkpoints are pending; the target holds a prefix of them."""
    world = World()
    for number in range(1, 5):
        world.hand(entry(0, number, f"a{number}"), entry(1, number))
    world.complete(4)
    world.target.commits = world.target.commits[:committed]
    world.restart(4)
    assert world.target.ids == [1, 2, 3, 4]
    assert set(world.target.rows.values()) == {1}


@pytest.mark.seed("E49", "E59")
def test_what_the_targets_history_has_forgotten_below_the_latest_is_not_committed_again() -> None:
    """Ids are ascending, so everything below the latest is in the target."""
    world = World()
    for number in (1, 2, 3):
        world.hand(entry(0, number, f"a{number}"), entry(1, number))
    world.complete(3)
    world.target.commits = world.target.commits[-1:]
    world.restart(3)
    assert world.target.ids == [3]


@pytest.mark.seed("004-05", "004-21")
@pytest.mark.parametrize("when", ["before", "after"])
def test_its_memory_can_be_lost_at_any_time(when: str) -> None:
    """Restarted while it holds state, before or after the commit: the result is the same."""
    world = World()
    for number in range(1, 6):
        world.hand(entry(0, number, f"a{number}"), entry(1, number, f"b{number}"))
        if when == "before":
            world.restart(number)
        else:
            world.complete(number)
            world.restart(number)
    assert world.target.ids == [1, 2, 3, 4, 5]
    assert set(world.target.rows.values()) == {1}


@pytest.mark.seed("004-21")
def test_a_started_coordinator_is_never_reset() -> None:
    """A restart makes a new coordinator; the old one refuses everything."""
    world = World()
    with pytest.raises(IllegalState):
        world.coordinator.deliver(ResetToCheckpoint(1))
    with pytest.raises(IllegalState):
        world.hand(entry(0, 1, "a"))


def test_a_commit_that_fails_ends_the_coordinator_and_the_next_one_decides_by_the_target() -> None:
    """C.5: whatever the target did, the next one looks."""
    world = World()
    world.hand(entry(0, 1, "a"), entry(1, 1, "b"))
    world.target.fails = True
    with pytest.raises(OSError, match="away"):
        world.complete(1)
    assert world.coordinator.state is State.CLOSED
    world.target.fails = False
    world.restart(1)
    assert world.target.rows == Counter("ab")


@pytest.mark.seed("004-11")
def test_entries_leave_the_memory_after_their_commit_and_stay_few_over_a_thousand_checkpoints() -> None:
    """Nothing is dropped before its commit, nothing is kept after."""
    world, most = World(), 0
    for number in range(1, 1001):
        world.hand(entry(0, number, f"a{number}"), entry(1, number))
        most = max(most, world.coordinator.pending)
        if number % 10:
            world.coordinator.deliver(CheckpointAborted(number))
        else:
            world.complete(number)
            assert world.coordinator.pending == 0
    assert most == 20
    assert len(world.target.rows) == 1000


def test_a_checkpoint_cannot_begin_while_it_restores() -> None:
    """The state that would be saved does not know yet what is committed."""
    world = World()
    world.hand(entry(0, 1, "a"), entry(1, 1))
    world.coordinator = world.new()
    world.coordinator.deliver(ResetToCheckpoint(1))
    world.coordinator.deliver(Start())
    with pytest.raises(NotReady):
        world.coordinator.deliver(CheckpointCoordinator(2))
    world.restore(1)
    world.coordinator.deliver(CheckpointCoordinator(2))
    assert world.target.ids == [1]


@pytest.mark.seed("004-02", "004-06")
def test_its_durable_state_holds_no_output_whatever_it_has_in_memory() -> None:
    """It is saved before any subtask is asked, and says only what listeners have seen."""
    world = World()
    world.hand(entry(0, 1, "a"), entry(1, 1, "b"))
    world.coordinator.deliver(CheckpointCoordinator(2))
    assert (world.store.saves, world.store.saved) == (1, {})
    world.coordinator.deliver(CheckpointCoordinator(3))
    assert world.store.saves == 1, "what did not change is not written again"


def test_the_last_commit_is_made_even_when_it_is_empty_and_carries_the_watermark() -> None:
    """An empty commit that has to be there says how far everything is."""
    world = World()
    world.target.final = 2
    world.hand(entry(0, 1, "a", watermark=5), entry(1, 1, watermark=7))
    world.complete(1)
    world.hand(entry(0, 2, watermark=9), entry(1, 2, watermark=8))
    world.complete(2)
    assert [(each.commit_id, each.watermark) for each in world.target.commits] == [(1, 5), (2, 8)]


def test_a_checkpoint_without_output_makes_no_commit() -> None:
    world = World()
    world.hand(entry(0, 1), entry(1, 1))
    world.complete(1)
    assert world.target.ids == []
    world.restart(1)
    assert world.target.ids == []


def test_the_watermark_of_a_commit_is_frozen_with_its_checkpoint() -> None:
    """What a subtask says for the next checkpoint changes nothing of this one."""
    world = World()
    world.hand(entry(0, 1, "a", watermark=10), entry(1, 1, "b", watermark=20), entry(0, 2, "c", watermark=99))
    world.complete(1)
    world.hand(entry(1, 2, watermark=50))
    world.complete(2)
    assert [each.watermark for each in world.target.commits] == [10, 50]


@pytest.mark.seed("004-27")
def test_both_ways_of_committing_publish_the_same_rows_and_the_same_last_watermark() -> None:
    """The same entries by the coordinator as they complete, and by the classic way at the end."""
    said = [(5, 9, False), (7, None, True), (12, 11, False)]
    worlds = World(), World(together=True)
    for world in worlds:
        world.target.final = 3
        for number, (one, two, idle) in enumerate(said, start=1):
            world.hand(
                entry(0, number, f"a{number}", watermark=one), entry(1, number, f"b{number}", watermark=two, idle=idle)
            )
            if not world.together:
                world.complete(number)
    worlds[1].complete(3)
    per_checkpoint, at_end = worlds
    assert per_checkpoint.target.rows == at_end.target.rows
    assert per_checkpoint.target.commits[-1].watermark == at_end.target.commits[-1].watermark == 11
    per_checkpoint.restart(3)
    assert per_checkpoint.target.ids == [1, 2, 3]


def test_an_event_that_arrives_while_another_is_handled_waits_for_its_turn() -> None:
    """C.2: one event loop."""

    class Curious:
        name = "curious"

        def __init__(self) -> None:
            self.seen: list[tuple[int, list[int]]] = []

        def committed(self, notice: Any) -> None:
            if notice.commit_id == 1:
                world.coordinator.deliver(CheckpointComplete(2))
            self.seen.append((notice.commit_id, list(world.target.ids)))

    curious = Curious()
    world = World(listeners=[curious])
    world.hand(entry(0, 1, "a"), entry(1, 1), entry(0, 2, "b"), entry(1, 2))
    world.complete(1)
    assert curious.seen == [(1, [1]), (2, [1, 2])]


def test_another_thread_cannot_call_it() -> None:
    world, failures = World(), list[BaseException]()

    def call() -> None:
        try:
            world.coordinator.deliver(Close())
        except IllegalState as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert failures
    assert world.coordinator.state is State.RUNNING


@pytest.mark.seed("E60")
def test_committables_of_the_first_version_count_as_active_and_unknown_ones_are_refused() -> None:
    value = entry(0, 1, "a", watermark=5, idle=True).to_json()
    assert Committable.from_json(value) == entry(0, 1, "a", watermark=5, idle=True)
    old = {key: each for key, each in value.items() if key != "idle"} | {"version": 1}
    assert Committable.from_json(old) == entry(0, 1, "a", watermark=5)
    assert Committable.from_json({**value, "version": 2}) == entry(0, 1, "a", watermark=5, idle=True)
    assert Committable.from_json({**value, "version": 3}) == entry(0, 1, "a", watermark=5, idle=True)
    with pytest.raises(Refused, match="version 5"):
        Committable.from_json({**value, "version": 5})
