"""Elements of a rewritten checkpoint that are not records: which of them belong on a new channel, and where.

A new channel is fed by every old one whose records may arrive on it, even if that has no in-flight data. *Kept*: the
channel has one feed, and no other channel gets that feed's records; all elements stay in place. *Replicated*: one feed
whose records are divided; watermarks and statuses stay in place at every owner, the rest is dropped. *Merged*: several
feeds; their elements are dropped, and behind everything else comes the lowest of the last watermarks, if every feed has
one, and then *idle*, if the last status of every feed is idle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cdr_core.verify.checkpoint import Channel
from cdr_core.verify.framing import KINDS, Elements, timestamp
from cdr_core.verify.placement import Ends
from cdr_core.verify.report import Difference, Kind
from cdr_core.verify.spec import Exchange

WATERMARK, STATUS, INTERNAL = 2, 4, 6
IDLE = b"\x04\xff\xff\xff\xff"
BEHIND = 1 << 62
"""The position of closing elements, after everything else."""


@dataclass(frozen=True, slots=True)
class Other:
    """An element that is not a record, its position in its old channel and whether it begins in output state."""

    position: int
    raw: bytes
    output: bool


@dataclass(slots=True)
class Last:
    """The last watermark and status of an old channel, and whether it has output state."""

    watermark: bytes | None = None
    status: bytes | None = None
    output: bool = False


@dataclass(slots=True)
class Seen:
    """Contents of a new channel: its other elements, and the order in which they and its records lie.

    ``order`` is the channel's sequence: −1 − i for its other element i, else the old position of a record.
    """

    others: list[Other] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    disordered: bool = False


class OtherElements:
    """Other elements of one exchange: old channels are added first, then new ones are compared."""

    def __init__(self, exchange: Exchange, old: Ends, new: Ends) -> None:
        self._exchange, self._old, self._new = exchange, old, new
        self._into: dict[int, list[int]] = defaultdict(list)
        for down in range(old.old_down):
            for owner in self.owners(down):
                self._into[owner].append(down)
        self._last: dict[Channel, Last] = {}
        self._kept: dict[Channel, list[Other]] = {}

    def owners(self, down: int) -> range:
        """Return the new subtasks that may get records of an old one."""
        partitioner, before, after = self._exchange.partitioner, self._old.old_down, self._new.old_down
        if before == after:
            return range(down, down + 1)
        if partitioner == "hash":
            groups = self._old.max_parallelism
            first = (down * groups + before - 1) // before * after // groups
            return range(first, ((down + 1) * groups - 1) // before * after // groups + 1)
        if partitioner == "global":
            return range(1)
        return range(after) if partitioner == "custom" else range(down % after, down % after + 1)

    def add(self, channel: Channel, elements: Elements, inputs: int, records: Sequence[int]) -> None:
        """Add an old channel, whose first ``inputs`` elements begin in input state; ``records`` are the positions,
        ascending, of the records that are recovered: a record left out on request does not count as output state.
        """
        last, others = Last(output=len(records) > 0 and records[-1] >= inputs), []
        for position, start in enumerate(elements.starts):
            tag = elements.data[start]
            if tag > 1:
                raw = elements.data[start : elements.ends[position]]
                others.append(Other(position, raw, position >= inputs))
                last.output |= position >= inputs
                last.watermark = raw if tag == WATERMARK else last.watermark
                last.status = raw if tag == STATUS else last.status
        self._last[channel] = last
        if any(self._feeds(each) == 1 for each in self.fed_by(channel)):
            self._kept[channel] = others

    def fed_by(self, channel: Channel) -> list[Channel]:
        """Return the new channels that an old one's elements may be on."""
        up = channel.up % self._new.old_up
        return [Channel(channel.exchange, up, owner) for owner in self.owners(channel.down)]

    def _ups(self, new: Channel) -> range:
        return range(new.up, self._old.old_up, self._new.old_up)

    def _feeds(self, new: Channel) -> int:
        return len(self._ups(new)) * len(self._into[new.down])

    def single(self, new: Channel) -> Channel | None:
        """Return the only old channel that feeds a new one; ``None`` if there are several."""
        if self._feeds(new) != 1:
            return None
        return Channel(new.exchange, self._ups(new)[0], self._into[new.down][0])

    def in_place(self, new: Channel) -> bool:
        """Return whether a new channel keeps everything of its only feed."""
        only = self.single(new)
        return only is not None and len(self.owners(only.down)) == 1

    def expected(self, new: Channel) -> list[Other]:
        """Return the expected other elements of a new channel, in order."""
        only = self.single(new)
        if only is None:
            return self._closing(new)
        found = self._kept.get(only, [])
        if self.in_place(new):
            return found
        return [other for other in found if other.raw[0] in (WATERMARK, STATUS, INTERNAL)]

    def _closing(self, new: Channel) -> list[Other]:
        feeds = [Channel(new.exchange, up, down) for up in self._ups(new) for down in self._into[new.down]]
        last_seen = [self._last.get(feed, Last()) for feed in feeds]
        output = any(each.output for each in last_seen)
        marks = [each.watermark for each in last_seen if each.watermark is not None]
        found = []
        if marks and len(marks) == len(last_seen):
            found.append(Other(BEHIND, min(marks, key=lambda raw: timestamp(raw) or 0), output))
        if last_seen and all(each.status == IDLE for each in last_seen):
            found.append(Other(BEHIND, IDLE, output))
        return found

    def compare(self, new: Channel, seen: Seen, keeps_sides: bool) -> Iterator[Difference]:
        """Compare a new channel's other elements: which they are, their places, and their side."""
        expected, only = self.expected(new), self.single(new)
        if [each.raw for each in seen.others] != [each.raw for each in expected]:
            what = f"{_summary(seen.others)} on new channel {new} instead of {_summary(expected)}"
            count = max(abs(len(seen.others) - len(expected)), 1)
            yield Difference(Kind.OTHER_ELEMENTS, what, count, only, (), new)
            return
        moved = 0 if seen.disordered else _moved(expected, seen.order)
        if moved:
            what = f"{moved} elements that are no records are not between the same records on new channel {new}"
            yield Difference(Kind.OTHER_ELEMENTS, what, moved, only, (), new)
        wrong = sum(ours.output != each.output for ours, each in zip(seen.others, expected, strict=True))
        if keeps_sides and wrong:
            what = f"{wrong} elements that are no records are on the wrong side of new channel {new}"
            yield Difference(Kind.WRONG_SIDE, what, wrong, only, (), new)


def _moved(expected: list[Other], order: list[int]) -> int:
    """Return how many elements are on the wrong side of a record."""
    wrong, highest, floor = set(), -1, -1
    current = -1
    for at in order:
        if at < 0:
            current = -1 - at
            floor = expected[current].position
            if highest > floor:
                wrong.add(current)
        else:
            highest = max(highest, at)
            if at < floor:
                wrong.add(current)
    return len(wrong)


def _summary(others: list[Other]) -> str:
    """Return the number of elements by kind as text, and the bytes of the last."""
    if not others:
        return "no elements that are no records"
    counts: dict[str, int] = defaultdict(int)
    for each in others:
        counts[KINDS[each.raw[0]]] += 1
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return f"{kinds} (the last: {others[-1].raw.hex()})"
