"""From runs of a virtual channel to bodies of segments, with one copy.

A run may be as long as a whole split, because what passes through a filter is one run. It is cut here, between records,
so that segments stay near their size and memory does not depend on the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdr_core.errors import Unbalanced, Where
from cdr_core.flink.virtual_channel import ChannelBytes
from cdr_core.kernels import frames
from cdr_core.spill.writer import ChannelId, SpillWriter

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """Elements that were just added to a set: element i is ``body[starts[i]:ends[i]]``. Valid until the next one."""

    body: Bytes
    starts: Longs
    ends: Longs
    tags: npt.NDArray[np.int8]


class Gatherer:
    """Adds runs to a set, at most ``window`` bytes at once or one longer record; its buffers are made once."""

    def __init__(self, writer: SpillWriter, window: int) -> None:
        self._writer, self._window = writer, window
        self._starts, self._ends = np.empty(0, np.int64), np.empty(0, np.int64)
        self._tags = np.empty(0, np.int8)

    def add(self, channel: ChannelId, source: ChannelBytes, runs: list[Longs]) -> Iterator[Gathered]:
        """Add the runs (start, end, first position, elements) in order; what was added, piece by piece."""
        starts, ends = runs[0], runs[1]
        first = 0
        while first < len(starts):
            base = int(starts[first])
            last = int(np.searchsorted(ends, base + self._window, side="right"))
            if last > first:
                yield self._short(channel, source, [column[first:last] for column in runs])
            else:
                last = first + 1
                yield from self._long(channel, source, *(int(column[first]) for column in runs))
            first = last

    def whole(self, channel: ChannelId, body: Bytes, positions: Longs, where: Where) -> Gathered:
        """Add elements that lie in memory."""
        target = self._writer.room(channel, len(body))
        target[:] = body
        return self._added(target, positions, where)

    def _added(self, body: Bytes, positions: Longs, where: Where) -> Gathered:
        """Count what was put into the writer's room, if it is exactly as many elements as were selected."""
        gathered = self._scan(body, len(positions))
        if (len(gathered.starts), len(gathered.body)) != (len(positions), len(body)):
            found = len(gathered.starts)
            raise Unbalanced(f"spill gathered {found} elements where {len(positions)} were selected", where=where)
        self._writer.added(len(body), positions)
        return gathered

    def _short(self, channel: ChannelId, source: ChannelBytes, runs: list[Longs]) -> Gathered:
        """Neighbouring runs within one window."""
        start, end, position, count = runs
        base, size = int(start[0]), int((end - start).sum())
        elements = int(count.sum())
        target = self._writer.room(channel, size)
        if len(start) == 1:
            source.copy(base, base + size, target)
        else:
            source.gather(start, end, target)
        positions = np.empty(elements, np.int64)
        frames.expand_positions(position, count, positions)
        return self._added(target, positions, source.where)

    def _long(
        self, channel: ChannelId, source: ChannelBytes, start: int, end: int, position: int, count: int
    ) -> Iterator[Gathered]:
        """One run longer than the window: copied to its place at once and cut after the last whole record."""
        at, left, wanted = start, count, self._window
        while at < end:
            size = min(wanted, end - at)
            target = self._writer.room(channel, size)
            source.copy(at, at + size, target)
            gathered = self._scan(target, left)
            found, used = len(gathered.starts), len(gathered.body)
            if not found:
                wanted = self._longer(target, size, end - at, source)
                continue
            self._writer.added(used, np.arange(position, position + found, dtype=np.int64))
            yield gathered
            at, position, left, wanted = at + used, position + found, left - found, self._window
        if left:
            raise Unbalanced(f"spill gathered {count - left} elements where {count} were selected", where=source.where)

    def _longer(self, target: Bytes, size: int, rest: int, source: ChannelBytes) -> int:
        """Bytes of the first record, which the window does not hold."""
        wanted = int.from_bytes(target[: frames.LENGTH_BYTES].tobytes(), "big") + frames.LENGTH_BYTES
        if not size < wanted <= rest:
            raise Unbalanced(f"spill found a record of {wanted} bytes in the last {rest} of a run", where=source.where)
        return wanted

    def _scan(self, body: Bytes, elements: int) -> Gathered:
        """The whole frames at the head of ``body``, at most ``elements``."""
        room = min(elements, len(body) // (frames.LENGTH_BYTES + 1) + 1)
        if len(self._starts) < room:
            self._starts, self._ends = np.empty(room, np.int64), np.empty(room, np.int64)
            self._tags = np.empty(room, np.int8)
        starts, ends, tags = self._starts[:room], self._ends[:room], self._tags[:room]
        # The end of a run is the end of a record, so a frame that leaves the body is one that the window cut.
        found, used, _ = frames.scan_frames(body, len(body), starts, ends, tags, np.iinfo(np.int64).max)
        return Gathered(body[:used], starts[:found], ends[:found], tags[:found])
