"""The bytes of a virtual channel: input state of (d ← u) in offset order, then output state of (u → d).

Only the two together frame into records, so everything that reads records reads them through here. Chunks stay where
they lie (mapped files, inline state); a window of the logical byte stream is copied together when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdr_core.errors import CorruptChannelState, Where
from cdr_core.kernels import frames

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Chunks of one side that lie in one buffer, in logical order."""

    source: Bytes
    chunk_starts: Longs
    chunk_lengths: Longs

    @property
    def size(self) -> int:
        return int(self.chunk_lengths.sum())


class ChannelBytes:
    """Input parts, then output parts, as one stream of ``size`` bytes; the first ``input_size`` are input state."""

    def __init__(self, inputs: tuple[Part, ...], outputs: tuple[Part, ...], where: Where) -> None:
        self.where = where
        self.input_size = sum(part.size for part in inputs)
        self._parts = [(part, _logical_starts(part)) for part in (*inputs, *outputs)]
        self._begins = np.cumsum([0, *(part.size for part, _ in self._parts)])
        self.size = int(self._begins[-1])

    def copy(self, begin: int, end: int, target: Bytes, at: int = 0) -> None:
        """Copy logical bytes [begin, end) to ``target[at:]``."""
        if not 0 <= begin <= end <= self.size or at + (end - begin) > len(target):
            raise ValueError(f"range [{begin}, {end}) does not fit a channel of {self.size} bytes")
        for (part, logical), first in zip(self._parts, self._begins, strict=False):
            low, high = max(begin, int(first)), min(end, int(first) + part.size)
            if low < high:
                frames.copy_range(
                    part.source, part.chunk_starts, logical, low - first, high - first, target, at + low - begin
                )


def _logical_starts(part: Part) -> Longs:
    return np.concatenate(([0], np.cumsum(part.chunk_lengths, dtype=np.int64)))


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Whole elements of a stretch of a channel: element i is ``data[starts[i]:ends[i]]``; ``data[0]`` is logical
    ``base``.

    ``position`` is the first element's place in the virtual channel. The arrays are valid until the next window.
    """

    data: Bytes
    base: int
    position: int
    starts: Longs
    ends: Longs
    tags: npt.NDArray[np.int8]

    @property
    def records(self) -> npt.NDArray[np.bool_]:
        return self.tags <= frames.TAG_RECORD


def windows(channel: ChannelBytes, begin: int, end: int, position: int, window_size: int) -> Iterator[Window]:
    """All elements of the logical range [begin, end), which starts and ends on a record boundary.

    Memory: one buffer of ``window_size``, grown only for a record that does not fit. A frame that cannot be real, and
    bytes left over at the end, are :class:`CorruptChannelState` with the offset.
    """
    data = np.empty(min(max(window_size, 16), max(end - begin, 1)), dtype=np.uint8)
    capacity = max(len(data) // 16, 16)
    starts, ends = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    tags = np.empty(capacity, np.int8)
    base, filled = begin, 0
    while base < end:
        fill = min(len(data), end - base)
        channel.copy(base + filled, base + fill, data, filled)
        count, used, outcome = frames.scan_frames(data, fill, starts, ends, tags, end - base)
        if count:
            yield Window(data, base, position, starts[:count], ends[:count], tags[:count])
        if outcome not in (frames.OK, frames.FULL):
            raise _corrupt(channel, base + used, outcome)
        if used == 0:
            if fill == end - base:
                raise _left_over(channel, base, end)
            data = _grown(data, fill, end - base)
            filled = fill
            continue
        filled = fill - used
        data[:filled] = data[used:fill].copy()
        base, position = base + used, position + count


def _grown(data: Bytes, filled: int, limit: int) -> Bytes:
    """A larger buffer that keeps what was read; one record is longer than the window."""
    wanted = max(2 * len(data), int.from_bytes(data[:4].tobytes(), "big") + frames.LENGTH_BYTES)
    grown = np.empty(min(wanted, limit), dtype=np.uint8)
    grown[:filled] = data[:filled]
    return grown


def _corrupt(channel: ChannelBytes, offset: int, outcome: int) -> CorruptChannelState:
    what = {
        frames.BAD_LENGTH: "an impossible record length",
        frames.BAD_TAG: "an unknown stream element",
        frames.BAD_ELEMENT: "a stream element of the wrong length",
    }[outcome]
    return CorruptChannelState(what, where=_at(channel, offset), hint="the checkpoint is damaged, use another one")


def _left_over(channel: ChannelBytes, begin: int, end: int) -> CorruptChannelState:
    return CorruptChannelState(
        f"the channel ends inside a record, {end - begin} bytes are left over",
        where=_at(channel, begin),
        hint="the checkpoint is damaged, use another one",
    )


def _at(channel: ChannelBytes, offset: int) -> Where:
    where = channel.where
    return Where(where.checkpoint, where.exchange, where.operator, where.subtask, where.gate, where.channel, offset)
