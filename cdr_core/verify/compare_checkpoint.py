"""Comparison of a rewritten checkpoint with its source: the same records per exchange, each old channel's in order.

A new channel holds the records of several old ones, in any interleaving. A checkpoint does not store which old channel
a record came from, so it is found by the record's bytes. Where several old channels have equal records their order is
not compared. Elements that are not records follow their own rule (see ``other_elements``).

Input or output state: if the target has any output state, elements that begin in the source's input state must be input
state and the rest output state; if it has none, everything must have become input state.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from cdr_core.errors import CorruptChannelState
from cdr_core.verify.checkpoint import Channel, Checkpoint
from cdr_core.verify.compare import by_channel
from cdr_core.verify.digests import SIZE, Compared, Longs, digest
from cdr_core.verify.framing import Elements, value_of
from cdr_core.verify.ledgers import Ledgers, Records
from cdr_core.verify.other_elements import Other, OtherElements, Seen
from cdr_core.verify.placement import Ends, checked_fully, ends_of, misplaced
from cdr_core.verify.report import SHOWN, Difference, Kind, Report, Totals, total_of
from cdr_core.verify.rows import Reading, reading_of
from cdr_core.verify.source import Expected, Source
from cdr_core.verify.spec import Exchange

Waiting = int | dict[int, deque[int]]
"""The only record with a digest, or several by channel; both are numbered as :class:`Expected` numbers them."""


class _Pool:
    """Source records of one exchange that the target has not shown yet, by digest.

    ``scattered``: equal records of one old channel may have different owners.
    """

    def __init__(self, expected: Expected, owners: Callable[[int], range], *, scattered: bool) -> None:
        self._owners, self._scattered = owners, scattered
        self._ups: list[int] = expected.up.tolist()
        self._downs: list[int] = expected.down.tolist()
        self.numbers: list[int] = expected.numbers.tolist()
        self._waiting: dict[bytes, Waiting] = {}
        self._repeated: set[bytes] = set()
        joined = np.ascontiguousarray(expected.digests).tobytes()
        for record in range(len(self.numbers)):
            self._add(joined[SIZE * record : SIZE * (record + 1)], record)

    def _add(self, key: bytes, record: int) -> None:
        before = self._waiting.setdefault(key, record)
        if before is record:
            return
        if isinstance(before, int):
            before = self._waiting[key] = {self.numbers[before]: deque([before])}
        of_channel = before.setdefault(self.numbers[record], deque())
        if of_channel and self._scattered:
            self._repeated.add(key)
        of_channel.append(record)

    def take(self, key: bytes, new: Channel, parallelism: int) -> tuple[int, bool]:
        """Return the record with this digest that belongs on the new channel, and whether no other old channel has an
        equal one there. Return −1 if none is left. A record that another subtask owns is taken only if there is no
        better one.
        """
        found = self._waiting.get(key, {})
        if isinstance(found, int):
            if self._ups[self.numbers[found]] % parallelism != new.up:
                return -1, True
            del self._waiting[key]
            return found, True
        fitting = [number for number in found if self._ups[number] % parallelism == new.up]
        if not fitting:
            return -1, True
        fitting = [number for number in fitting if new.down in self._owners(self._downs[number])] or fitting
        record = found[fitting[0]].popleft()
        if not found[fitting[0]]:
            del found[fitting[0]]
        return record, len(fitting) == 1 and key not in self._repeated

    def left(self) -> list[int]:
        found: list[int] = []
        for waiting in self._waiting.values():
            found += [waiting] if isinstance(waiting, int) else [each for part in waiting.values() for each in part]
        return sorted(found)


def compare_checkpoint(source: Source, target: Checkpoint, by_cdr: bool) -> tuple[Report, Ledgers]:
    """Compare records and other elements; return the report, and the ledgers of both sides.

    ``by_cdr``: cdr wrote the target, so other elements must follow the rule where channels merge.
    """
    before, after, ledgers, channels = [], [], Ledgers(), 0
    differences: list[Difference] = []
    unchecked: list[str] = []
    resolved = [_by_id(source.checkpoint, exchange) for exchange in source.exchanges]
    for left in target.unclaimed(tuple(exchange for exchange in resolved if _has_ends(target, exchange))):
        what = f"the output has in-flight records that belong to no exchange: {left}"
        differences.append(Difference(Kind.EXTRA, what))
    for exchange in resolved:
        old = ends_of(source.checkpoint, exchange)
        new = ends_of(target, exchange) if _has_ends(target, exchange) else old
        reading, others = reading_of(exchange, old.max_parallelism), OtherElements(exchange, old, new)
        expected = source.records(reading, Compared.BYTES, others.add)
        comparison = _Comparison(reading, old, new, expected, others, _keeps(target, exchange))
        there = set()
        for block in target.blocks(exchange) if _has_ends(target, exchange) else ():
            for number in range(len(block.up)):
                there.add(block.channel(number))
                comparison.add(block.channel(number), block.elements(number))
        comparison.add_absent(there)
        differences += comparison.differences(by_cdr)
        unchecked += comparison.unchecked()
        before.append(expected.totals)
        after.append(comparison.totals)
        ledgers.add(exchange.name, expected, comparison.published(), certain=comparison.certain)
        channels += len(expected.up)
    report = Report(
        total_of(before),
        total_of(after),
        (*source.differences, *differences),
        source.left_out,
        False,
        (*source.notes, *unchecked),
        channels,
    )
    return report, ledgers


def _by_id(source: Checkpoint, exchange: Exchange) -> Exchange:
    """Return the exchange with its operators by id: their names are known in the source only."""
    up, down = source.ends(exchange)
    return replace(exchange, upstream=up.id, downstream=down.id)


def _has_ends(target: Checkpoint, exchange: Exchange) -> bool:
    return {exchange.upstream, exchange.downstream} <= {operator.id for operator in target.metadata.operators}


def _keeps(target: Checkpoint, exchange: Exchange) -> bool:
    """Return whether output state stayed output state."""
    ends = target.ends(exchange) if _has_ends(target, exchange) else ()
    return bool((ends[0].outputs.a == exchange.partition).any()) if ends else False


class _Comparison:
    """The new channels of one exchange, added one after the other."""

    def __init__(
        self, reading: Reading, old: Ends, new: Ends, expected: Expected, others: OtherElements, keeps_sides: bool
    ) -> None:
        self._reading, self._old, self._new, self._others = reading, old, new, others
        self._exchange, self._keeps_sides = reading.exchange, keeps_sides
        self._expected = expected
        self._scattered = reading.exchange.partitioner == "custom"
        self._pool = _Pool(expected, others.owners, scattered=self._scattered)
        self._positions: list[int] = expected.positions.tolist()
        self._inputs: list[int] = expected.inputs.tolist()
        self._taken, self._owners, self._groups = array("q"), array("q"), array("q")
        self._late: list[int] = []
        self._wrong_side: list[int] = []
        self._extra: list[Difference] = []
        self._kept: list[Difference] = []
        self._merged: list[Difference] = []
        self._merged_others = self._ambiguous = 0
        self._left_out = False
        self.totals = Totals()

    @property
    def certain(self) -> bool:
        """Return whether the old channel of each record is known: a custom partitioner may divide equal records."""
        return not (self._scattered and self._ambiguous)

    def published(self) -> Records:
        """Return the source's records that the target has, at their new subtasks."""
        taken, expected = np.array(self._taken, np.int64), self._expected
        of, owners = expected.numbers[taken], np.array(self._owners, np.int64)
        order, sizes, words = expected.positions[taken], expected.sizes[taken], expected.words[taken]
        return Records(expected.up[of], expected.down[of], owners, order, sizes, words)

    def add(self, channel: Channel, elements: Elements) -> None:
        """Add a new channel's records: each must be in the pool, after the records of its old channel that were already
        seen.
        """
        last: dict[int, int] = {}
        extra: list[int] = []
        seen, several = Seen(), self._others.single(channel) is None
        size = digests = 0
        for number, (start, end) in enumerate(zip(elements.starts, elements.ends, strict=True)):
            raw = elements.data[start:end]
            if raw[0] > 1:
                seen.order.append(-1 - len(seen.others))
                seen.others.append(Other(number, raw, elements.begins_in(number) == "output"))
                continue
            key = digest(raw)
            size, digests = size + len(raw), digests + int.from_bytes(key, "little")
            record, certain = self._pool.take(key, channel, self._new.old_up)
            if several:
                seen.order.append(0)  # it precedes the closing elements of the channel, wherever it came from
            if record < 0:
                extra.append(number)
                continue
            self._take(record, channel, raw)
            if not certain:
                self._ambiguous += 1
                continue
            if self._keeps_sides and elements.begins_in(number) != self._side_of(record):
                self._wrong_side.append(record)
            origin = self._pool.numbers[record]
            if record < last.get(origin, -1):
                self._late.append(record)
                seen.disordered = True
            last[origin] = max(record, last.get(origin, -1))
            if not several:
                seen.order.append(self._positions[record])
        records = len(elements.starts) - len(seen.others)
        self.totals = total_of((self.totals, Totals(records, size, digests)))
        self._add_extra(channel, extra)
        self._add_broken(channel, elements)
        self._compare_others(channel, seen)

    def add_absent(self, there: set[Channel]) -> None:
        """Add new channels without state: they may still owe closing elements."""
        old = zip(self._expected.up.tolist(), self._expected.down.tolist(), strict=True)
        fed = {new for ends in old for new in self._others.fed_by(Channel(self._exchange.name, *ends))}
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

    def _side_of(self, record: int) -> str:
        return "input" if self._positions[record] < self._inputs[self._pool.numbers[record]] else "output"

    def _take(self, record: int, channel: Channel, raw: bytes) -> None:
        group = -1
        if self._reading.group is not None:
            try:
                group = self._reading.group(self._reading.record.read(value_of(raw))[0])
            except CorruptChannelState:
                group = -1  # a source that does not fit its spec: its key-group range is still known
        self._taken.append(record)
        self._owners.append(channel.down)
        self._groups.append(group)

    def _misplaced(self) -> Longs:
        found, groups = self.published(), np.array(self._groups, np.int64)
        partitioner, parallelism = self._exchange.partitioner, self._new.old_down
        wrong = misplaced(partitioner, self._old, parallelism, found.down, groups, found.new_down)
        return np.array(self._taken, np.int64)[wrong]

    def _of_records(self, kind: Kind, records: list[int] | Longs, what: str) -> list[Difference]:
        places = np.sort(np.array(records, np.int64))
        of = self._expected.numbers[places]
        ends = self._expected.up[of], self._expected.down[of]
        return by_channel(self._exchange.name, kind, *ends, self._expected.positions[places], what)

    def differences(self, by_cdr: bool) -> Iterator[Difference]:
        """Yield all differences. Other writers may drop other elements where channels are divided or merge."""
        self._left_out = bool(self._merged) and not by_cdr and not self._merged_others
        yield from self._kept
        yield from () if self._left_out else self._merged
        yield from self._of_records(Kind.MISSING, self._pool.left(), "of the source not in the output")
        yield from self._extra
        yield from self._of_records(Kind.OUT_OF_ORDER, self._late, "after a later one of the same channel")
        yield from self._of_records(Kind.MISPLACED, self._misplaced(), "given to a subtask that does not own them")
        what = "input state that was output state, or in turn"
        yield from self._of_records(Kind.WRONG_SIDE, self._wrong_side, what)

    def unchecked(self) -> Iterator[str]:
        new = {self._new.upstream: self._new.old_up, self._new.downstream: self._new.old_down}
        if reason := checked_fully(self._exchange, self._old, new, self._reading.group is not None):
            yield reason
        if self._left_out:
            yield f"{self._exchange.name}: other elements were left out where channels are divided or merge"
        if self._ambiguous:
            name = self._exchange.name
            yield f"{name}: {self._ambiguous} records are equal in several channels, their order was not compared"
