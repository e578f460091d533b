"""Cuts of a subtask: when one is due, what it holds, and which it refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cdr_core.drain.live import CheckpointRequest, LiveView
from cdr_core.drain.remaining import Slice
from cdr_core.drain.states import State
from cdr_core.errors import Declined, IllegalState, NotReady
from tests.drain.support import (
    TWO_GATES,
    Consumer,
    Views,
    bodies,
    frame,
    memory_set,
    run_to_end,
    stepped,
)


def test_a_cut_is_markers_then_inputs_then_tail() -> None:
    """002-37."""
    log: list[str] = []
    subtask = stepped(TWO_GATES, watch=log.append)
    log.clear()
    subtask.cut(4)
    assert log == ["cut 4: markers", "cut 4: inputs", "cut 4: tail"]


@pytest.mark.parametrize("gates", [1, 2, 5])
def test_a_cut_covers_one_two_and_several_gates(gates: int) -> None:
    """002-47: half record, queue and tail of every gate, in this order."""
    parts = [(gate, 0, frame(b"123456")) for gate in range(gates)] + [(gate, 0, frame(b"7")) for gate in range(gates)]
    consumer = Consumer()
    subtask = stepped(parts, page_size=7)
    for _ in range(2 * gates):
        subtask.drainer.step(blocking=False)
    for gate in range(gates):
        page = subtask.poll(gates={gate})
        assert page is not None
        consumer.take(page)
    cut = subtask.cut(1, consumer.half_records())
    assert consumer.records == []
    assert {part.segment for part in cut.remaining.slices} == set(range(gates))
    assert cut.remaining.bytes(memory_set(parts)) == sum(len(body) for body in bodies(parts))


def test_half_records_must_be_the_end_of_what_was_polled() -> None:
    """Anything else would lose bytes or repeat them."""
    subtask = stepped(TWO_GATES, page_size=3)
    subtask.drainer.step(blocking=False)
    for wrong in (Slice(0, 0, 3), Slice(9, 0, 1), Slice(1, 0, 1)):
        with pytest.raises(IllegalState, match="half record"):
            subtask.cut(1, [wrong])
    page = subtask.poll()
    assert page is not None
    with pytest.raises(IllegalState, match="half record"):
        subtask.cut(1, [Slice(0, 0, 2)])
    assert subtask.cut(1, [Slice(0, 1, 2)]).remaining.slices[0] == Slice(0, 1, 2)


def test_an_older_checkpoint_is_declined_after_a_newer_one() -> None:
    """E33."""
    subtask = stepped(TWO_GATES)
    subtask.request(3)
    subtask.request(4)
    subtask.cut(5)
    assert subtask.due() == ()
    subtask.request(4)
    assert subtask.due() == ()
    with pytest.raises(Declined, match="older"):
        subtask.cut(4)


def test_a_cut_does_not_change_when_its_pages_are_consumed() -> None:
    """003-02."""
    subtask = stepped(TWO_GATES, page_size=100)
    for _ in range(3):
        subtask.drainer.step(blocking=False)
    cut = subtask.cut(1)
    before = list(cut.remaining.parts(memory_set(TWO_GATES)))
    run_to_end(subtask)
    assert list(cut.remaining.parts(memory_set(TWO_GATES))) == before


def test_an_unaligned_request_is_due_at_once_and_an_aligned_one_after_its_timeout() -> None:
    """002-38: both kinds of trigger, with recovered data in the way."""
    now = [100.0]
    subtask = stepped(TWO_GATES, clock=lambda: now[0])
    subtask.request(1)
    subtask.request(2, aligned_timeout=5)
    assert subtask.due() == (1,)
    subtask.cut(1)
    assert subtask.due() == ()
    now[0] = 104.9
    assert subtask.due() == ()
    now[0] = 105.0
    assert subtask.due() == (2,)
    assert subtask.cut(2).remaining.bytes(memory_set(TWO_GATES)) == 20


def test_an_aligned_request_is_due_when_the_recovered_data_is_consumed() -> None:
    """002-38: before its timeout, with nothing left to store."""
    subtask = stepped(TWO_GATES, clock=lambda: 0.0)
    subtask.request(1, aligned_timeout=1000)
    run_to_end(subtask)
    assert subtask.due() == (1,)
    assert subtask.cut(1).remaining.bytes(memory_set(TWO_GATES)) == 0


def test_without_checkpoints_during_recovery_a_request_waits_for_its_end() -> None:
    """E26, 002-41: not ready, in every state before CONSUMED."""
    subtask = stepped(TWO_GATES, page_size=100, checkpoints=False)
    subtask.request(1)
    while not subtask.done:
        assert subtask.due() == ()
        with pytest.raises(NotReady):
            subtask.cut(1)
        subtask.drainer.step(blocking=False)
        page = subtask.poll()
        if page is not None:
            page.recycle()
    assert subtask.due() == (1,)
    subtask.cut(1)


def test_a_checkpoint_request_from_upstream_passes_a_blocked_channel() -> None:
    """003-03, 003-06, 002-18: no credit, a backlog of recovered pages, and the request is heard first."""
    views = Views()
    subtask = stepped(TWO_GATES, live=views)
    subtask.drainer.step(blocking=False)
    views.all[1, 0].send_priority(CheckpointRequest(9))
    assert subtask.poll() is None, "the request comes before the page that is there"
    assert subtask.due() == (9,)
    assert subtask.cut(9).remaining.bytes(memory_set(TWO_GATES)) == 20
    assert subtask.poll() is not None


class Lying(LiveView):
    def take_priority(self) -> CheckpointRequest | None:
        return None


def test_a_request_that_was_announced_and_is_not_there_fails_the_subtask() -> None:
    """003-04."""
    view = Lying()
    subtask = stepped([(0, 0, b"abc")], live=lambda *_: view)
    view.send_priority(CheckpointRequest(1))
    with pytest.raises(IllegalState, match="announced"):
        subtask.poll()
    assert subtask.state is State.FAILED


class Yielding:
    """A lock that lets the drainer deliver a page each time it is released, as another thread might."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.acquire, self.release, self.locked = self._lock.acquire, self._lock.release, self._lock.locked
        self.then: Callable[[], object] | None = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
        then, self.then = self.then, None
        if then is not None:
            then()
            self.then = then


def test_the_position_of_a_cut_is_copied_under_the_lock_that_inserted_the_markers() -> None:
    """A page that is delivered right after the lock is released is behind the marker, so it must be in the tail."""
    lock = Yielding()
    subtask = stepped(TWO_GATES, lock=lock)
    lock.then = lambda: subtask.drainer.step(blocking=False)
    assert subtask.cut(1).remaining.bytes(memory_set(TWO_GATES)) == sum(len(body) for _, _, body in TWO_GATES)
