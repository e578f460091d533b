"""The committed position of a drain: what no channel has been given yet."""

from __future__ import annotations

from collections import deque

from cdr_core.drain.remaining import Remaining, Slice
from cdr_core.spill.cursor import Position, cursor_at, position_of
from cdr_core.spill.segments import SpillSet


class Tail:
    """Moves forward only, and only by what was delivered. Guarded by the subtask's lock once the drain has begun."""

    def __init__(self, spill_set: SpillSet, remaining: Remaining) -> None:
        self._set = spill_set
        self._bytes: dict[tuple[int, int], int] = {}
        for part in remaining.parts(spill_set):
            key = self.channel_of(part)
            self._bytes[key] = self._bytes.get(key, 0) + part.length
        self._slices = deque(part for part in remaining.slices if part.length)
        at = position_of(spill_set, remaining.cursor)
        self._segment, self._offset = at.segment, at.offset
        self._skip_exhausted()

    def channel_of(self, part: Slice) -> tuple[int, int]:
        """The (gate, channel) a slice belongs to."""
        segment = self._set.segments[part.segment]
        return segment.gate, segment.channel

    def channels(self) -> frozenset[tuple[int, int]]:
        """Channels that had something to come when the drain began."""
        return frozenset(self._bytes)

    def bytes_of(self, key: tuple[int, int]) -> int:
        """What is still to come for a channel."""
        return self._bytes.get(key, 0)

    def head(self) -> Slice | None:
        """What comes next, to the end of its slice or segment; ``None`` at the end."""
        if self._slices:
            return self._slices[0]
        if self._segment == len(self._set.segments):
            return None
        return Slice(self._segment, self._offset, self._set.segments[self._segment].length - self._offset)

    def advance(self, part: Slice) -> None:
        """``part``, the beginning of the head, was delivered."""
        head = self.head()
        assert head is not None, "nothing is left to deliver"
        assert part == head.take(part.length), "delivery follows the order of the set"
        self._bytes[self.channel_of(part)] -= part.length
        if self._slices:
            rest = self._slices.popleft().skip(part.length)
            if rest.length:
                self._slices.appendleft(rest)
        else:
            self._offset += part.length
            self._skip_exhausted()

    def remaining(self) -> Remaining:
        """A copy of the position, for a cut."""
        return Remaining(tuple(self._slices), cursor_at(self._set, Position(self._segment, self._offset)))

    def _skip_exhausted(self) -> None:
        segments = self._set.segments
        while self._segment < len(segments) and self._offset >= segments[self._segment].length:
            self._segment, self._offset = self._segment + 1, 0
