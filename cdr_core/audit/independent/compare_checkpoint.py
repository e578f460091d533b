"""A checkpoint that was written from another: the same records per exchange, each old channel's in their old order.

A new channel holds the records of several old ones, in any interleaving; which old channel a record came from is not
stored, so it is found by the record's bytes. Where several old channels have equal records their order is not compared.
What is no record follows a rule of its own (see ``other_elements``).

Input or output state: where anything is output state, what begins in the source's input state must be input state and
the rest output state; where nothing is, all of it became input state.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from cdr_core.audit.independent.checkpoint import Channel, Checkpoint
from cdr_core.audit.independent.digests import Expected, digest, total
from cdr_core.audit.independent.framing import Elements, value_of
from cdr_core.audit.independent.other_elements import Other, OtherElements, Seen
from cdr_core.audit.independent.placement import Ends, checked_fully, ends_of, misplaced
from cdr_core.audit.independent.report import SHOWN, Difference, Kind, Report, Totals, of_records
from cdr_core.audit.independent.rows import Reading, reading_of
from cdr_core.audit.independent.source import Source, SourceChannel
from cdr_core.audit.independent.spec import Exchange
from cdr_core.errors import CorruptChannelState

Origin = tuple[Channel, int]
"""An old channel and a position in it."""


@dataclass(slots=True)
class _Pool:
    """Source records of one exchange that the target has not shown yet, by digest and old channel, in order."""

    waiting: dict[bytes, dict[Channel, deque[int]]] = field(default_factory=dict)
    inputs: dict[Channel, int] = field(default_factory=dict)
    scattered: bool = False
    """Equal records of one old channel may have different owners."""
    repeated: set[bytes] = field(default_factory=set)

    def add(self, found: SourceChannel) -> None:
        self.inputs[found.channel] = found.inputs
        for position, words in zip(found.expected.positions.tolist(), found.expected.digests, strict=True):
            key = words.tobytes()
            of_channel = self.waiting.setdefault(key, {}).setdefault(found.channel, deque())
            if of_channel and self.scattered:
                self.repeated.add(key)
            of_channel.append(position)

    def take(self, key: bytes, channel: int, parallelism: int) -> tuple[Origin | None, bool]:
        """The record with this digest that belongs on the new channel, and whether no other old channel has an equal
        one there. ``None`` if there is none left.
        """
        by_channel = self.waiting.get(key, {})
        fitting = [origin for origin in by_channel if origin.up % parallelism == channel]
        if not fitting:
            return None, True
        position = by_channel[fitting[0]].popleft()
        if not by_channel[fitting[0]]:
            del by_channel[fitting[0]]
        return (fitting[0], position), len(fitting) == 1 and key not in self.repeated

    def left(self) -> dict[Channel, list[int]]:
        found: dict[Channel, list[int]] = defaultdict(list)
        for by_channel in self.waiting.values():
            for channel, positions in by_channel.items():
                found[channel] += positions
        return {channel: sorted(positions) for channel, positions in sorted(found.items())}


def compare_checkpoint(source: Source, target: Checkpoint, by_cdr: bool) -> tuple[Report, dict[Channel, Expected]]:
    """The records and other elements: the report, and what was expected per old channel.

    ``by_cdr``: it is known who wrote the target, so that other elements must follow the rule where channels merge.
    """
    expected: dict[Channel, Expected] = {}
    found = _Found()
    resolved = [_by_id(source.checkpoint, exchange) for exchange in source.exchanges]
    for left in target.unclaimed(tuple(exchange for exchange in resolved if _has_ends(target, exchange))):
        what = f"the output has in-flight records that belong to no exchange: {left}"
        found.differences.append(Difference(Kind.EXTRA, what))
    for exchange in resolved:
        old = ends_of(source.checkpoint, exchange)
        new = ends_of(target, exchange) if _has_ends(target, exchange) else old
        reading = reading_of(exchange, old.max_parallelism)
        pool, others = _Pool(scattered=exchange.partitioner == "custom"), OtherElements(exchange, old, new)
        for each in source.channels(reading, raw=True):
            pool.add(each)
            others.add(each.channel, each.elements, each.inputs, each.expected.positions.tolist())
            expected[each.channel] = each.expected
            found.add_source(each)
        comparison = _Comparison(reading, old, new, pool, others, _keeps(target, exchange))
        channels = target.channels(exchange) if _has_ends(target, exchange) else []
        for channel in channels:
            found.after = comparison.add(channel, target.elements(exchange, channel), found.after)
        comparison.add_absent(set(channels), list(expected))
        found.differences += comparison.differences(by_cdr)
        found.unchecked += comparison.unchecked()
    return found.report(len(expected)), expected


@dataclass(slots=True)
class _Found:
    """The report while it grows."""

    before: Totals = field(default_factory=Totals)
    after: Totals = field(default_factory=Totals)
    differences: list[Difference] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    left_out: int = 0

    def add_source(self, found: SourceChannel) -> None:
        self.left_out += found.left_out
        self.differences += found.differences
        self.unchecked += [found.note] if found.note else []
        size, sums = found.expected.bytes, total(found.expected.digests)
        self.before = self.before.plus(len(found.expected.positions), size, sums)

    def report(self, channels: int) -> Report:
        differences, unchecked = tuple(self.differences), tuple(self.unchecked)
        return Report(self.before, self.after, differences, self.left_out, False, unchecked, channels)


def _by_id(source: Checkpoint, exchange: Exchange) -> Exchange:
    """With its operators by their ids: names are only what the source says they are."""
    up, down = source.ends(exchange)
    return replace(exchange, upstream=up.id, downstream=down.id)


def _has_ends(target: Checkpoint, exchange: Exchange) -> bool:
    return {exchange.upstream, exchange.downstream} <= {operator.id for operator in target.metadata.operators}


def _keeps(target: Checkpoint, exchange: Exchange) -> bool:
    """Whether output state went on as such."""
    ends = target.ends(exchange) if _has_ends(target, exchange) else ()
    return any(at.a == exchange.partition for at in ends[0].outputs) if ends else False


class _Comparison:
    """The new channels of one exchange, taken in one after the other."""

    def __init__(
        self, reading: Reading, old: Ends, new: Ends, pool: _Pool, others: OtherElements, keeps_sides: bool
    ) -> None:
        self._reading, self._old, self._new, self._pool, self._others = reading, old, new, pool, others
        self._exchange, self._keeps_sides = reading.exchange, keeps_sides
        self._wrong_side: dict[Channel, list[int]] = defaultdict(list)
        self._extra: list[Difference] = []
        self._late: dict[Channel, list[int]] = defaultdict(list)
        self._misplaced: dict[Channel, list[int]] = defaultdict(list)
        self._kept: list[Difference] = []
        self._merged: list[Difference] = []
        self._merged_others = self._ambiguous = 0
        self._left_out = False

    def add(self, channel: Channel, elements: Elements, totals: Totals) -> Totals:
        """A new channel's records: each must be waiting in the pool, after those of its old channel already seen."""
        last: dict[Channel, int] = {}
        extra: list[int] = []
        seen, several = Seen(), self._others.single(channel) is None
        for number, (start, end) in enumerate(zip(elements.starts, elements.ends, strict=True)):
            raw = elements.data[start:end]
            if raw[0] > 1:
                seen.order.append(-1 - len(seen.others))
                seen.others.append(Other(number, raw, elements.begins_in(number) == "output"))
                continue
            key = digest(raw)
            totals = totals.plus(1, len(raw), int.from_bytes(key, "little"))
            origin, certain = self._pool.take(key, channel.up, self._new.old_up)
            if several:
                seen.order.append(0)  # it comes before what closes the channel, wherever it is from
            if origin is None:
                extra.append(number)
                continue
            self._place(raw, origin, channel)
            if not certain:
                self._ambiguous += 1
                continue
            if self._keeps_sides and elements.begins_in(number) != self._side_of(origin):
                self._wrong_side[origin[0]].append(origin[1])
            if origin[1] < last.get(origin[0], -1):
                self._late[origin[0]].append(origin[1])
                seen.disordered = True
            last[origin[0]] = max(origin[1], last.get(origin[0], -1))
            if not several:
                seen.order.append(origin[1])
        self._add_extra(channel, extra)
        self._add_broken(channel, elements)
        self._compare_others(channel, seen)
        return totals

    def add_absent(self, there: set[Channel], old: list[Channel]) -> None:
        """New channels that have no state, and that may have to say something all the same."""
        fed = {
            new for channel in old if channel.exchange == self._exchange.name for new in self._others.fed_by(channel)
        }
        for channel in sorted(fed - there):
            self._compare_others(channel, Seen())

    def _add_extra(self, channel: Channel, extra: list[int]) -> None:
        if extra:
            what = (
                f"{len(extra)} records on new channel {channel} that the source does not have, or not for this channel"
            )
            self._extra.append(Difference(Kind.EXTRA, what, len(extra), None, tuple(extra[:SHOWN]), channel))

    def _add_broken(self, channel: Channel, elements: Elements) -> None:
        if elements.broken is not None:
            what = (
                f"new channel {channel} cannot be read from element {len(elements.starts)} on: {elements.broken.what}"
            )
            self._extra.append(Difference(Kind.CHANGED, what, 1, None, (len(elements.starts),), channel))

    def _compare_others(self, channel: Channel, seen: Seen) -> None:
        found = list(self._others.compare(channel, seen, self._keeps_sides))
        if self._others.in_place(channel):
            self._kept += found
        else:
            self._merged += found
            self._merged_others += len(seen.others)

    def _side_of(self, origin: Origin) -> str:
        return "input" if origin[1] < self._pool.inputs[origin[0]] else "output"

    def _place(self, raw: bytes, origin: Origin, channel: Channel) -> None:
        group = -1
        if self._reading.group is not None:
            try:
                group = self._reading.group(self._reading.record.read(value_of(raw))[0])
            except CorruptChannelState:
                group = -1  # a source that does not fit its spec: its range is still known
        down, groups, new_down = (np.array([value]) for value in (origin[0].down, group, channel.down))
        partitioner, parallelism = self._exchange.partitioner, self._new.old_down
        if misplaced(partitioner, self._old, parallelism, down, groups, new_down)[0]:
            self._misplaced[origin[0]].append(origin[1])

    def differences(self, by_cdr: bool) -> Iterator[Difference]:
        """Whoever else rewrites a checkpoint may leave out what is no record where channels are divided or merge."""
        self._left_out = bool(self._merged) and not by_cdr and not self._merged_others
        yield from self._kept
        yield from () if self._left_out else self._merged
        for channel, positions in self._pool.left().items():
            yield from of_records(Kind.MISSING, channel, positions, "of the source not in the output")
        yield from self._extra
        for channel, positions in sorted(self._late.items()):
            yield from of_records(Kind.OUT_OF_ORDER, channel, positions, "after a later one of the same channel")
        for channel, positions in sorted(self._misplaced.items()):
            yield from of_records(Kind.MISPLACED, channel, positions, "given to a subtask that does not own them")
        for channel, positions in sorted(self._wrong_side.items()):
            yield from of_records(Kind.WRONG_SIDE, channel, positions, "input state that was output state, or in turn")

    def unchecked(self) -> Iterator[str]:
        new = {self._new.upstream: self._new.old_up, self._new.downstream: self._new.old_down}
        if reason := checked_fully(self._exchange, self._old, new, self._reading.group is not None):
            yield reason
        if self._left_out:
            yield f"{self._exchange.name}: watermarks and their kin were left out where channels are divided or merge"
        if self._ambiguous:
            name = self._exchange.name
            yield f"{name}: {self._ambiguous} records are equal in several channels, their order was not compared"
