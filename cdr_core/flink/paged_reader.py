"""Elements of an ambiguous channel, read through the one read page of the task.

Every byte is copied chunk → page → batch. A batch is a stretch of whole elements, small enough to stay in a cache and
large enough that finding and hashing keys costs nothing per call; a record that crosses from one filling of the page
to the next is put together there. A record from 5 MB on does not grow the batch: its bytes collect in a file of its
own, which is mapped while the record is examined and removed afterwards in any case.

Memory: the page, a batch of 1 MiB (of 5 MB while a record of that size passes), 17 bytes an element of the batch.
"""

from __future__ import annotations

import mmap
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cdr_core.errors import CorruptChannelState
from cdr_core.flink.read_page import ReadPage
from cdr_core.flink.virtual_channel import ChannelBytes, Window, corrupt_frame, left_over
from cdr_core.kernels import frames, page_frames

Bytes = npt.NDArray[np.uint8]

BATCH = 1024 * 1024
"""Bytes of whole elements that are handed on at once."""

SPOOLED_FROM = 5_000_000
"""Bytes of a frame from which on it is put together in a file instead of in memory."""


def paged_windows(
    channel: ChannelBytes, begin: int, end: int, position: int, page: ReadPage, spool: Path
) -> Generator[Window]:
    """Yield :func:`~cdr_core.flink.virtual_channel.windows` read through ``page``; long records in files below
    ``spool``.

    The page is given back before a window is yielded and on every error. Close the iterator (``contextlib.closing``) so
    that an error of the caller removes the file of a long record too.
    """
    batch = _Batch(channel, begin, end, position, page)
    at = begin
    while at < end and batch.failure is None:
        window = batch.whole_elements()
        if window is not None and not batch.has_room(at):
            yield window
            batch.drop_whole()
        long = batch.long_frame(at)
        if long:
            with _spooled(spool) as path:
                at = batch.spool(path, long, at)
                yield batch.mapped(path, long)
            continue
        at = batch.fill(at)
    window = batch.whole_elements()
    if window is not None:
        yield window
    batch.require_nothing_left()


class _Batch:
    """Whole elements taken out of the page so far, and the head of the next one behind them."""

    def __init__(self, channel: ChannelBytes, begin: int, end: int, position: int, page: ReadPage) -> None:
        self._channel, self._page = channel, page
        self._base, self._end, self._position = begin, end, position
        self._framed = self._filled = self._count = 0
        self._spanning_from = -1
        self.failure: CorruptChannelState | None = None
        """The error of an impossible frame. Whole elements before it are yielded first: they may have a fault of their
        own, and the first one counts, whichever batch it is in.
        """
        self._data = np.empty(0, np.uint8)
        self._make_room(min(BATCH + page.size, end - begin))

    def _make_room(self, size: int) -> None:
        data, tags = np.empty(size, np.uint8), np.empty(size // frames.SMALLEST_FRAME + 1, np.int8)
        data[: self._filled] = self._data[: self._filled]
        self._data, self._tags = data, tags
        self._starts, self._ends = np.empty(len(tags), np.int64), np.empty(len(tags), np.int64)

    def has_room(self, at: int) -> bool:
        """Return whether the page from logical offset ``at`` on fits behind what is there."""
        return self._filled + min(self._page.size, self._end - at) <= len(self._data)

    def whole_elements(self) -> Window | None:
        """Return the whole elements, until ``drop_whole``; ``None`` if there is none."""
        if not self._count:
            return None
        n = self._count
        return Window(self._data, self._base, self._position, self._starts[:n], self._ends[:n], self._tags[:n])

    def drop_whole(self) -> None:
        """Make room: only the head of the next element stays."""
        head = self._filled - self._framed
        self._data[:head] = self._data[self._framed : self._filled].copy()
        self._base, self._position = self._base + self._framed, self._position + self._count
        self._framed = self._count = 0
        self._filled = head

    def long_frame(self, at: int) -> int:
        """Return the number of bytes of the frame whose head fills the batch, if it belongs into a file; the batch
        grows for a shorter.
        """
        if self._count or self.has_room(at):
            return 0
        length = int.from_bytes(self._data[: frames.LENGTH_BYTES].tobytes(), "big") + frames.LENGTH_BYTES
        if length >= SPOOLED_FROM:
            return length
        self._make_room(length + self._page.size)
        return 0

    def fill(self, at: int) -> int:
        """Fill the batch with pages from logical offset ``at`` on while there is room; return where the next one
        begins.
        """
        part, logical, first, last = self._channel.part_at(at)
        room = len(self._data) - self._filled
        whole = min(min(last, self._end) - at, room) // self._page.size
        if not whole:
            return self._fill_one(at)
        upto = at + whole * self._page.size
        memory = self._page.take()
        try:
            self._count, self._framed, self._filled, outcome, spanning, spanning_from = page_frames.take_pages(
                part.source, part.chunk_starts, logical, at - first, whole, memory, self._data, self._framed,
                self._filled, self._end - self._base, self._starts, self._ends, self._tags, self._count,
                self._spanning_from - self._base,
            )  # fmt: skip
        finally:
            self._page.give_back(upto - at)
        if outcome != frames.OK:
            self.failure = corrupt_frame(self._channel, self._base + self._framed, outcome, self._end)
        self._page.spanning += spanning
        self._spanning_from = self._base + spanning_from
        return upto

    def _fill_one(self, at: int) -> int:
        """Read one page that ends with the channel's stretch, or lies in several of its parts; return where it ends."""
        upto = min(at + self._page.size, self._end)
        memory = self._page.take()
        try:
            self._channel.copy(at, upto, memory)
            self._take_out(memory, 0, upto - at)
        finally:
            self._page.give_back(upto - at)
        return upto

    def _take_out(self, memory: Bytes, begin: int, end: int) -> None:
        self._count, self._framed, outcome = page_frames.take_out(
            memory, begin, end, self._data, self._framed, self._filled, self._end - self._base,
            self._starts, self._ends, self._tags, self._count,
        )  # fmt: skip
        self._filled += end - begin
        if outcome != frames.OK:
            self.failure = corrupt_frame(self._channel, self._base + self._framed, outcome, self._end)
        self._note_spanning()

    def _note_spanning(self) -> None:
        """Count a record that spans fillings of the page, once: its head is left when the page goes back."""
        begin = self._base + self._framed
        if self._framed < self._filled and begin != self._spanning_from:
            self._page.spanning += 1
            self._spanning_from = begin

    def spool(self, path: Path, length: int, at: int) -> int:
        """Write the whole frame to a file; what follows it in the last page is the beginning of the batch."""
        record_end = self._base + length
        with path.open("xb") as file:
            file.write(self._data[: self._filled].data)
            while at < record_end:
                upto = min(at + self._page.size, self._end)
                memory = self._page.take()
                try:
                    self._channel.copy(at, upto, memory)
                    part = min(upto, record_end) - at
                    file.write(memory[:part].data)
                    if upto >= record_end:
                        self._begin_anew(record_end)
                        self._take_out(memory, part, upto - at)
                finally:
                    self._page.give_back(upto - at)
                at = upto
        self._page.spooled += 1
        return at

    def _begin_anew(self, base: int) -> None:
        self._base, self._position = base, self._position + 1
        self._framed = self._filled = self._count = 0

    def mapped(self, path: Path, length: int) -> Window:
        """Return the spooled record, from its file. A private map is writable, as other windows are: one kind for
        kernels.
        """
        with path.open("rb") as file:
            data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
        starts, ends, tags = np.empty(1, np.int64), np.empty(1, np.int64), np.empty(1, np.int8)
        base = self._base - length
        found, used, outcome = frames.scan_frames(data, length, starts, ends, tags, length)
        if outcome != frames.OK:
            raise corrupt_frame(self._channel, base, outcome, self._end)
        assert (found, used, len(data)) == (1, length, length), "the file holds exactly the frame it was made for"
        return Window(data, base, self._position - 1, starts, ends, tags)

    def require_nothing_left(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._framed < self._filled:
            raise left_over(self._channel, self._base + self._framed, self._end)


@contextmanager
def _spooled(directory: Path) -> Iterator[Path]:
    """Yield a new name for the file of one record; the file is removed afterwards."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"record-{uuid.uuid4().hex}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
