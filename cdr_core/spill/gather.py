"""From runs of a virtual channel to bodies of segments, with one copy.

A run may be as long as a whole split, because what passes through a filter is one run. It is cut here, between records,
so that segments stay near their size and memory does not depend on the data.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import Tally
from cdr_core.errors import Unbalanced, Where
from cdr_core.flink.virtual_channel import ChannelBytes
from cdr_core.kernels import fingerprint, frames, tallying
from cdr_core.spill.writer import ChannelId, SpillWriter

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


class Fold:
    """What was added, from its own bytes: its records in the order they have, and how many elements by tag."""

    def __init__(self) -> None:
        self._sums = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64)
        self._kinds = np.zeros(frames.TAGS, np.int64)

    def take(self, body: Bytes, most: int) -> tuple[int, int]:
        """Add the whole frames at the head of ``body``, at most so many: how many, and their bytes."""
        found, used, _, _ = tallying.tally_frames(body, len(body), most, self._sums, self._kinds)
        return found, used

    @property
    def tally(self) -> Tally:
        return Tally.of_fold(self._sums[0])

    @property
    def kinds(self) -> list[int]:
        """By tag."""
        counts: list[int] = self._kinds.tolist()
        return counts


class Gatherer:
    """Adds runs to a set, at most ``window`` bytes at once or one longer record."""

    def __init__(self, writer: SpillWriter, window: int) -> None:
        self._writer, self._window = writer, window

    def add(self, channel: ChannelId, source: ChannelBytes, runs: list[Longs], fold: Fold) -> Iterator[Bytes]:
        """Add the runs (start, end, first position, elements) in order, and fold them; the bytes, piece by piece, each
        valid until the next one.
        """
        starts, ends = runs[0], runs[1]
        first = 0
        while first < len(starts):
            base = int(starts[first])
            last = int(np.searchsorted(ends, base + self._window, side="right"))
            if last > first:
                yield self._short(channel, source, [column[first:last] for column in runs], fold)
            else:
                last = first + 1
                yield from self._long(channel, source, *(int(column[first]) for column in runs), fold=fold)
            first = last

    def whole(self, channel: ChannelId, body: Bytes, positions: Longs, where: Where, fold: Fold) -> None:
        """Add elements that lie in memory."""
        target = self._writer.room(channel, len(body))
        target[:] = body
        self._added(target, positions, where, fold)

    def _added(self, body: Bytes, positions: Longs, where: Where, fold: Fold) -> Bytes:
        """Fold what was put into the writer's room, if it is exactly as many elements as were selected."""
        found, used = fold.take(body, len(positions))
        if (found, used) != (len(positions), len(body)):
            raise Unbalanced(f"spill gathered {found} elements where {len(positions)} were selected", where=where)
        self._writer.added(len(body), positions)
        return body

    def _short(self, channel: ChannelId, source: ChannelBytes, runs: list[Longs], fold: Fold) -> Bytes:
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
        return self._added(target, positions, source.where, fold)

    def _long(
        self, channel: ChannelId, source: ChannelBytes, start: int, end: int, position: int, count: int, *, fold: Fold
    ) -> Iterator[Bytes]:
        """One run longer than the window: copied to its place at once and cut after the last whole record."""
        at, left, wanted = start, count, self._window
        while at < end:
            size = min(wanted, end - at)
            target = self._writer.room(channel, size)
            source.copy(at, at + size, target)
            # The end of a run is the end of a record, so a frame that leaves the room is one that the window cut.
            found, used = fold.take(target, left)
            if not found:
                wanted = self._longer(target, size, end - at, source)
                continue
            self._writer.added(used, np.arange(position, position + found, dtype=np.int64))
            yield target[:used]
            at, position, left, wanted = at + used, position + found, left - found, self._window
        if left:
            raise Unbalanced(f"spill gathered {count - left} elements where {count} were selected", where=source.where)

    def _longer(self, target: Bytes, size: int, rest: int, source: ChannelBytes) -> int:
        """Bytes of the first record, which the window does not hold."""
        wanted = int.from_bytes(target[: frames.LENGTH_BYTES].tobytes(), "big") + frames.LENGTH_BYTES
        if not size < wanted <= rest:
            raise Unbalanced(f"spill found a record of {wanted} bytes in the last {rest} of a run", where=source.where)
        return wanted
