"""The drainer: pages of one channel at a time and in order, nothing slow under the lock, no page lost on an error."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cdr_core.drain.pages import Page, PagePool
from cdr_core.drain.remaining import Slice, whole
from cdr_core.drain.states import State
from cdr_core.drain.subtask import RecoveringSubtask
from cdr_core.errors import Closed, Declined, IllegalState, SpillLost
from cdr_core.spill.cursor import end_of
from cdr_core.spill.reader import SegmentReader
from tests.drain.support import MemoryReader, Part, bodies, frame, memory_set, stepped, until, within, write_set

TWO: list[Part] = [(0, 0, b"a" * 10), (0, 1, b"b" * 8), (0, 0, b"c" * 3)]


def polled(subtask: RecoveringSubtask) -> list[Page]:
    found = []
    while (page := subtask.poll()) is not None:
        found.append(page)
    return found


def deliver_all(subtask: RecoveringSubtask) -> None:
    while subtask.drainer.step(blocking=False):
        pass


@pytest.mark.parametrize(
    ("page_size", "lengths"),
    [
        (4, {(0, 0): [4, 4, 2, 3], (0, 1): [4, 4]}),
        (8, {(0, 0): [8, 2, 3], (0, 1): [8]}),
        (99, {(0, 0): [10, 3], (0, 1): [8]}),
    ],
)
def test_a_segment_is_cut_into_pages_and_never_shares_one(
    page_size: int, lengths: dict[tuple[int, int], list[int]]
) -> None:
    """000-09, 000-19: larger than a page, an exact multiple of it, smaller; each page to the channel of its segment."""
    subtask = stepped(TWO, page_size=page_size)
    deliver_all(subtask)
    found: dict[tuple[int, int], list[int]] = {}
    for page in polled(subtask):
        assert set(page.data.tobytes()) <= set(bodies(TWO)[page.slice.segment])
        found.setdefault((page.gate, page.channel), []).append(len(page.data))
    assert found == lengths


def test_a_segment_is_read_once_however_many_pages_it_has() -> None:
    reader = MemoryReader(bodies(TWO))
    deliver_all(stepped(TWO, page_size=1, reader=reader))
    assert reader.reads == [0, 1, 2]


def test_the_end_markers_come_after_every_delivery_on_every_channel() -> None:
    """002-31, 002-23: also on a channel without data."""
    subtask = stepped(TWO, page_size=4, channels=[(0, 0), (0, 1), (1, 7)])
    steps = 0
    while subtask.drainer.step(blocking=False):
        steps += 1
        assert subtask.drainer.delivered == (steps == 7)
    assert steps == 7
    assert not subtask.done
    for page in polled(subtask):
        page.recycle()
    assert subtask.done


@pytest.mark.parametrize("failing", [0, 2])
def test_a_read_that_fails_gives_its_page_back_and_delivers_nothing(failing: int) -> None:
    """002-08, 002-36: what was delivered before stays delivered; the cause is the task's."""

    def fail(index: int) -> None:
        if index == failing:
            raise OSError("the disk is gone")

    pool = PagePool(9, 100)
    subtask = stepped(TWO, pool=pool, reader=MemoryReader(bodies(TWO), fail))
    subtask.drainer.run()
    assert (pool.requested, pool.in_use) == (failing + 1, failing)
    with pytest.raises(OSError, match="the disk is gone"):
        subtask.poll()
    assert subtask.state is State.FAILED
    with pytest.raises(OSError, match="the disk is gone"):
        _ = subtask.done
    with pytest.raises(OSError, match="the disk is gone"):
        subtask.cut(1)
    subtask.close()
    assert pool.in_use == 0


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_no_page_of_a_damaged_segment_is_handed_out(tmp_path: Path, damage: str) -> None:
    """E23, 000-10: the segment is read whole and verified first; it is lost, not shorter."""
    parts = [(0, 0, frame(b"x" * 40))]
    spill_set = write_set(tmp_path / "set", parts)
    path = Path(spill_set.files[0].path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    if damage == "delete":
        path.unlink()
    else:
        path.write_bytes(data if damage == "flip" else data[:-1])
    pool = PagePool(9, 4)
    subtask = RecoveringSubtask(spill_set, SegmentReader(spill_set), [(0, 0)], pool, whole(spill_set))
    subtask.start(threaded=False)
    with pytest.raises(SpillLost, match="redo the spill"):
        subtask.drainer.step(blocking=False)
    assert pool.in_use == 0
    assert subtask.poll() is None


def test_no_file_stays_open(tmp_path: Path) -> None:
    """002-46: neither between two pages nor at the end."""
    spill_set = write_set(tmp_path / "set", [(0, 0, frame(b"x" * 40)), (0, 1, frame(b"y" * 40))])
    subtask = RecoveringSubtask(
        spill_set, SegmentReader(spill_set), [(0, 0), (0, 1)], PagePool(99, 4), whole(spill_set)
    )
    subtask.start(threaded=False)
    before = len(list(Path("/proc/self/fd").iterdir()))
    while subtask.drainer.step(blocking=False):
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_disk_and_pool_are_used_without_the_lock() -> None:
    """002-28: only deliveries and cuts hold it."""
    lock = threading.Lock()

    class Watched(PagePool):
        def try_request(self) -> Page | None:
            assert not lock.locked()
            return super().try_request()

    def look(_: int) -> None:
        assert not lock.locked()

    subtask = stepped(TWO, pool=Watched(9, 4), reader=MemoryReader(bodies(TWO), look), lock=lock)
    deliver_all(subtask)
    assert subtask.drainer.finished


def test_a_page_read_but_not_delivered_is_in_the_tail() -> None:
    """002-29: the cut in the middle of a delivery, exactly."""
    cuts = []

    def cut(index: int) -> None:
        cuts.append(subtask.cut(index + 1).remaining)

    subtask = stepped(TWO, page_size=100, reader=MemoryReader(bodies(TWO), cut))
    deliver_all(subtask)
    spill_set = memory_set(TWO)
    assert [cut.bytes(spill_set) for cut in cuts] == [21, 21, 21]
    assert [cut.slices for cut in cuts] == [(), (Slice(0, 0, 10),), (Slice(0, 0, 10), Slice(1, 0, 8))]


def test_channels_in_recovery_are_marked_also_when_the_tail_is_empty() -> None:
    subtask = stepped(TWO, page_size=100)
    deliver_all(subtask)
    cut = subtask.cut(1)
    assert cut.remaining.cursor == end_of(memory_set(TWO))
    assert sorted(part.segment for part in cut.remaining.slices) == [0, 1, 2]


def test_only_channels_in_recovery_are_marked() -> None:
    """002-22: one that has left it has nothing recovered to store."""
    subtask = stepped(TWO, page_size=100, channels=[(0, 0), (0, 1), (1, 0)])
    deliver_all(subtask)
    assert subtask.poll(gates={1}) is None
    assert subtask.is_live(1)
    assert sorted(part.segment for part in subtask.cut(1).remaining.slices) == [0, 1, 2]


def test_a_closed_drainer_says_so_and_never_that_nothing_is_left() -> None:
    subtask = stepped(TWO)
    drainer = subtask.drainer
    subtask.close()
    with pytest.raises(Closed):
        drainer.snapshot_and_insert_markers(1)
    assert not drainer.step(blocking=True)


def test_a_missing_marker_declines_and_the_next_checkpoint_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """002-10, 002-41: counted, the drain goes on, nothing is lost."""
    subtask = stepped(TWO, page_size=100)
    deliver_all(subtask)
    with monkeypatch.context() as broken:
        broken.setattr(subtask.drainer, "_insert_markers", lambda _: None)
        with pytest.raises(Declined, match="missing"):
            subtask.cut(1)
    with pytest.raises(Declined, match="older"):
        subtask.cut(1)
    assert subtask.cut(2).remaining.bytes(memory_set(TWO)) == 21


def test_pages_of_a_gate_nobody_reads_are_parked_for_one_that_is() -> None:
    """002-33, 000-04, 000-05: with one page; what is parked comes back in order."""
    parts = [(0, 0, b"abcdef"), (1, 0, b"gh"), (0, 0, b"ijk"), (1, 0, b"lm")]
    pool = PagePool(1, 3)
    subtask = stepped(parts, pool=pool)
    assert subtask.drainer.step(blocking=False)
    assert not subtask.drainer.step(blocking=False), "the only page lies in gate 0"
    read = {0: b"", 1: b""}
    for gate in (1, 0):
        while not subtask.is_live(gate):
            page = subtask.poll(gates={gate})
            if page is None:
                assert subtask.drainer.step(blocking=False) or subtask.is_live(gate)
            else:
                read[gate] += page.data.tobytes()
                page.recycle()
    assert read == {0: b"abcdefijk", 1: b"ghlm"}
    assert (pool.in_use, pool.most_in_use) == (0, 1)
    assert subtask.done


def test_nothing_more_is_parked_when_what_the_task_waited_for_has_come() -> None:
    subtask = stepped([(0, 0, b"abc"), (1, 0, b"def"), (0, 0, b"ghi")], pages=2, page_size=3)
    subtask.drainer.step(blocking=False)
    assert subtask.poll(gates={1}) is None
    assert subtask.drainer.step(blocking=False)
    assert not subtask.drainer.step(blocking=False)
    assert not subtask._inbox.channels[0, 0].is_parked


def test_nothing_is_parked_for_a_gate_that_the_task_turned_away_from() -> None:
    subtask = stepped([(0, 0, b"abc"), (0, 0, b"def"), (1, 0, b"ghi")], pages=1, page_size=3)
    subtask.drainer.step(blocking=False)
    assert subtask.poll(gates={1}) is None
    assert subtask.poll(gates={0}) is not None
    assert not subtask.drainer.step(blocking=False)
    assert not subtask._inbox.channels[0, 0].is_parked


def test_parked_pages_are_part_of_a_cut_in_their_place() -> None:
    parts = [(0, 0, b"abcdef"), (1, 0, b"gh"), (0, 0, b"ijk")]
    subtask = stepped(parts, pool=PagePool(1, 3))
    subtask.drainer.step(blocking=False)
    assert subtask.poll(gates={1}) is None
    for _ in range(2):
        subtask.drainer.step(blocking=False)
    cut = subtask.cut(1)
    assert cut.remaining.slices == (Slice(0, 0, 6), Slice(1, 0, 2))
    assert cut.remaining.bytes(memory_set(parts)) == 11


def test_without_a_free_page_and_without_demand_the_drainer_waits_and_release_ends_the_wait() -> None:
    """002-21, 000-08: nothing else is held while it waits."""
    pool = PagePool(1, 3)
    subtask = stepped(TWO, pool=pool, start=False)
    subtask.start()
    within(10, lambda: until(lambda: pool.in_use == 1))
    within(10, subtask.close)
    assert pool.in_use == 0


def test_release_ends_the_wait_also_when_the_task_holds_every_page() -> None:
    """002-21: the page stays the task's, to be given back afterwards."""
    pool = PagePool(1, 3)
    held: list[Page | None] = []

    def run() -> None:
        subtask = stepped(TWO, pool=pool, start=False)
        subtask.start()
        held.append(subtask.poll(10))
        subtask.close()

    within(10, run)
    assert pool.in_use == 1
    assert held[0] is not None
    held[0].recycle()
    assert pool.in_use == 0


def test_delivering_to_a_channel_behind_its_end_is_a_failure_of_the_subtask() -> None:
    subtask = stepped(TWO, page_size=100)
    for channel in subtask._inbox.channels.values():
        channel.end()
    subtask.drainer.run()
    with pytest.raises(IllegalState, match="after the end marker"):
        subtask.poll()
    assert subtask._pool.in_use == 0
