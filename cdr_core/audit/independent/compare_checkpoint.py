"""A checkpoint that was written from another: the same records per exchange, each old channel's in their old order.

A new channel holds the records of several old ones, in any interleaving; which old channel a record came from is not
stored, so it is found by the record's bytes. Where several old channels have equal records their order is not compared.

Input or output state: where anything is output state, what begins in the source's input state must be input state and
the rest output state; where nothing is, all of it became input state.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from cdr_core.audit.independent.checkpoint import Channel, Checkpoint, require_exchanges
from cdr_core.audit.independent.digests import Expected, digest, total
from cdr_core.audit.independent.framing import Elements, value_of
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

    def add(self, found: SourceChannel) -> None:
        self.inputs[found.channel] = found.inputs
        for position, words in zip(found.expected.positions.tolist(), found.expected.digests, strict=True):
            by_channel = self.waiting.setdefault(words.tobytes(), {})
            by_channel.setdefault(found.channel, deque()).append(position)

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
        return (fitting[0], position), len(fitting) == 1

    def left(self) -> dict[Channel, list[int]]:
        found: dict[Channel, list[int]] = defaultdict(list)
        for by_channel in self.waiting.values():
            for channel, positions in by_channel.items():
                found[channel] += positions
        return {channel: sorted(positions) for channel, positions in sorted(found.items())}


def compare_checkpoint(source: Source, target: Checkpoint) -> tuple[Report, dict[Channel, Expected]]:
    """The report, and what was expected per old channel."""
    require_exchanges(target, source.exchanges)
    expected: dict[Channel, Expected] = {}
    differences: list[Difference] = []
    unchecked: list[str] = []
    left_out, before, after = 0, Totals(), Totals()
    for exchange in source.exchanges:
        old, new = ends_of(source.checkpoint, exchange), ends_of(target, exchange)
        if old.max_parallelism != new.max_parallelism:
            what = f"{exchange.name}: max parallelism is {new.max_parallelism} instead of {old.max_parallelism}"
            differences.append(Difference(Kind.CHANGED, what))
        reading = reading_of(exchange, old.max_parallelism)
        pool = _Pool()
        for found in source.channels(reading, raw=True):
            pool.add(found)
            expected[found.channel] = found.expected
            left_out += found.left_out
            differences += found.differences
            unchecked += [found.note] if found.note else []
            size, sums = found.expected.bytes, total(found.expected.digests)
            before = before.plus(len(found.expected.positions), size, sums)
        keeps = any(at.a == exchange.partition for at in target.ends(exchange)[0].outputs)
        comparison = _Comparison(exchange, reading, old, new, pool, keeps)
        for channel in target.channels(exchange):
            after = comparison.add(channel, target.elements(exchange, channel).whole(), after)
        differences += comparison.differences()
        unchecked += comparison.unchecked()
    report = Report(before, after, tuple(differences), left_out, False, tuple(unchecked), len(expected))
    return report, expected


class _Comparison:
    """The new channels of one exchange, taken in one after the other."""

    def __init__(
        self, exchange: Exchange, reading: Reading, old: Ends, new: Ends, pool: _Pool, keeps_sides: bool
    ) -> None:
        self._exchange, self._reading, self._old, self._new, self._pool = exchange, reading, old, new, pool
        self._keeps_sides = keeps_sides
        self._wrong_side: dict[Channel, list[int]] = defaultdict(list)
        self._extra: list[Difference] = []
        self._late: dict[Channel, list[int]] = defaultdict(list)
        self._misplaced: dict[Channel, list[int]] = defaultdict(list)
        self._ambiguous = 0

    def add(self, channel: Channel, elements: Elements, totals: Totals) -> Totals:
        """A new channel's records: each must be waiting in the pool, after those of its old channel already seen."""
        last: dict[Channel, int] = {}
        extra: list[int] = []
        for number, (start, end) in enumerate(zip(elements.starts, elements.ends, strict=True)):
            if elements.data[start] > 1:
                continue
            raw = elements.data[start:end]
            key = digest(raw)
            totals = totals.plus(1, len(raw), int.from_bytes(key, "little"))
            origin, certain = self._pool.take(key, channel.up, self._new.old_up)
            if origin is None:
                extra.append(number)
                continue
            self._place(raw, origin, channel)
            if certain and self._keeps_sides and elements.begins_in(number) != self._side_of(origin):
                self._wrong_side[origin[0]].append(origin[1])
            self._ambiguous += not certain
            if certain and origin[1] < last.get(origin[0], -1):
                self._late[origin[0]].append(origin[1])
            if certain:
                last[origin[0]] = max(origin[1], last.get(origin[0], -1))
        if extra:
            what = (
                f"{len(extra)} records on new channel {channel} that the source does not have, or not for this channel"
            )
            place = (channel.up, channel.down)
            self._extra.append(Difference(Kind.EXTRA, what, len(extra), None, tuple(extra[:SHOWN]), place))
        return totals

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

    def differences(self) -> Iterator[Difference]:
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
        if self._ambiguous:
            name = self._exchange.name
            yield f"{name}: {self._ambiguous} records are equal in several channels, their order was not compared"
