"""Handles of channel state as columns: a checkpoint may have millions of channels."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdr_core.verify.cursor import Cursor
from cdr_core.verify.handles import Stream, read_stream

Longs = npt.NDArray[np.int64]

_PLACE_COUNT, _PLACE_SIZE_COUNT = struct.Struct(">iii"), struct.Struct(">iiqi")
_COLUMNS = 6


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A channel of one side: subtask, then (gate, channel) of an input or (partition, subpartition) of an output."""

    subtask: int
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class Handle:
    """The chunks of a channel: ascending offsets of their length fields in the stream, and the size that
    Flink stored.
    """

    stream: Stream
    offsets: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Handles:
    """One side of an operator, a row per channel, ordered by subtask, ``a`` and ``b``.

    Row i has the stream ``streams[stream[i]]`` and the offsets ``offsets[first[i]:first[i + 1]]``.
    """

    subtask: Longs
    a: Longs
    b: Longs
    size: Longs
    stream: Longs
    first: Longs
    offsets: Longs
    streams: tuple[Stream, ...]

    def __len__(self) -> int:
        return len(self.subtask)

    def take(self, rows: Longs) -> Iterator[Handle | None]:
        """Yield the handle of each of these rows; ``None`` for row −1."""
        found = rows[rows >= 0]
        columns = self.first[found], self.first[found + 1], self.stream[found], self.size[found]
        values = zip(*(column.tolist() for column in columns), strict=True)
        for row in rows.tolist():
            if row < 0:
                yield None
                continue
            begin, end, stream, size = next(values)
            yield Handle(self.streams[stream], tuple(self.offsets[begin:end].tolist()), size)

    def items(self) -> Iterator[tuple[Place, Handle]]:
        """Yield every channel with its handle."""
        places = zip(self.subtask.tolist(), self.a.tolist(), self.b.tolist(), strict=True)
        for place, handle in zip(places, self.take(np.arange(len(self))), strict=True):
            assert handle is not None, "every row has a handle"
            yield Place(*place), handle


class HandleBuilder:
    """Reads the handles of one side of an operator."""

    def __init__(self) -> None:
        self._rows = array("q")
        self._offsets = bytearray()
        self._streams: list[Stream] = []
        self._last = b""
        """The bytes of the previous stream: consecutive handles often name the same one."""

    def add(self, cursor: Cursor, subtask: int) -> None:
        """Read the handle of one channel."""
        a, b, count = cursor.unpack(_PLACE_COUNT)
        self._offsets += cursor.take(8 * self._bounded(cursor, count))
        size = cursor.i64()
        self._rows.extend((subtask, a, b, size, self._stream(cursor), count))

    def add_merged(self, cursor: Cursor, subtask: int) -> tuple[int, int]:
        """Read one handle of many channels; here the size precedes the offsets, in a single handle it follows them.

        Return the size that the handles state together, and the sum of their sizes.
        """
        stated, added = cursor.i64(), 0
        stream = self._stream(cursor)
        length = cursor.i32()
        end = cursor.at + length
        for _ in range(cursor.count(20)):
            a, b, size, count = cursor.unpack(_PLACE_SIZE_COUNT)
            self._offsets += cursor.take(8 * self._bounded(cursor, count))
            self._rows.extend((subtask, a, b, size, stream, count))
            added += size
        if cursor.at != end:
            raise cursor.corrupt("a merged channel handle does not have the length that it states")
        return stated, added

    def _bounded(self, cursor: Cursor, count: int) -> int:
        if count < 0 or 8 * count > cursor.left:
            raise cursor.corrupt(f"{count} entries are announced where {cursor.left} bytes are left")
        return count

    def _stream(self, cursor: Cursor) -> int:
        if self._last and cursor.skip(self._last):
            return len(self._streams) - 1
        begin = cursor.at
        stream = read_stream(cursor)
        if stream is None:
            raise cursor.corrupt("channel state names no stream")
        self._streams.append(stream)
        self._last = cursor.between(begin, cursor.at)
        return len(self._streams) - 1

    def done(self, cursor: Cursor) -> Handles:
        """Return all handles; a channel that is described twice is corrupt."""
        rows = np.frombuffer(self._rows, np.int64).reshape(-1, _COLUMNS)
        order = np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))
        subtask, a, b, size, stream, count = rows[order].T.copy()
        again = (np.diff(subtask) == 0) & (np.diff(a) == 0) & (np.diff(b) == 0)
        if again.any():
            at = int(np.flatnonzero(again)[0])
            raise cursor.corrupt(f"the channel ({a[at]}, {b[at]}) of subtask {subtask[at]} is described twice")
        offsets = np.frombuffer(self._offsets, ">i8").astype(np.int64)
        row_of = np.repeat(np.argsort(order), rows[:, 5])
        # Chunks are in the order of the file, not of the list.
        offsets = offsets[np.lexsort((offsets, row_of))]
        return Handles(subtask, a, b, size, stream, np.append(0, np.cumsum(count)), offsets, tuple(self._streams))


NO_HANDLES = HandleBuilder().done(Cursor(b"", ""))
