"""Ledgers of source and output, computed from what was read, compared with those that a receipt claims.

A receipt of version 2 has digests and totals of its ledgers, and their lines in a file; one of version 1 has the lines
themselves. ``docs/receipt.md`` defines lines and digest; this module is written from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.verify.checkpoint import Channel
from cdr_core.verify.claims import Claims, kinds
from cdr_core.verify.digests import Digests, Longs
from cdr_core.verify.fingerprints import chains
from cdr_core.verify.framing import KINDS
from cdr_core.verify.ledger_file import LedgerBlock, open_ledger
from cdr_core.verify.report import Difference, Kind
from cdr_core.verify.source import Expected

READ, COMMIT = "read", "commit"
PHASES = (READ, COMMIT)
BLOCK_LINES = 65_536
"""Lines that a digest absorbs at once."""

MOST = 1000
"""Differing lines that are reported one by one; the rest are reported as a number."""

RECORDS, BYTES, FIRST, SECOND, CHAIN = range(5)
_SIDES = {READ: "source", COMMIT: "output"}


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """Lines of a ledger in order. ``keys``: exchange (its number), up, down, new subtask (−1 = the whole channel).
    ``sums``: records, bytes, both words of the fingerprint, the order chain.
    """

    keys: Longs
    sums: Digests

    def digest(self) -> str:
        found = Digest()
        for begin in range(0, len(self.keys), BLOCK_LINES):
            found.add(self.keys[begin : begin + BLOCK_LINES], self.sums[begin : begin + BLOCK_LINES])
        return found.hex()


_NOTHING = Lines(np.zeros((0, 4), np.int64), np.zeros((0, 5), np.uint64))


class Digest:
    """Digest of lines that come in pieces: SHA-256 over blocks of lines, by column, little-endian, 64 bits each."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._keys, self._sums = np.zeros((0, 4), np.int64), np.zeros((0, 5), np.uint64)
        self.lines = 0

    def add(self, keys: Longs, sums: Digests) -> None:
        self.lines += len(keys)
        self._keys, self._sums = np.concatenate((self._keys, keys)), np.concatenate((self._sums, sums))
        while len(self._keys) >= BLOCK_LINES:
            self._take(BLOCK_LINES)

    def _take(self, count: int) -> None:
        for columns in (self._keys[:count].astype("<i8").T, self._sums[:count].astype("<u8").T):
            self._sha256.update(np.ascontiguousarray(columns).tobytes())
        self._keys, self._sums = self._keys[count:], self._sums[count:]

    def hex(self) -> str:
        """Return the digest; nothing may be added afterwards."""
        self._take(len(self._keys))
        return self._sha256.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records of an exchange: channel, new subtask (−1 = not distinguished), place among the records of its line, size
    and fingerprint of each.
    """

    up: Longs
    down: Longs
    new_down: Longs
    order: Longs
    sizes: Longs
    words: Digests


@dataclass(slots=True)
class Ledgers:
    """Both ledgers, filled one exchange at a time; ``others`` counts elements that are not records, by kind."""

    names: list[str] = field(default_factory=list)
    parts: dict[str, list[Lines]] = field(default_factory=lambda: {phase: [_NOTHING] for phase in PHASES})
    others: dict[str, int] = field(default_factory=dict)
    uncertain: set[int] = field(default_factory=set)
    other_counts: list[tuple[str, Longs, Longs, npt.NDArray[np.int32]]] = field(default_factory=list)
    """Per exchange: up and down of its channels that have other elements, and how many of each kind."""

    def add(self, name: str, expected: Expected, published: Records, *, certain: bool = True) -> None:
        """Add an exchange's source records and output records. ``certain``: the old channel of each output record is
        known; otherwise only totals are compared.
        """
        number = len(self.names)
        self.uncertain |= set() if certain else {number}
        self.names.append(name)
        of, whole = expected.numbers, np.full(len(expected.positions), -1)
        ends = expected.up[of], expected.down[of]
        lines = _lines(number, Records(*ends, whole, expected.positions, expected.sizes, expected.words))
        silent = (expected.counts == 0) & expected.others.any(axis=1)  # other elements, but no records
        up, down = expected.up[silent], expected.down[silent]
        empty = np.stack((np.full(len(up), number), up, down, np.full(len(up), -1)), axis=1)
        keys = np.concatenate((lines.keys, empty))
        sums = np.concatenate((lines.sums, np.zeros((len(up), 5), np.uint64)))
        order = np.lexsort((keys[:, 2], keys[:, 1]))
        self.parts[READ].append(Lines(keys[order], sums[order]))
        self.parts[COMMIT].append(_lines(number, published))
        for kind, count in zip(KINDS, expected.others.sum(axis=0).tolist(), strict=True):
            self.others[kind] = self.others.get(kind, 0) + count
        there = expected.others.any(axis=1)
        self.other_counts.append((name, expected.up[there], expected.down[there], expected.others[there]))

    def channels_with_others(self) -> dict[Channel, dict[str, int]]:
        """Return a value for each channel; only receipts of version 1 need it."""
        return {
            Channel(name, *ends): {kind: n for kind, n in zip(KINDS, counts, strict=True) if n}
            for name, up, down, rows in self.other_counts
            for *ends, counts in zip(up.tolist(), down.tolist(), rows.tolist(), strict=True)
        }

    def lines(self, phase: str) -> Lines:
        parts = self.parts[phase]
        return Lines(np.concatenate([part.keys for part in parts]), np.concatenate([part.sums for part in parts]))


def _lines(number: int, records: Records) -> Lines:
    """Return the lines of an exchange's records, by channel and new subtask."""
    if not len(records.up):
        return _NOTHING
    order = np.lexsort((records.order, records.new_down, records.down, records.up))
    ends = np.stack((records.up[order], records.down[order], records.new_down[order]), axis=1)
    begins = np.flatnonzero(np.append(True, (ends[1:] != ends[:-1]).any(axis=1)))
    keys = np.concatenate((np.full((len(begins), 1), number), ends[begins]), axis=1)
    words = records.words[order]
    counts = np.diff(np.append(begins, len(order))).astype(np.uint64)
    sizes = np.add.reduceat(records.sizes[order], begins).astype(np.uint64)
    first, second = np.add.reduceat(words, begins, axis=0).T
    return Lines(keys, np.stack((counts, sizes, first, second, chains(words[:, 0], begins)), axis=1))


def check_ledgers(claims: Claims, ledgers: Ledgers, phases: Sequence[str] = PHASES) -> Iterator[Difference]:
    """Compare everything that the receipt claims about these ledgers. A missing or damaged ledger file raises."""
    stated = claims.proof["ledgers"]
    if claims.version == 1:
        if READ in phases:
            yield from _check_others(stated[READ], ledgers)
        for phase in phases:
            yield from _compare_lines(phase, ledgers, _listed(stated[phase], ledgers.names))
        return
    file = open_ledger(claims, PHASES)
    yield from file.differences
    for phase in phases:
        computed = ledgers.lines(phase)
        yield from _check_totals(phase, stated[phase], ledgers.names, computed)
        proven, seen = (int(stated[phase]["lines"]), str(stated[phase]["digest"])), Digest()
        named = list(_compare_lines(phase, ledgers, _seen(file.blocks(phase, ledgers.names), seen)))
        yield from named
        if (seen.lines, seen.hex()) != proven:
            yield Difference(Kind.RECEIPT, f"the lines of {phase} in {file.uri} do not have the digest of the proof")
        certain = phase == READ or not ledgers.uncertain
        if certain and not named and (len(computed.keys), computed.digest()) != proven:
            what = f"the receipt's ledger of {phase} has another digest than the {_SIDES[phase]}"
            yield Difference(Kind.RECEIPT, what)


def _seen(blocks: Iterable[LedgerBlock], digest: Digest) -> Iterator[LedgerBlock]:
    for block in blocks:
        digest.add(*block)
        yield block


def _listed(entries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[LedgerBlock]:
    """Yield the lines of a receipt of version 1."""
    numbers = {name: number for number, name in enumerate(names)}
    keys, sums = [], []
    for line in entries:
        new_down, words = line["new_down"], line["fingerprint"]
        keys.append((numbers.get(line["exchange"], -1), line["up"], line["down"], -1 if new_down is None else new_down))
        hexes = (words[:16], words[16:], line["chain"])
        sums.append((line["records"], line["bytes"], *(int(word, 16) for word in hexes)))
    yield np.array(keys, np.int64).reshape(-1, 4), np.array(sums, np.uint64).reshape(-1, 5)


def _compare_lines(phase: str, ledgers: Ledgers, blocks: Iterable[LedgerBlock]) -> Iterator[Difference]:
    """Compare line by line; a line without records equals a missing line."""
    computed, count = ledgers.lines(phase), 0
    skipped = [] if phase == READ else [*ledgers.uncertain]
    missing = (computed.sums[:, RECORDS] > 0) & ~np.isin(computed.keys[:, 0], skipped)
    base = computed.keys.max(axis=0, initial=0) + 2
    packed = _packed(computed.keys, base)
    for keys, sums in blocks:
        at = np.searchsorted(packed, _packed(keys, base)).clip(max=max(len(packed) - 1, 0))
        known = (computed.keys[at] == keys).all(axis=1) if len(packed) else np.zeros(len(keys), bool)
        matching = np.zeros_like(sums)
        matching[known] = computed.sums[at[known]]
        missing[at[known]] = False
        for row in np.flatnonzero((matching != sums).any(axis=1) & ~np.isin(keys[:, 0], skipped)).tolist():
            count += 1
            if count <= MOST:
                yield _difference(phase, ledgers.names, keys[row], sums[row], matching[row])
    for row in np.flatnonzero(missing).tolist():
        count += 1
        if count <= MOST:
            yield _difference(phase, ledgers.names, computed.keys[row], np.zeros(5, np.uint64), computed.sums[row])
    if count > MOST:
        what = f"{count - MOST} more lines of the receipt's ledger of {phase} are not those of the {_SIDES[phase]}"
        yield Difference(Kind.RECEIPT, what, count - MOST)


def _packed(keys: Longs, base: Longs) -> Longs:
    """Return keys as one number each, in the same order; keys beyond the base may collide, so the caller compares
    again.
    """
    found = np.zeros(len(keys), np.int64)
    for column in range(4):
        found = found * base[column] + (keys[:, column] + 1).clip(0, base[column] - 1)
    return found


def _difference(phase: str, names: Sequence[str], key: Longs, stated: Digests, there: Digests) -> Difference:
    exchange, up, down, new_down = key.tolist()
    claim, found = ([int(each[RECORDS]), int(each[BYTES])] for each in (stated, there))
    target = "" if new_down < 0 else f" for new subtask {new_down}"
    shown = f"{found[0]} records of {found[1]} bytes"
    if claim == found:
        order = stated[FIRST] == there[FIRST] and stated[SECOND] == there[SECOND]
        shown = "the same records in another order" if order else f"{shown} that are not the same"
    what = f"the receipt's ledger has {claim[0]} records of {claim[1]} bytes{target}, the {_SIDES[phase]} {shown}"
    name = names[exchange] if exchange >= 0 else "an exchange that the spec does not have"
    return Difference(Kind.RECEIPT, what, channel=Channel(name, up, down))


def _check_totals(phase: str, stated: Mapping[str, Any], names: Sequence[str], computed: Lines) -> Iterator[Difference]:
    """Compare totals per exchange and per subtask of it: old subtasks of the source, new ones of the output."""
    column, word = (2, "old") if phase == READ else (3, "new")
    claimed = {str(each["name"]): each for each in stated["exchanges"]}
    for name in sorted(claimed.keys() - {*names}):
        yield Difference(Kind.RECEIPT, f"the receipt's ledger of {phase} has exchange {name}, the spec has not")
    for number, name in enumerate(names):
        matching = computed.keys[:, 0] == number
        claim = claimed.get(name, {})
        total = _sum(computed.sums[matching])
        stated_total = claim.get("records"), claim.get("bytes"), claim.get("fingerprint")
        if stated_total != total:
            yield Difference(Kind.RECEIPT, _unlike(phase, f"exchange {name}", stated_total, total))
        subtasks = {int(each[0]): (each[1], each[2], each[3]) for each in claim.get("subtasks", ())}
        unique, group = np.unique(computed.keys[matching, column], return_inverse=True)
        sums = np.zeros((len(unique), 5), np.uint64)
        np.add.at(sums, group, computed.sums[matching])
        there = {index: _sum(sums[row : row + 1]) for row, index in enumerate(unique.tolist())}
        for index in sorted(subtasks.keys() | there.keys()):
            pair = subtasks.get(index, _ZERO), there.get(index, _ZERO)
            if pair[0] != pair[1]:
                place = f"exchange {name}, {word} subtask {index}"
                yield Difference(Kind.RECEIPT, _unlike(phase, place, *pair))


_ZERO = (0, 0, "0" * 32)


def _sum(sums: Digests) -> tuple[int, int, str]:
    records, size, first, second = (int(each) for each in sums[:, :CHAIN].sum(axis=0))
    return records, size, f"{first:016x}{second:016x}"


def _unlike(phase: str, place: str, claim: tuple[Any, Any, Any], there: tuple[int, int, str]) -> str:
    numbers = f"{there[0]} records of {there[1]} bytes"
    if (claim[0], claim[1]) == (there[0], there[1]):
        numbers += " that are not the same"
    stated = f"{claim[0]} records of {claim[1]} bytes"
    return f"{place}: the receipt's ledger of {phase} has {stated}, the {_SIDES[phase]} {numbers}"


def _check_others(entries: Sequence[Mapping[str, Any]], ledgers: Ledgers) -> Iterator[Difference]:
    """Compare the counts of other elements per channel, which a receipt of version 1 has."""
    stated = {}
    for entry in entries:
        counts = {kind: n for kind, n in (entry.get("others") or {}).items() if kind in KINDS and n}
        if counts:
            stated[Channel(str(entry["exchange"]), int(entry["up"]), int(entry["down"]))] = counts
    found = ledgers.channels_with_others()
    for channel in sorted(stated.keys() | found.keys()):
        claim, there = stated.get(channel, {}), found.get(channel, {})
        if claim != there:
            what = f"the receipt's ledger has {kinds(claim)}, the source {kinds(there)}"
            yield Difference(Kind.RECEIPT, what, channel=channel)
