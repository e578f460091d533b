"""A recovering subtask: straight through its states, answering in each as it must, holding nothing when closed."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from cdr_core.drain.channel import Key, RecoveredChannel
from cdr_core.drain.pages import PagePool
from cdr_core.drain.remaining import Remaining, Slice, whole
from cdr_core.drain.states import ANSWERS, ANSWERS_AFTER_RECOVERY, MOVES, Answerer, State, move
from cdr_core.drain.subtask import RecoveringSubtask
from cdr_core.errors import Closed, IllegalState, NotReady, Refused
from cdr_core.spill.cursor import Cursor
from tests.drain.support import (
    TWO_GATES,
    Consumer,
    MemoryReader,
    Views,
    bodies,
    memory_set,
    run_to_end,
    stepped,
)


@pytest.mark.parametrize("current", list(State))
@pytest.mark.parametrize("to", list(State))
def test_every_move_that_is_not_listed_is_refused(current: State, to: State) -> None:
    if to in MOVES[current]:
        assert move(current, to) is to
    else:
        with pytest.raises(IllegalState, match="cannot go"):
            move(current, to)


def test_every_state_has_an_answer() -> None:
    assert set(ANSWERS) == set(ANSWERS_AFTER_RECOVERY) == set(MOVES) == set(State)


@pytest.mark.parametrize("checkpoints", [True, False])
def test_the_states_are_a_straight_line(checkpoints: bool) -> None:
    """002-02, 002-49, 000-17: the same line in both modes; draining begins after the conversion."""
    log: list[str] = []
    subtask = stepped(TWO_GATES, watch=log.append, checkpoints=checkpoints)
    run_to_end(subtask)
    assert log == ["FETCH", "CONVERT", "DRAINING", "DELIVERED", "CONSUMED"]


def test_channels_are_converted_empty_and_get_their_data_from_disk() -> None:
    """003-08, 002-49: nothing was read and no page taken when the drain begins."""
    pool, reader, seen = PagePool(9, 8), MemoryReader(bodies(TWO_GATES)), []

    def look(event: str) -> None:
        if event == "DRAINING":
            seen.append((pool.requested, len(reader.reads), [c.pages for c in subtask._inbox.channels.values()]))

    subtask = stepped(TWO_GATES, pool=pool, reader=reader, start=False, watch=look)
    subtask.start()
    assert seen == [(0, 0, [0, 0, 0])]
    subtask.close()


def test_before_draining_a_checkpoint_is_not_ready() -> None:
    """E26, 002-41: in INIT, FETCH and CONVERT; it is not counted and works later under the same number."""
    refused: list[str] = []

    def ask(event: str) -> None:
        if event in {"FETCH", "CONVERT"}:
            with pytest.raises(NotReady):
                subtask.cut(1)
            refused.append(event)

    subtask = stepped(TWO_GATES, start=False, watch=ask)
    with pytest.raises(NotReady):
        subtask.cut(1)
    subtask.request(1)
    assert subtask.due() == ()
    subtask.start(threaded=False)
    assert refused == ["FETCH", "CONVERT"]
    assert subtask.due() == (1,)
    assert subtask.cut(1).remaining == whole(memory_set(TWO_GATES))


def test_a_checkpoint_is_possible_with_everything_still_on_disk() -> None:
    """002-18: the drainer answers as soon as it is there, not when it is done."""
    subtask = stepped(TWO_GATES)
    assert subtask.state is State.DRAINING
    assert subtask.cut(1).remaining.bytes(memory_set(TWO_GATES)) == 20


def test_after_recovery_nothing_is_left_but_half_records() -> None:
    subtask = stepped(TWO_GATES, page_size=100)
    run_to_end(subtask)
    assert subtask.state is State.CONSUMED
    assert ANSWERS[subtask.state] is Answerer.NOTHING
    cut = subtask.cut(1, [Slice(2, 1, 4)])
    assert list(cut.remaining.parts(memory_set(TWO_GATES))) == [Slice(2, 1, 4)]


def test_no_state_means_no_drain_and_live_channels_at_once() -> None:
    """002-04, 002-31: not an empty file, and done at once."""
    views = Views()
    log: list[str] = []
    subtask = RecoveringSubtask(
        None, MemoryReader([]), [(0, 0)], PagePool(1, 8), Remaining((), Cursor(0, 0)), live=views, watch=log.append
    )
    subtask.start()
    assert log == ["FETCH", "CONSUMED"]
    assert subtask.done
    views.all[0, 0].send(b"live")
    page = subtask.poll()
    assert page is not None
    page.recycle()
    assert subtask.cut(1).remaining.slices == ()


def test_an_empty_set_still_ends_every_channel() -> None:
    subtask = stepped([], channels=[(0, 0), (3, 1)])
    assert not subtask.done
    run_to_end(subtask)
    assert subtask.drainer.finished


def test_data_of_a_channel_that_is_not_there_is_refused_before_anything_is_delivered() -> None:
    """002-03: the channels are resolved first."""
    pool = PagePool(1, 8)
    with pytest.raises(Refused, match=r"does not have \(subtask 0, gate 1, channel 0\)"):
        stepped(TWO_GATES, channels=[(0, 0), (0, 1)], pool=pool)
    assert pool.requested == 0


@pytest.mark.parametrize("steps", [0, 1, 3, 9])
def test_closing_gives_every_page_back_in_every_state(steps: int) -> None:
    """002-21, 001-13: also those in queues; again is harmless, and nothing works afterwards."""
    pool = PagePool(20, 2)
    subtask = stepped(TWO_GATES, pool=pool)
    for _ in range(steps):
        subtask.drainer.step(blocking=False)
    held = subtask.poll()
    subtask.close()
    assert pool.in_use == (held is not None)
    if held is not None:
        held.recycle()
    subtask.close()
    assert pool.in_use == 0
    for use in (subtask.poll, subtask.due, lambda: subtask.cut(1)):
        with pytest.raises(Closed):
            use()


def test_after_closing_live_data_goes_nowhere() -> None:
    """002-21: an upstream that has not heard of it yet is not at fault."""
    views = Views()
    subtask = stepped(TWO_GATES, live=views)
    run_to_end(subtask)
    views.all[0, 0].send(b"before")
    subtask.close()
    views.all[0, 0].send(b"after")
    views.all[0, 1].finish()
    assert (views.all[0, 0].credit, views.all[0, 0].backlog) == (0, 0)


def test_closing_what_never_started_is_harmless() -> None:
    pool = PagePool(1, 2)
    with stepped(TWO_GATES, pool=pool, start=False):
        pass
    assert pool.requested == 0


def test_only_the_tasks_thread_may_use_it() -> None:
    """002-06: its state has one reader and one writer."""
    subtask = stepped(TWO_GATES)
    caught: list[BaseException] = []

    def use() -> None:
        for wrong in (subtask.poll, lambda: subtask.cut(1), lambda: subtask.state, lambda: subtask.request(1)):
            try:
                wrong()
            except IllegalState as error:
                caught.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(caught) == 4


def test_the_order_in_which_things_are_set_up_does_not_matter() -> None:
    """002-01: no flag to be set before something else; the channels' order is not the result's."""
    found = []
    for channels in ([(0, 0), (0, 1), (1, 0)], [(1, 0), (0, 1), (0, 0), (0, 0)]):
        consumer = Consumer()
        run_to_end(stepped(TWO_GATES, channels=channels), consumer)
        found.append(consumer.records)
    assert found[0] == found[1]


def test_the_library_needs_no_database_spark_arrow_or_airflow() -> None:
    """002-11: a minimal environment can drain."""
    code = (
        "import sys, cdr_core.drain.subtask, cdr_core.spill.reader, cdr_core.metadata.values\n"
        "print([m for m in ('sqlalchemy', 'pyspark', 'pyarrow', 'airflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Counted(dict[Key, RecoveredChannel]):
    """Counts how many channels are looked at one after another."""

    looked_at = 0

    def values(self) -> Any:
        for channel in super().values():
            self.looked_at += 1
            yield channel


@pytest.mark.parametrize("checkpoints", [True, False])
def test_what_a_page_costs_does_not_depend_on_the_number_of_channels(checkpoints: bool) -> None:
    """Every channel is looked at a few times in a whole drain, not once for every page."""
    pages, channels = 200, 100
    subtask = stepped(
        [(0, 0, b"x" * 8 * pages)],
        channels=[(0, channel) for channel in range(channels)],
        checkpoints=checkpoints,
        start=False,
    )
    inbox = subtask._inbox
    inbox.channels = counted = Counted()
    subtask.start(threaded=False)
    taken = 0
    while not subtask.done:
        subtask.drainer.step(blocking=False)
        assert subtask.due() == ()
        page = subtask.poll()
        if page is not None:
            page.recycle()
            taken += 1
    assert taken == pages
    assert counted.looked_at < 5 * channels + 3 * pages
