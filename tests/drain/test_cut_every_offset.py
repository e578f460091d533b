"""A cut at any instant: what was consumed, what lies in memory and what is still on disk are the input, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdr_core.drain.pages import PagePool
from cdr_core.drain.remaining import Remaining, whole
from cdr_core.drain.subtask import RecoveringSubtask
from cdr_core.spill.reader import SegmentReader
from cdr_core.spill.segments import SpillSet
from tests.drain.support import (
    Consumer,
    Part,
    bodies,
    by_channel,
    frame,
    frames,
    keys,
    memory_set,
    remaining_parts,
    stepped,
    write_set,
)

SET: list[Part] = [
    (0, 0, frame(b"abc") + frame(b"")),
    (1, 2, frame(b"defgh")),
    (0, 1, frame(b"i")),
    (0, 0, frame(b"jk") + frame(b"lmnopqr")),
    (1, 2, frame(b"st")),
]
TOTAL = sum(len(body) for body in bodies(SET))


def drained(subtask: RecoveringSubtask, consumer: Consumer) -> None:
    while not subtask.done:
        subtask.drainer.step(blocking=False)
        while (page := subtask.poll()) is not None:
            consumer.take(page)


def records_by_channel(*consumers: Consumer) -> dict[tuple[int, int], list[bytes]]:
    found: dict[tuple[int, int], list[bytes]] = {}
    for consumer in consumers:
        for key, record in consumer.records:
            found.setdefault(key, []).append(record)
    return found


EXPECTED = {key: frames(data) for key, data in by_channel(SET).items()}


@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 11, 1000])
def test_at_every_offset_the_parts_are_the_input(page_size: int) -> None:
    """002-29, 003-02, 000-07, 001-11: every number of pages delivered, and of those every number consumed."""
    delivered = 0
    while True:
        for consumed in range(delivered + 1):
            finished = check_cut(page_size, delivered, consumed)
        if finished:
            break
        delivered += 1
    assert delivered >= TOTAL // page_size


def check_cut(page_size: int, delivered: int, consumed: int) -> bool:
    """Deliver, consume, cut; then account for every byte, and resume from the cut. Whether all was delivered."""
    consumer = Consumer()
    subtask = stepped(SET, pages=TOTAL + 1, page_size=page_size)
    for _ in range(delivered):
        subtask.drainer.step(blocking=False)
    seen: list[Part] = []
    for _ in range(consumed):
        page = subtask.poll()
        if page is not None:
            seen.append((page.gate, page.channel, page.data.tobytes()))
            consumer.take(page)
    spill_set, source = memory_set(SET), bodies(SET)
    cut = subtask.cut(1, consumer.half_records())
    held = sum(part.length for part in consumer.half_records())
    left = remaining_parts(cut.remaining, spill_set, source)
    assert sum(len(body) for _, _, body in seen) - held + sum(len(body) for _, _, body in left) == TOTAL
    again = subtask.cut(2, consumer.half_records())
    assert again.remaining == cut.remaining, "a cut disturbs nothing: the next one at the same place is equal"
    finished = subtask.drainer.finished
    subtask.close()
    resumed = Consumer()
    restored = Remaining.from_json(cut.remaining.to_json())
    drained(stepped(SET, page_size=max(page_size, 5), remaining=restored), resumed)
    assert resumed.is_clean()
    assert records_by_channel(consumer, resumed) == EXPECTED
    return finished


@pytest.mark.parametrize("page_size", [1, 5, 64])
def test_a_cut_during_a_resume_continues_it(page_size: int) -> None:
    """001-17, E34: the second cut names what the first resume had not yet delivered, then what the tail holds."""
    for first in range(0, 40, 3):
        for second in range(0, 40, 4):
            consumers = [Consumer() for _ in range(3)]
            remaining = whole(memory_set(SET))
            for steps, consumer in zip((first, second), consumers, strict=False):
                subtask = stepped(SET, page_size=page_size, remaining=remaining)
                for step in range(steps):
                    subtask.drainer.step(blocking=False)
                    if step % 2 and (page := subtask.poll()) is not None:
                        consumer.take(page)
                remaining = subtask.cut(1, consumer.half_records()).remaining
                subtask.close()
            drained(stepped(SET, page_size=page_size, remaining=remaining), consumers[2])
            assert records_by_channel(*consumers) == EXPECTED


def real(tmp_path: Path) -> tuple[SpillSet, SegmentReader]:
    spill_set = write_set(tmp_path / "set", SET)
    return spill_set, SegmentReader(spill_set)


@pytest.mark.parametrize("page_size", [1, 6, 1000])
def test_the_same_holds_on_disk_with_the_shipped_reader(tmp_path: Path, page_size: int) -> None:
    """000-10, 000-19, 000-20: files rotate inside the set, segments are verified, and a cut does not move the drain."""
    spill_set, reader = real(tmp_path)
    assert len(spill_set.files) > 1
    for delivered in range(0, TOTAL + 2, 5):
        consumers = [Consumer(), Consumer()]
        pool = PagePool(TOTAL + 1, page_size)
        first = RecoveringSubtask(spill_set, reader, keys(SET), pool, whole(spill_set))
        first.start(threaded=False)
        for _ in range(delivered):
            first.drainer.step(blocking=False)
            if (page := first.poll()) is not None:
                consumers[0].take(page)
        cut = first.cut(1, consumers[0].half_records())
        first.close()
        second = RecoveringSubtask(spill_set, reader, keys(SET), pool, cut.remaining)
        second.start(threaded=False)
        drained(second, consumers[1])
        assert records_by_channel(*consumers) == EXPECTED
        assert pool.in_use == 0
