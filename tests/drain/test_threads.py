"""The same rules with real threads: small pools, random cuts, selective readers, load. A hang is a failure."""

from __future__ import annotations

import threading
import time
from random import Random

import pytest

from cdr_core.drain.drainer import Drainer
from cdr_core.drain.live import CheckpointRequest, LiveView
from cdr_core.drain.pages import PagePool
from cdr_core.drain.remaining import Remaining, whole
from cdr_core.drain.subtask import RecoveringSubtask
from tests.drain.support import (
    Consumer,
    MemoryReader,
    Part,
    bodies,
    by_channel,
    frame,
    frames,
    keys,
    memory_set,
    until,
    within,
)
from tests.support.busy import contention

SECONDS = 60
"""A run takes far less; what takes longer hangs."""
MOST_CUTS = 40
"""A drainer that repeats data would never come to an end if it were cut for ever."""


def random_parts(draw: Random, records: int, gates: int = 2) -> list[Part]:
    parts: list[Part] = []
    for number in range(records):
        place = draw.randrange(gates), draw.randrange(3)
        body = b"".join(frame(b"%d-%d" % (number, each)) for each in range(draw.randint(1, 9)))
        parts.append((*place, body))
    return parts


def in_order(consumers: list[Consumer]) -> dict[tuple[int, int], list[bytes]]:
    found: dict[tuple[int, int], list[bytes]] = {}
    for consumer in consumers:
        for key, record in consumer.records:
            found.setdefault(key, []).append(record)
    return found


def expected(parts: list[Part]) -> dict[tuple[int, int], list[bytes]]:
    return {key: frames(data) for key, data in by_channel(parts).items()}


def test_random_cuts_and_crashes_lose_nothing() -> None:
    """002-29, 002-12: the drainer's thread runs freely; each cut is a place to go on from."""
    within(SECONDS, lambda: stress_all(Drainer))


def stress_all(drainer: type[Drainer]) -> None:
    for seed in range(40):
        stress(seed, drainer)


def stress(seed: int, drainer: type[Drainer]) -> None:
    """Drain with random cuts; at some of them crash and go on from there."""
    draw = Random(seed)
    parts = random_parts(draw, 60)
    spill_set = memory_set(parts)
    pool = PagePool(draw.choice((1, 2, 5)), draw.choice((3, 16, 50)))
    remaining, committed, checkpoint, done = whole(spill_set), [Consumer()], 0, False
    while not done:
        reader = MemoryReader(bodies(parts), lambda _: time.sleep(draw.choice((0, 0, 0.0002))))
        with RecoveringSubtask(spill_set, reader, keys(parts), pool, remaining, drainer=drainer) as subtask:
            subtask.start()
            consumer = Consumer()
            crash_at = checkpoint + draw.randint(1, 8)
            while not subtask.done:
                page = subtask.poll(draw.choice((0, 0.01)))
                if page is not None:
                    consumer.take(page)
                if draw.random() < 0.08 and checkpoint < MOST_CUTS:
                    checkpoint += 1
                    remaining = stored(subtask.cut(checkpoint, consumer.half_records()).remaining)
                    committed[-1].records += consumer.records
                    consumer.records = []
                    if checkpoint == crash_at:
                        break
            else:
                done = True
                committed[-1].records += consumer.records
        assert pool.in_use == 0
    assert in_order(committed) == expected(parts)


def stored(remaining: Remaining) -> Remaining:
    return Remaining.from_json(remaining.to_json())


class SlowCut(Drainer):
    """Cuts outside the lock, and takes its time: the thread delivers between the copy and the markers."""

    def snapshot_and_insert_markers(self, checkpoint: int) -> Remaining:
        position = self._tail.remaining()
        time.sleep(0.002)
        super().snapshot_and_insert_markers(checkpoint)
        return position


def test_the_same_threads_catch_a_cut_outside_the_lock() -> None:
    """002-12."""
    with pytest.raises(AssertionError):
        within(SECONDS, lambda: stress_all(SlowCut))


def read_selectively(parts: list[Part], pages: int, checkpoints: bool) -> Consumer:
    """Input 1 first and to its end, only then input 0; with checkpoints on the way where they are possible."""
    spill_set = memory_set(parts)
    pool = PagePool(pages, 16)
    consumer = Consumer()
    reader = MemoryReader(bodies(parts))
    with RecoveringSubtask(spill_set, reader, keys(parts), pool, whole(spill_set), checkpoints=checkpoints) as subtask:
        subtask.start()
        number = 0
        for gate in (1, 0):
            while not subtask.is_live(gate):
                page = subtask.poll(5, {gate})
                if page is None:
                    assert subtask.is_live(gate), "nothing came for the input that is read"
                    break
                consumer.take(page)
                number += 1
                if checkpoints and number % 20 == 0:
                    subtask.cut(number, consumer.half_records())
        assert subtask.done
    assert pool.in_use == 0
    assert pool.most_in_use <= pages
    return consumer


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("pages", [1, 4])
def test_a_reader_of_one_input_first_finishes_under_load(checkpoints: bool, pages: int) -> None:
    """002-50, 002-33, 002-34, 002-09, 001-01, E24: 75 times, both modes, also with a single page."""

    def run() -> None:
        for seed in range(75):
            parts = random_parts(Random(seed), 25)
            assert in_order([read_selectively(parts, pages, checkpoints)]) == expected(parts)

    with contention():
        within(SECONDS, run)


def test_one_page_is_enough_for_many_times_its_size() -> None:
    """000-01, 000-08, 000-18: 50 times the pool, and never more than the one page."""
    parts = random_parts(Random(1), 200, gates=3)
    spill_set = memory_set(parts)
    pool = PagePool(1, 64)
    assert whole(spill_set).bytes(spill_set) > 50 * 64

    def run() -> None:
        consumer = Consumer()
        with RecoveringSubtask(spill_set, MemoryReader(bodies(parts)), keys(parts), pool, whole(spill_set)) as subtask:
            subtask.start()
            while not subtask.done:
                if (page := subtask.poll(5)) is not None:
                    consumer.take(page)
        assert in_order([consumer]) == expected(parts)

    within(SECONDS, run)
    assert (pool.most_in_use, pool.in_use) == (1, 0)


def test_a_cut_does_not_wait_for_the_disk() -> None:
    """002-28: the page that is being read counts as not delivered."""
    parts = random_parts(Random(2), 5)
    spill_set = memory_set(parts)
    reading, answer = threading.Event(), threading.Event()

    def stall(index: int) -> None:
        if index == 2:
            reading.set()
            answer.wait()

    def run() -> None:
        pool = PagePool(100, 1000)
        reader = MemoryReader(bodies(parts), stall)
        with RecoveringSubtask(spill_set, reader, keys(parts), pool, whole(spill_set)) as subtask:
            subtask.start()
            reading.wait()
            assert subtask.cut(1).remaining.bytes(spill_set) == whole(spill_set).bytes(spill_set)
            answer.set()
            until(lambda: subtask.drainer.finished)

    within(SECONDS, run)


def consume_for_ever(subtask: RecoveringSubtask) -> None:
    while True:
        if (page := subtask.poll(SECONDS)) is not None:
            page.recycle()


def test_an_error_of_the_drainer_wakes_a_task_that_waits() -> None:
    """002-36, 002-08: with its cause, at once, and every page comes back."""
    parts = random_parts(Random(3), 9)
    spill_set = memory_set(parts)
    pool = PagePool(20, 1000)

    def fail(index: int) -> None:
        if index == 4:
            until(lambda: pool.in_use == 1)
            time.sleep(0.1)  # the task has read everything else by now, and waits
            raise OSError("the disk is gone")

    def run() -> None:
        with RecoveringSubtask(
            spill_set, MemoryReader(bodies(parts), fail), keys(parts), pool, whole(spill_set)
        ) as subtask:
            subtask.start()
            with pytest.raises(OSError, match="the disk is gone"):
                consume_for_ever(subtask)

    within(10, run)
    assert pool.in_use == 0


def test_a_request_from_upstream_wakes_a_task_that_waits_for_recovered_data() -> None:
    """003-06: the live input is paused, the recovered data does not come, and the checkpoint is taken all the same."""
    parts = [(0, 0, frame(b"x"))]
    view, answer = LiveView(), threading.Event()

    def stall(_: int) -> None:
        answer.wait()

    def run() -> None:
        reader = MemoryReader(bodies(parts), stall)
        with RecoveringSubtask(
            memory_set(parts), reader, [(0, 0)], PagePool(1, 8), whole(memory_set(parts)), live=lambda *_: view
        ) as subtask:
            subtask.start()
            threading.Timer(0.05, view.send_priority, [CheckpointRequest(1)]).start()
            assert subtask.poll(SECONDS) is None
            assert subtask.due() == (1,)
            subtask.cut(1)
            answer.set()

    within(10, run)
