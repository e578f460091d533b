"""What of a spill set is still to be delivered, by reference: the set is sealed, so a cut copies no data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from cdr_core.errors import Corrupt, Where, other_version
from cdr_core.spill.cursor import Cursor, position_of, start_of
from cdr_core.spill.segments import SpillSet

REMAINING_VERSION = 1


@dataclass(frozen=True, slots=True)
class Slice:
    """``length`` bytes of a segment's body, from ``offset`` of the body on."""

    segment: int
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length

    def take(self, length: int) -> Slice:
        """The first ``length`` bytes, or all if there are fewer."""
        return Slice(self.segment, self.offset, min(length, self.length))

    def skip(self, length: int) -> Slice:
        """Without the first ``length`` bytes."""
        return Slice(self.segment, self.offset + length, self.length - length)


@dataclass(frozen=True, slots=True)
class Remaining:
    """First the slices in order, then everything from the cursor on. Order counts per channel only."""

    slices: tuple[Slice, ...]
    cursor: Cursor

    def parts(self, spill_set: SpillSet) -> Iterator[Slice]:
        """All of it as slices, in order, none empty; a slice or cursor that does not fit the set is an error."""
        for part in self.slices:
            _require_inside(part, spill_set)
            if part.length:
                yield part
        position = position_of(spill_set, self.cursor)
        offset = position.offset
        for index in range(position.segment, len(spill_set.segments)):
            length = spill_set.segments[index].length - offset
            if length:
                yield Slice(index, offset, length)
            offset = 0

    def bytes(self, spill_set: SpillSet) -> int:
        """How much is left."""
        return sum(part.length for part in self.parts(spill_set))

    def to_json(self) -> dict[str, Any]:
        return {
            "version": REMAINING_VERSION,
            "slices": [list(astuple(part)) for part in self.slices],
            "cursor": list(astuple(self.cursor)),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Remaining:
        if value["version"] != REMAINING_VERSION:
            raise other_version("a cut", value["version"], REMAINING_VERSION)
        return cls(tuple(Slice(*part) for part in value["slices"]), Cursor(*value["cursor"]))


def whole(spill_set: SpillSet) -> Remaining:
    """All of a set that nobody has begun to deliver."""
    return Remaining((), start_of(spill_set))


def merged(parts: Iterable[Slice]) -> tuple[Slice, ...]:
    """The same bytes in the same order with neighbours joined: however they were paged, they are equal values."""
    joined: list[Slice] = []
    for part in parts:
        if not part.length:
            continue
        last = joined[-1] if joined else None
        if last is not None and last.segment == part.segment and last.end == part.offset:
            joined[-1] = Slice(last.segment, last.offset, last.length + part.length)
        else:
            joined.append(part)
    return tuple(joined)


def _require_inside(part: Slice, spill_set: SpillSet) -> None:
    fits = 0 <= part.segment < len(spill_set.segments) and part.offset >= 0 and part.length >= 0
    if not fits or part.end > spill_set.segments[part.segment].length:
        raise Corrupt(
            f"a cut refers to bytes {part.offset} to {part.end} of segment {part.segment}, which are not in the set",
            where=Where(subtask=spill_set.subtask, offset=part.offset),
            hint="it belongs to another spill set",
        )
