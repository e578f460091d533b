"""Gates and live data: each goes live by itself, after its own recovered data, and the end waits for all."""

from __future__ import annotations

import pytest

from cdr_core.drain.live import LiveView
from cdr_core.drain.states import State
from cdr_core.errors import IllegalState
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


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_gate_goes_live_when_its_own_data_is_consumed(checkpoints: bool) -> None:
    """002-09, 002-33, 002-34, E24: whatever the other gate does."""
    views = Views()
    subtask = stepped(TWO_GATES, page_size=100, live=views, checkpoints=checkpoints)
    while subtask.drainer.step(blocking=False):
        pass
    for _ in range(2):
        page = subtask.poll(gates={1})
        assert page is not None
        page.recycle()
    assert not subtask.is_live(1), "its end marker is still in the queue"
    assert subtask.poll(gates={1}) is None
    assert (subtask.is_live(0), subtask.is_live(1)) == (False, True)
    views.all[1, 0].send(b"live")
    page = subtask.poll(gates={1})
    assert page is not None
    assert page.is_live
    assert views.all[0, 0].credit == 0
    assert not subtask.done


@pytest.mark.parametrize(("checkpoints", "credit"), [(True, 2), (False, 0)])
def test_channels_leave_recovery_one_by_one_or_with_their_gate(checkpoints: bool, credit: int) -> None:
    """002-01, 003-07: with checkpoints during recovery by themselves; without, when their whole gate is done."""
    views = Views()
    subtask = stepped([(0, 0, b"abcd")], page_size=1, live=views, checkpoints=checkpoints, channels=[(0, 0), (0, 2)])
    while subtask.drainer.step(blocking=False):
        pass
    for _ in range(3):
        page = subtask.poll()
        assert page is not None
        page.recycle()
    assert not subtask._inbox.channels[0, 2].in_recovery
    assert (views.all[0, 0].credit, views.all[0, 2].credit) == (0, credit)
    run_to_end(subtask)
    assert [view.credit for view in views.all.values()] == [2, 2]


def test_live_data_in_recovery_fails_the_subtask() -> None:
    views = Views()
    subtask = stepped(TWO_GATES, live=views)
    with pytest.raises(IllegalState, match=r"during recovery \(gate 0, channel 1\)"):
        views.all[0, 1].send(b"too early")
    with pytest.raises(IllegalState, match="during recovery"):
        subtask.poll()
    assert subtask.state is State.FAILED


def test_the_first_failure_is_the_one_that_is_raised() -> None:
    """002-08: what follows from it does not hide it."""

    def fail(_: int) -> None:
        raise OSError("the disk is gone")

    views = Views()
    subtask = stepped(TWO_GATES, live=views, reader=MemoryReader(bodies(TWO_GATES), fail))
    subtask.drainer.run()
    with pytest.raises(IllegalState):
        views.all[0, 0].send(b"too early")
    with pytest.raises(OSError, match="the disk is gone"):
        subtask.poll()


def test_the_end_of_a_bounded_input_waits_for_the_recovery() -> None:
    """002-30, E25: every input had ended before the drain began; no record is lost and nothing finishes early."""
    views = Views()
    consumer = Consumer()
    subtask = stepped(TWO_GATES, live=views)
    for view in views.all.values():
        view.finish()
    assert not subtask.finished
    run_to_end(subtask, consumer)
    assert sorted(record for _, record in consumer.records) == [b"a", b"b", b"c", b"d"]
    assert subtask.finished
    assert subtask.poll(timeout=60) is None, "nothing more can come, so nobody waits"


def test_a_live_input_keeps_the_subtask_open_after_recovery() -> None:
    views = Views()
    subtask = stepped(TWO_GATES, live=views)
    run_to_end(subtask)
    assert subtask.done
    assert not subtask.finished
    for view in views.all.values():
        view.send(b"last")
        view.finish()
    assert not subtask.finished
    while (page := subtask.poll()) is not None:
        page.recycle()
    assert subtask.finished


def test_a_channel_is_in_a_cut_with_recovered_data_or_with_live_data_never_both() -> None:
    """002-22, 002-17: gate 1 is live and overtaken, gate 0 is still in recovery; each page says which it is."""
    views = Views()
    subtask = stepped(TWO_GATES, page_size=100, live=views)
    while subtask.drainer.step(blocking=False):
        pass
    while (page := subtask.poll(gates={1})) is not None:
        page.recycle()
    views.all[1, 0].send(b"one")
    views.all[1, 0].send(b"two")
    cut = subtask.cut(1)
    assert cut.live == {(1, 0): (b"one", b"two")}
    spill_set = memory_set(TWO_GATES)
    assert {spill_set.segments[part.segment].gate for part in cut.remaining.parts(spill_set)} == {0}


def test_no_live_page_comes_before_the_last_recovered_one_and_none_is_left_lying() -> None:
    """003-05, 003-07: live data that is there when the end marker is consumed is found without another wake-up."""
    view = LiveView()
    subtask = stepped([(0, 0, b"abcd")], page_size=2, live=lambda *_: view)
    seen: list[bytes] = []
    while len(seen) < 4:
        subtask.drainer.step(blocking=False)
        if view.credit:
            view.send(b"live")
        page = subtask.poll()
        if page is not None:
            seen.append(page.data.tobytes())
            page.recycle()
    assert seen == [b"ab", b"cd", b"live", b"live"]


def test_pages_in_use_are_those_in_memory_on_disk_and_live() -> None:
    """003-01."""
    views = Views()
    parts = [(0, 0, b"x" * 10), (0, 0, b"y" * 2), (0, 1, b"z" * 3)]
    subtask = stepped(parts, page_size=4, live=views)
    assert (subtask.in_use(0, 0), subtask.in_use(0, 1)) == (3, 1)
    subtask.drainer.step(blocking=False)
    assert subtask.in_use(0, 0) == 1 + 2
    run_to_end(subtask)
    assert subtask.in_use(0, 0) == 0
    views.all[0, 0].send(b"live")
    assert subtask.in_use(0, 0) == 1


def test_a_channel_with_data_is_in_line_once() -> None:
    """003-12, 003-13: and one without data is not in line."""
    parts = [(0, 0, b"abcdef"), (0, 1, b"g")]
    subtask = stepped(parts, page_size=2, channels=[(0, 0), (0, 1), (0, 2)])
    for _ in range(3):
        subtask.drainer.step(blocking=False)
    assert [channel.key for channel in subtask._inbox._ready] == [(0, 0)]
    subtask.drainer.step(blocking=False)
    page = subtask.poll()
    assert page is not None
    assert sorted(channel.key for channel in subtask._inbox._ready) == [(0, 0), (0, 1)]
