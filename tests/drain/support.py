"""What the drain's tests share: spill sets on disk or in memory, and a consumer that puts records together again."""

from __future__ import annotations

import faulthandler
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import google_crc32c
import numpy as np

from cdr_core.drain.channel import Key
from cdr_core.drain.live import LiveView
from cdr_core.drain.pages import Bytes, Page, PagePool
from cdr_core.drain.remaining import Remaining, Slice, whole
from cdr_core.drain.subtask import RecoveringSubtask
from cdr_core.spill.segments import HEADER, Segment, SpillFile, SpillSet
from cdr_core.spill.writer import SpillWriter

LENGTH = struct.Struct(">i")

Part = tuple[int, int, bytes]
"""(gate, channel, body): a segment of a set to be made."""


class Lost(AssertionError):
    """Bytes are missing, doubled or out of order, or a job does not end."""


def frame(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


def frames(data: bytes) -> list[bytes]:
    """The payloads of whole frames; a rest is an error."""
    found, at = whole_frames(data)
    if at != len(data):
        raise Lost("the data ends inside a record")
    return found


def whole_frames(data: bytes) -> tuple[list[bytes], int]:
    """The payloads of the frames that are whole, and where they end."""
    found, at = [], 0
    while len(data) - at >= LENGTH.size:
        (length,) = LENGTH.unpack_from(data, at)
        if length < 0:
            raise Lost("these bytes are not the records that were spilled")
        end = at + LENGTH.size + length
        if end > len(data):
            break
        found.append(data[at + LENGTH.size : end])
        at = end
    return found, at


def write_set(directory: Path, parts: Iterable[Part], segment_size: int = 1, file_size: int = 64) -> SpillSet:
    """A real set, by the shipped writer; every part becomes a segment of its own."""
    with SpillWriter(directory, 3, segment_size, file_size) as writer:
        for number, (gate, channel, body) in enumerate(parts):
            data = np.frombuffer(body, np.uint8)
            count = np.arange(len(frames(body)), dtype=np.int64)
            writer.append(number, gate, channel, data, 0, np.array([0]), np.array([len(body)]), count)
        return writer.seal(())


class MemoryReader:
    """Bodies in memory in place of files. ``before`` runs at each read: where another thread would get its turn."""

    def __init__(self, bodies: Sequence[bytes], before: Callable[[int], None] | None = None) -> None:
        self.bodies = bodies
        self.before = before
        self.reads: list[int] = []

    def body(self, index: int) -> Bytes:
        self.reads.append(index)
        if self.before is not None:
            self.before(index)
        return np.frombuffer(self.bodies[index], np.uint8)


def memory_set(parts: Sequence[Part], file_size: int = 100) -> SpillSet:
    """A set as the writer would describe it, without files; read it with a :class:`MemoryReader` of its bodies."""
    files, segments, offset = [0], [], 0
    for number, (gate, channel, body) in enumerate(parts):
        if offset >= file_size:
            files.append(0)
            offset = 0
        crc = google_crc32c.value(body)
        segments.append(Segment(len(files) - 1, offset, gate, channel, len(body), 1, crc, number))
        offset += HEADER.size + len(body)
        files[-1] = offset
    named = tuple(SpillFile(f"memory-{index}", size) for index, size in enumerate(files) if size)
    return SpillSet(0, named, tuple(segments), None, ())


def bodies(parts: Iterable[Part]) -> list[bytes]:
    return [body for _, _, body in parts]


def keys(parts: Iterable[Part]) -> list[Key]:
    return sorted({(gate, channel) for gate, channel, _ in parts})


def by_channel(parts: Iterable[Part]) -> dict[Key, bytes]:
    """The bytes of each channel in order."""
    found: dict[Key, bytes] = {}
    for gate, channel, body in parts:
        found[gate, channel] = found.get((gate, channel), b"") + body
    return found


def remaining_parts(remaining: Remaining, spill_set: SpillSet, source: Sequence[bytes]) -> list[Part]:
    """What is left, as bytes with their channel, in order."""
    found = []
    for part in remaining.parts(spill_set):
        segment = spill_set.segments[part.segment]
        found.append((segment.gate, segment.channel, source[part.segment][part.offset : part.end]))
    return found


def stepped(
    parts: Sequence[Part],
    pages: int = 100,
    page_size: int = 8,
    *,
    remaining: Remaining | None = None,
    reader: MemoryReader | None = None,
    pool: PagePool | None = None,
    channels: Iterable[Key] | None = None,
    start: bool = True,
    **options: object,
) -> RecoveringSubtask:
    """A subtask over a set in memory whose drainer is driven by hand."""
    spill_set = memory_set(parts)
    subtask = RecoveringSubtask(
        spill_set,
        reader or MemoryReader(bodies(parts)),
        keys(parts) if channels is None else channels,
        pool or PagePool(pages, page_size),
        remaining or whole(spill_set),
        **options,  # type: ignore[arg-type]  # passed on as they are
    )
    if start:
        subtask.start(threaded=False)
    return subtask


class Consumer:
    """Whole records become output; the head of a record that is not yet whole is kept, by slice and by bytes."""

    def __init__(self) -> None:
        self.records: list[tuple[Key, bytes]] = []
        self._held: dict[Key, tuple[list[Slice], bytes]] = {}

    def take(self, page: Page) -> None:
        slices, data = self._held.get((page.gate, page.channel), ([], b""))
        slices.append(page.slice)
        data += page.data.tobytes()
        page.recycle()
        records, used = whole_frames(data)
        self.records += [((page.gate, page.channel), record) for record in records]
        self._held[page.gate, page.channel] = (_skip(slices, used), data[used:])

    def half_records(self) -> tuple[Slice, ...]:
        return tuple(part for slices, _ in self._held.values() for part in slices)

    def is_clean(self) -> bool:
        return not any(data for _, data in self._held.values())


def _skip(slices: list[Slice], length: int) -> list[Slice]:
    kept = []
    for part in slices:
        skipped = min(length, part.length)
        length -= skipped
        if skipped < part.length:
            kept.append(part.skip(skipped))
    return kept


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread does; the caller bounds the time."""
    while not condition():
        time.sleep(0.001)


def within(seconds: float, work: Callable[[], None]) -> None:
    """Run something in a thread; longer than this is a hang, and a failure with the stacks of all threads."""
    failure: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        faulthandler.dump_traceback(all_threads=True)
        raise TimeoutError(f"still running after {seconds} s")
    if failure:
        raise failure[0]


TWO_GATES: list[Part] = [(0, 0, frame(b"a")), (1, 0, frame(b"b")), (0, 1, frame(b"c")), (1, 0, frame(b"d"))]


def run_to_end(subtask: RecoveringSubtask, consumer: Consumer | None = None) -> None:
    consumer = consumer or Consumer()
    for _ in range(1000):
        if subtask.done:
            return
        subtask.drainer.step(blocking=False)
        page = subtask.poll()
        if page is not None and page.is_live:
            page.recycle()
        elif page is not None:
            consumer.take(page)
    raise AssertionError("not done")


class Views:
    """Live views that a test can write to."""

    def __init__(self) -> None:
        self.all: dict[tuple[int, int], LiveView] = {}

    def __call__(self, gate: int, channel: int) -> LiveView:
        return self.all.setdefault((gate, channel), LiveView())
