"""The bytes of a virtual channel: input state of (d ← u) in offset order, then output state of (u → d).

Only the two together frame into records, so everything that reads records reads them through here. Chunks stay where
they lie (mapped files, inline state); a window of the logical byte stream is copied together when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cdr_core.errors import CorruptChannelState, Where
from cdr_core.flink.channel_state import DAMAGED
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
        self.input_size = 0
        # Plain numbers, found once: a page is copied in microseconds, and summing up chunks each time is not.
        self._parts: list[tuple[Part, Longs, int, int]] = []
        self.size = 0
        for number, part in enumerate((*inputs, *outputs)):
            logical = _logical_starts(part)
            first, self.size = self.size, self.size + int(logical[-1])
            self._parts.append((part, logical, first, self.size))
            if number < len(inputs):
                self.input_size = self.size

    @property
    def parts(self) -> list[Part]:
        """Return input parts, then output parts."""
        return [part for part, _, _, _ in self._parts]

    def copy(self, begin: int, end: int, target: Bytes, at: int = 0) -> None:
        """Copy logical bytes [begin, end) to ``target[at:]``."""
        if not 0 <= begin <= end <= self.size or at + (end - begin) > len(target):
            raise ValueError(f"range [{begin}, {end}) does not fit a channel of {self.size} bytes")
        for part, logical, first, last in self._parts:
            low, high = max(begin, first), min(end, last)
            if low < high:
                frames.copy_range(
                    part.source, part.chunk_starts, logical, low - first, high - first, target, at + low - begin
                )

    def part_at(self, at: int) -> tuple[Part, Longs, int, int]:
        """Return the part that holds logical byte ``at``, its chunks' logical starts, and where in the
        channel it lies.
        """
        return next(found for found in self._parts if found[2] <= at < found[3])

    def gather(self, starts: Longs, ends: Longs, target: Bytes) -> int:
        """Copy runs of logical bytes, in ascending order, one after another; bytes copied."""
        at = done = 0
        for part, logical, first, last in self._parts:
            upto = int(np.searchsorted(ends, last, side="right"))
            if upto > done:
                at = frames.gather_chunks(
                    part.source, part.chunk_starts, logical, first, starts[done:upto], ends[done:upto], target, at
                )
                done = upto
            if done < len(starts) and starts[done] < last:
                self.copy(int(starts[done]), int(ends[done]), target, at)
                at += int(ends[done] - starts[done])
                done += 1
        if done < len(starts):
            raise ValueError(f"a run ends at {ends[done]}, beyond a channel of {self.size} bytes")
        return at


def _logical_starts(part: Part) -> Longs:
    starts = np.zeros(len(part.chunk_lengths) + 1, np.int64)
    part.chunk_lengths.cumsum(out=starts[1:])
    return starts


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
    """Yield all elements of the logical range [begin, end), which starts and ends on a record boundary.

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
            raise corrupt_frame(channel, base + used, outcome, end)
        if used == 0:
            if fill == end - base:
                raise left_over(channel, base, end)
            data = _grown(data, fill, end - base)
            filled = fill
            continue
        filled = fill - used
        data[:filled] = data[used:fill].copy()
        base, position = base + used, position + count


def _grown(data: Bytes, filled: int, limit: int) -> Bytes:
    """Return a larger buffer that keeps what was read; one record is longer than the window."""
    wanted = max(2 * len(data), int.from_bytes(data[:4].tobytes(), "big") + frames.LENGTH_BYTES)
    grown = np.empty(min(wanted, limit), dtype=np.uint8)
    grown[:filled] = data[:filled]
    return grown


def corrupt_frame(channel: ChannelBytes, offset: int, outcome: int, end: int) -> CorruptChannelState:
    """Return the error for an impossible frame, at a logical offset of a stretch up to ``end``."""
    what = {
        frames.BAD_LENGTH: "an impossible record length of {length}",
        frames.BAD_TAG: "an unknown stream element",
        frames.BAD_ELEMENT: "a stream element of the wrong length",
        frames.BAD_STATUS: "a watermark status that is neither active (0) nor idle (-1)",
        frames.BAD_ATTRIBUTES: "record attributes whose flag is neither 0 nor 1",
        frames.CUT_SHORT: "the channel ends inside a record, {length} bytes are announced and {there} are there",
    }[outcome]
    field = np.empty(frames.LENGTH_BYTES, np.uint8)
    channel.copy(offset, offset + frames.LENGTH_BYTES, field)
    length = int.from_bytes(field.tobytes(), "big", signed=True)
    return _damaged(channel, offset, what.format(length=length, there=end - offset - frames.LENGTH_BYTES))


def left_over(channel: ChannelBytes, begin: int, end: int) -> CorruptChannelState:
    """Return the error for bytes behind the last whole frame that are too few to announce another."""
    needed = frames.LENGTH_BYTES
    what = f"the channel ends inside a record, {end - begin} of the {needed} bytes of its length are left over"
    return _damaged(channel, begin, what)


def _damaged(channel: ChannelBytes, offset: int, what: str) -> CorruptChannelState:
    return CorruptChannelState(what, where=replace(channel.where, offset=offset), hint=DAMAGED)
