"""Ledgers: what went in, what came out, and whether the two agree.

A :class:`Tally` describes the records of one virtual channel, or the part of it that one new subtask owns. Phases
produce tallies from the bytes they touch anyway; the functions here compare them and say which channel differs, and
how.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdr_core.errors import Unbalanced, Where
from cdr_core.kernels.fingerprint import MASK, join_chains


@dataclass(frozen=True, slots=True)
class Tally:
    """Records, their raw bytes, the order-free fingerprint (two words) and the order chain of a sequence of records."""

    records: int = 0
    bytes: int = 0
    first: int = 0
    second: int = 0
    chain: int = 0

    @classmethod
    def of_fold(cls, row: Sequence[int]) -> Tally:
        """From one row of :func:`cdr_core.kernels.fingerprint.fold_records`."""
        return cls(records=int(row[3]), bytes=int(row[4]), first=int(row[0]), second=int(row[1]), chain=int(row[2]))

    def then(self, later: Tally) -> Tally:
        """This sequence followed by another."""
        return Tally(
            self.records + later.records,
            self.bytes + later.bytes,
            (self.first + later.first) & MASK,
            (self.second + later.second) & MASK,
            join_chains(self.chain, later.chain, later.records),
        )

    def same_records(self, other: Tally) -> bool:
        """Whether both hold the same multiset of records, in whatever order."""
        return (self.records, self.bytes, self.first, self.second) == (
            other.records,
            other.bytes,
            other.first,
            other.second,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "bytes": self.bytes,
            "fingerprint": f"{self.first:016x}{self.second:016x}",
            "chain": f"{self.chain:016x}",
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Tally:
        fingerprint = value["fingerprint"]
        return cls(
            value["records"],
            value["bytes"],
            int(fingerprint[:16], 16),
            int(fingerprint[16:], 16),
            int(value["chain"], 16),
        )


@dataclass(frozen=True, slots=True, order=True)
class ChannelKey:
    """A virtual channel, and the new downstream subtask that a part of it goes to (``None`` = all of it)."""

    exchange: str
    up: int
    down: int
    new_down: int | None = None

    @property
    def where(self) -> Where:
        return Where(exchange=self.exchange, subtask=self.down, channel=self.up)


@dataclass(frozen=True, slots=True)
class Entry:
    """A ledger line: the records of a channel, and how many elements of other kinds it holds, by kind."""

    key: ChannelKey
    tally: Tally
    others: Mapping[str, int] = field(default_factory=dict)

    def then(self, later: Entry) -> Entry:
        """This part of a channel followed by another."""
        return Entry(self.key, self.tally.then(later.tally), dict(Counter(self.others) + Counter(later.others)))

    def to_json(self) -> dict[str, Any]:
        key = {"exchange": self.key.exchange, "up": self.key.up, "down": self.key.down, "new_down": self.key.new_down}
        return {**key, **self.tally.to_json(), "others": dict(self.others)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Entry:
        key = ChannelKey(value["exchange"], value["up"], value["down"], value["new_down"])
        return cls(key, Tally.from_json(value), dict(value["others"]))


def require_partition(source: Iterable[Entry], parts: Iterable[Entry]) -> None:
    """Every source record belongs to exactly one part: same count, bytes and fingerprint per virtual channel."""
    sums: dict[ChannelKey, Tally] = {}
    for part in sorted(parts, key=lambda entry: entry.key.new_down or 0):
        whole = ChannelKey(part.key.exchange, part.key.up, part.key.down)
        sums[whole] = sums.get(whole, Tally()).then(part.tally)
    for entry in source:
        got = sums.pop(entry.key, Tally())
        if not got.same_records(entry.tally):
            raise _difference("filter", entry.key, entry.tally, got)
    if sums:
        key, tally = next(iter(sums.items()))
        raise _difference("filter", key, Tally(), tally)


def require_equal(phase: str, before: Iterable[Entry], after: Iterable[Entry]) -> None:
    """Each part holds the same records in the same order as before the phase."""
    expected = {entry.key: entry.tally for entry in before if entry.tally.records}
    actual = {entry.key: entry.tally for entry in after if entry.tally.records}
    for key in sorted(expected.keys() | actual.keys(), key=repr):
        if expected.get(key) != actual.get(key):
            raise _difference(phase, key, expected.get(key, Tally()), actual.get(key, Tally()))


def require_accounted(phase: str, source: Iterable[Entry], accounts: Mapping[ChannelKey, Mapping[str, int]]) -> None:
    """Every element of the source that is no record was kept, merged or dropped: as many of each kind as there were."""
    for entry in source:
        _require_same_kinds(phase, "met", entry.key, entry.others, accounts.get(entry.key, {}))


def require_others(phase: str, expected: Mapping[ChannelKey, Mapping[str, int]], after: Iterable[Entry]) -> None:
    """Each part holds the elements that are no records which it should, as many of each kind."""
    actual = {entry.key: entry.others for entry in after}
    for key in sorted(expected.keys() | actual.keys(), key=repr):
        _require_same_kinds(phase, "wrote", key, expected.get(key, {}), actual.get(key, {}))


def _require_same_kinds(
    phase: str, did: str, key: ChannelKey, expected: Mapping[str, int], actual: Mapping[str, int]
) -> None:
    for kind in sorted(expected.keys() | actual.keys()):
        if expected.get(kind, 0) != actual.get(kind, 0):
            target = "" if key.new_down is None else f" for new subtask {key.new_down}"
            raise Unbalanced(
                f"{phase} does not balance: it {did} {actual.get(kind, 0)} of kind {kind}{target}"
                f" where there should be {expected.get(kind, 0)}",
                where=key.where,
                hint="nothing was published",
            )


def total(entries: Iterable[Entry]) -> Tally:
    """All records of the entries as one multiset; its chain means nothing and is zero."""
    records = nbytes = first = second = 0
    for entry in entries:
        records += entry.tally.records
        nbytes += entry.tally.bytes
        first += entry.tally.first
        second += entry.tally.second
    return Tally(records, nbytes, first & MASK, second & MASK, 0)


def _difference(phase: str, key: ChannelKey, expected: Tally, actual: Tally) -> Unbalanced:
    target = "" if key.new_down is None else f" to new subtask {key.new_down}"
    if expected.records != actual.records:
        what = f"{actual.records} records{target} where {expected.records} went in"
    elif expected.same_records(actual):
        what = f"the {actual.records} records{target} changed their order"
    else:
        what = f"the {actual.records} records{target} are not the ones that went in"
    return Unbalanced(f"{phase} does not balance: {what}", where=key.where, hint="nothing was published")
