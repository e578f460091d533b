"""Ledgers: records in, records out, and whether the two are equal.

A ledger has one row per line: a virtual channel, or a virtual channel and the new subtask that owns a part of it
(:attr:`cdr_core.planning.plan.PlanChannels.line_first` numbers them). Rows are columns from the kernel to the file. The
first difference of two ledgers is reported with its exchange, channel and numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.errors import Unbalanced, Where
from cdr_core.flink.element_kinds import OTHER_KINDS
from cdr_core.kernels import channel_batches, frames
from cdr_core.kernels.fingerprint import CHAIN, FOLD_COLUMNS, MASK, join_chains

Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Columns = Mapping[str, npt.NDArray[Any]]

CLOSING_WATERMARK, CLOSING_STATUS = frames.TAGS, frames.TAGS + 1
"""Kinds of elements that the spill adds behind the records of merged channels, numbered behind the tags."""

KIND_NAMES = {**OTHER_KINDS, CLOSING_WATERMARK: "closing_watermark", CLOSING_STATUS: "closing_watermark_status"}

FIRST, SECOND, ORDER, RECORDS, BYTES = range(FOLD_COLUMNS)
"""Columns of sums: both words of the order-free fingerprint, the order chain, records, raw bytes."""

BLOCK_LINES = 65_536
"""Lines that are hashed at once; part of the definition of a digest."""

CHAIN_WORD: Any = np.uint64(CHAIN)

NAMES = ("lines", "sums", "other_lines", "other_kinds", "other_counts")
"""The columns of a ledger in a file."""


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
        """Return the tally of one row of sums."""
        return cls(int(row[RECORDS]), int(row[BYTES]), int(row[FIRST]), int(row[SECOND]), int(row[ORDER]))

    def to_fold(self) -> tuple[int, ...]:
        """Return the tally as one row of sums."""
        return self.first, self.second, self.chain, self.records, self.bytes

    def then(self, later: Tally) -> Tally:
        """Return the tally of this sequence followed by another."""
        return Tally(
            self.records + later.records,
            self.bytes + later.bytes,
            (self.first + later.first) & MASK,
            (self.second + later.second) & MASK,
            join_chains(self.chain, later.chain, later.records),
        )

    def same_records(self, other: Tally) -> bool:
        """Return whether both hold the same multiset of records, in whatever order."""
        return (self.records, self.bytes, self.fingerprint) == (other.records, other.bytes, other.fingerprint)

    @property
    def fingerprint(self) -> str:
        return f"{self.first:016x}{self.second:016x}"

    def to_json(self) -> dict[str, Any]:
        sizes = {"records": self.records, "bytes": self.bytes}
        return {**sizes, "fingerprint": self.fingerprint, "chain": f"{self.chain:016x}"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Tally:
        words = value["fingerprint"]
        return cls(value["records"], value["bytes"], int(words[:16], 16), int(words[16:], 16), int(value["chain"], 16))


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


KeyOf = Callable[[int], ChannelKey]
"""Returns the channel and subtask of a line, for errors."""


@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """Lines in ascending order, each once, with the sums of their records; lines without any element are left out.

    Elements of other kinds are listed apart, by line and kind: ``other_counts`` of kind ``other_kinds`` are on line
    ``other_lines``.
    """

    lines: Longs
    sums: Words
    other_lines: Longs
    other_kinds: Longs
    other_counts: Longs

    @classmethod
    def of(cls, lines: Longs, sums: Words, kinds: Longs | None = None) -> Ledger:
        """Return the ledger of rows for ascending lines; ``kinds`` counts elements by line and kind, records not among
        them.
        """
        rows, tags = (np.zeros(0, np.int64),) * 2 if kinds is None else np.nonzero(kinds)
        counts = np.zeros(0, np.int64) if kinds is None else kinds[rows, tags]
        used = sums[:, RECORDS] > 0
        used[rows] = True
        return cls(lines[used], sums[used], lines[rows], tags.astype(np.int64), counts)

    @classmethod
    def from_columns(cls, columns: Columns, prefix: str = "") -> Ledger:
        return cls(*(columns[prefix + name] for name in NAMES))

    def to_columns(self, prefix: str = "") -> dict[str, npt.NDArray[Any]]:
        return {prefix + name: getattr(self, name) for name in NAMES}

    @property
    def records(self) -> int:
        return int(self.sums[:, RECORDS].sum())

    @property
    def bytes(self) -> int:
        return int(self.sums[:, BYTES].sum())

    def tally(self, line: int) -> Tally:
        """Return the tally of one line; an empty one if the ledger does not have it."""
        place = int(np.searchsorted(self.lines, line))
        found = place < len(self.lines) and self.lines[place] == line
        return Tally.of_fold(self.sums[place].tolist()) if found else Tally()

    def rows(self, lines: Longs) -> tuple[Words, Longs]:
        """Return the sums of these ascending lines, and their other elements by kind; zeros where the
        ledger has none.
        """
        sums = np.zeros((len(lines), FOLD_COLUMNS), np.uint64)
        kinds = np.zeros((len(lines), max(KIND_NAMES) + 1), np.int64)
        if len(lines):
            known, others = np.isin(self.lines, lines), np.isin(self.other_lines, lines)
            sums[np.searchsorted(lines, self.lines[known])] = self.sums[known]
            kinds[np.searchsorted(lines, self.other_lines[others]), self.other_kinds[others]] = self.other_counts[
                others
            ]
        return sums, kinds

    def total(self) -> Tally:
        """Return all records as one multiset; its chain is meaningless and zero."""
        return Tally.of_fold((*(int(each) for each in self.sums[:, :ORDER].sum(axis=0)), 0, self.records, self.bytes))

    def kinds(self) -> dict[str, int]:
        """Return elements that are not records, by kind."""
        kinds = np.unique(self.other_kinds).tolist()
        found = {kind: int(self.other_counts[self.other_kinds == kind].sum()) for kind in kinds}
        return {KIND_NAMES[kind]: count for kind, count in found.items() if count}

    def reordered(self, lines: Longs, others: Longs) -> Ledger:
        """Return the rows at these places."""
        other = (getattr(self, name)[others] for name in NAMES[2:])
        return Ledger(self.lines[lines], self.sums[lines], *other)

    def without_others(self) -> Ledger:
        """Return records only, as a table holds them."""
        return self.reordered(np.flatnonzero(self.sums[:, RECORDS]), np.zeros(0, np.int64))

    def moved(self, lines: Longs) -> Ledger:
        """Return the ledger with other line numbers; ``lines`` are those of all of this ledger's numbers, by number."""
        return Ledger(lines[self.lines], self.sums, lines[self.other_lines], self.other_kinds, self.other_counts)


NOTHING = Ledger(np.zeros(0, np.int64), np.zeros((0, FOLD_COLUMNS), np.uint64), *(np.zeros(0, np.int64),) * 3)


def join_ledgers(parts: Iterable[Ledger]) -> Ledger:
    """Join parts of one ledger; where several have a line, its sequences follow each other in the order of
    the parts.
    """
    found = [NOTHING, *parts]
    lines = np.concatenate([part.lines for part in found])
    sums = np.concatenate([part.sums for part in found])
    order = np.argsort(lines, kind="stable")
    unique, group = np.unique(lines[order], return_inverse=True)
    joined = sums[order]
    if len(unique) < len(lines):
        powers = np.empty(len(order), np.uint64)
        channel_batches.chain_powers(CHAIN_WORD, np.ascontiguousarray(joined[:, RECORDS]), powers)
        target = np.zeros((len(unique), FOLD_COLUMNS), np.uint64)
        channel_batches.join_sums(group, joined, powers, target)
        joined = target
    others = np.concatenate([np.stack((p.other_lines, p.other_kinds, p.other_counts)) for p in found], axis=1)
    return Ledger(unique, joined, *_summed(*others))


def _summed(lines: Longs, kinds: Longs, counts: Longs) -> tuple[Longs, Longs, Longs]:
    """Return counts by line and kind, in order, each pair once."""
    width = len(KIND_NAMES) + 2
    keys, group = np.unique(lines * width + kinds, return_inverse=True)
    sums = np.zeros(len(keys), np.int64)
    np.add.at(sums, group, counts)
    return keys // width, keys % width, sums


def require_partition(source: Ledger, parts: Ledger, channel_of: Callable[[Longs], Longs], key: KeyOf) -> None:
    """Require that every source record belongs to exactly one part: same count, bytes and fingerprint per virtual
    channel.

    ``source`` has a line per channel; ``channel_of`` returns the channels of the lines of ``parts``.
    """
    channels = channel_of(parts.lines)
    unique, group = np.unique(channels, return_inverse=True)
    sums = np.zeros((len(unique), FOLD_COLUMNS), np.uint64)
    np.add.at(sums, group, parts.sums)
    sums[:, ORDER] = 0
    expected = source.sums.copy()
    expected[:, ORDER] = 0
    with_records = sums[:, RECORDS] > 0
    _require_rows("filter", _records(source.lines, expected), (unique[with_records], sums[with_records]), key)


def require_equal(phase: str, before: Ledger, after: Ledger, key: KeyOf) -> None:
    """Require that each line holds the same records in the same order as before the phase."""
    _require_rows(phase, _records(before.lines, before.sums), _records(after.lines, after.sums), key)


def _records(lines: Longs, sums: Words) -> tuple[Longs, Words]:
    used = sums[:, RECORDS] > 0
    return lines[used], sums[used]


def _require_rows(phase: str, before: tuple[Longs, Words], after: tuple[Longs, Words], key: KeyOf) -> None:
    if np.array_equal(before[0], after[0]) and np.array_equal(before[1], after[1]):
        return
    every = np.union1d(before[0], after[0])
    rows = [np.zeros((len(every), FOLD_COLUMNS), np.uint64) for _ in range(2)]
    for row, (lines, sums) in zip(rows, (before, after), strict=True):
        row[np.searchsorted(every, lines)] = sums
    place = int(np.flatnonzero((rows[0] != rows[1]).any(axis=1))[0])
    expected, actual = (Tally.of_fold(row[place].tolist()) for row in rows)
    raise _difference(phase, key(int(every[place])), expected, actual)


def require_others(phase: str, did: str, expected: Ledger, actual: Ledger, key: KeyOf) -> None:
    """Require that each line holds the expected number of other elements by kind; ``did`` is the phase's verb."""
    width = len(KIND_NAMES) + 2
    wanted, found = (each.other_lines * width + each.other_kinds for each in (expected, actual))
    if np.array_equal(wanted, found) and np.array_equal(expected.other_counts, actual.other_counts):
        return
    every = np.union1d(wanted, found)
    counts = [np.zeros(len(every), np.int64) for _ in range(2)]
    for row, keys, of in zip(counts, (wanted, found), (expected, actual), strict=True):
        row[np.searchsorted(every, keys)] = of.other_counts
    place = int(np.flatnonzero(counts[0] != counts[1])[0])
    where, kind = key(int(every[place]) // width), KIND_NAMES[int(every[place]) % width]
    target = "" if where.new_down is None else f" for new subtask {where.new_down}"
    raise Unbalanced(
        f"{phase} does not balance: it {did} {counts[1][place]} of kind {kind}{target}"
        f" where there should be {counts[0][place]}",
        where=where.where,
        hint="nothing was published",
    )


def _difference(phase: str, key: ChannelKey, expected: Tally, actual: Tally) -> Unbalanced:
    target = "" if key.new_down is None else f" to new subtask {key.new_down}"
    if expected.records != actual.records:
        what = f"{actual.records} records{target} where {expected.records} went in"
    elif expected.same_records(actual):
        what = f"the {actual.records} records{target} changed their order"
    else:
        what = f"the {actual.records} records{target} are not the ones that went in"
    return Unbalanced(f"{phase} does not balance: {what}", where=key.where, hint="nothing was published")


def digest(keys: Sequence[Longs], ledger: Ledger) -> str:
    """Return the SHA-256 over the rows of records, in order, of block after block of lines.

    A block is the columns ``keys`` (exchange, up, down, new_down) and records, bytes, both words and the chain, each as
    little-endian 64-bit numbers, one column behind another.
    """
    found = hashlib.sha256()
    for begin in range(0, len(ledger.lines), BLOCK_LINES):
        block = slice(begin, begin + BLOCK_LINES)
        for column in keys:
            found.update(column[block].astype("<i8").tobytes())
        for place in (RECORDS, BYTES, FIRST, SECOND, ORDER):
            found.update(ledger.sums[block, place].astype("<u8").tobytes())
    return found.hexdigest()
