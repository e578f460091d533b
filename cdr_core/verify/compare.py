"""A table against its source: all virtual channels of an exchange at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cdr_core.verify.checkpoint import Channel
from cdr_core.verify.digests import Longs
from cdr_core.verify.placement import Ends, misplaced
from cdr_core.verify.report import Difference, Kind, of_records
from cdr_core.verify.rows import Rows
from cdr_core.verify.source import Expected
from cdr_core.verify.spec import Exchange

_NOWHERE = Channel("", 0, 0)
STRANGE = "of a channel that the source does not have"

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an exchange's rows belong: its ends and their new parallelism. ``by_values``: rows have no raw bytes."""

    exchange: Exchange
    ends: Ends
    new_up: int
    new_down: int
    by_values: bool


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """Rows beside what they should be: the number of each row's channel (−1 = none of the source's) and, by index, the
    record of the source at its position (−1 = none), and whether it is this one.
    """

    numbers: Longs
    index: Longs
    equal: Flags


def match(expected: Expected, rows: Rows) -> Matched:
    """Find each row's record by channel and position."""
    numbers = expected.find(rows.up, rows.down)
    width = int(expected.positions.max(initial=0)) + 1
    own = expected.numbers * width + expected.positions
    inside = (numbers >= 0) & (rows.positions >= 0) & (rows.positions < width)
    asked = np.where(inside, numbers * width + rows.positions, -1)
    index = np.searchsorted(own, asked).clip(max=max(len(own) - 1, 0))
    known = inside & (own[index] == asked) if len(own) else np.zeros(len(asked), bool)
    equal = known.copy()
    equal[known] = (expected.digests[index[known]] == rows.digests[known]).all(axis=1)
    return Matched(numbers, np.where(known, index, -1), equal)


def by_channel(exchange: str, kind: Kind, up: Longs, down: Longs, positions: Longs, what: str) -> list[Difference]:
    """One difference for the records of each channel, in the order of channels; positions stay in theirs."""
    order = np.lexsort((down, up))
    ends = np.stack((up[order], down[order]), axis=1)
    bounds = np.flatnonzero(np.append(True, (ends[1:] != ends[:-1]).any(axis=1))[: len(order)]).tolist()
    return [
        difference
        for begin, end in zip(bounds, [*bounds[1:], len(order)], strict=False)
        for difference in of_records(
            kind, Channel(exchange, *ends[begin].tolist()), positions[order[begin:end]].tolist(), what
        )
    ]


@dataclass(slots=True)
class _Findings:
    """Differences of the records of an exchange."""

    exchange: str
    found: list[Difference] = field(default_factory=list)

    def add(self, kind: Kind, up: Longs, down: Longs, positions: Longs, what: str) -> None:
        self.found += by_channel(self.exchange, kind, up, down, positions, what)

    def of_rows(self, kind: Kind, rows: Rows, wrong: Flags | Longs, what: str) -> None:
        self.add(kind, rows.up[wrong], rows.down[wrong], rows.positions[wrong], what)

    def sorted(self) -> list[Difference]:
        """By channel; those of one channel in the order in which they were found."""
        return sorted(self.found, key=lambda each: each.channel or _NOWHERE)


def compare_rows(place: Place, expected: Expected, rows: Rows, matched: Matched, ordered: bool) -> list[Difference]:
    """Every expected record exactly once, unchanged, in order and where it belongs; and nothing else."""
    strange = rows.at(matched.numbers < 0)
    mine = matched.numbers >= 0
    rows, matched = rows.at(mine), Matched(matched.numbers[mine], matched.index[mine], matched.equal[mine])
    found = _Findings(place.exchange.name)
    _compare_records(found, expected, rows, matched)
    _compare_order(found, rows, matched, ordered)
    _compare_places(found, place, expected, rows, matched)
    return [*found.sorted(), *differences(place.exchange.name, Kind.EXTRA, strange, STRANGE)]


def _compare_records(found: _Findings, expected: Expected, rows: Rows, matched: Matched) -> None:
    known = matched.index >= 0
    present = np.zeros(len(expected.positions), bool)
    present[matched.index[known]] = True
    numbers = expected.numbers[~present]
    missing = expected.up[numbers], expected.down[numbers], expected.positions[~present]
    found.add(Kind.MISSING, *missing, "of the source not in the output")
    found.of_rows(Kind.EXTRA, rows, ~known, "in the output that the source does not have")
    # Of rows that claim one position, the right one comes first and counts; the others are too many.
    order = np.lexsort((~matched.equal, matched.index))
    again = np.zeros(len(order), bool)
    again[order[1:]] = matched.index[order[1:]] == matched.index[order[:-1]]
    found.of_rows(Kind.DOUBLED, rows, again & known, "in the output more than once")
    found.of_rows(Kind.CHANGED, rows, known & ~matched.equal & ~again, "changed")


def _compare_order(found: _Findings, rows: Rows, matched: Matched, ordered: bool) -> None:
    """Rows of one new subtask ascend: over all files where the table orders them, else within each file."""
    files = np.zeros(len(rows.files), np.int64) if ordered else rows.files
    order = np.lexsort((files, rows.new_down, matched.numbers))  # stable: rows of a sequence stay in their order
    same = np.ones(max(len(order) - 1, 0), bool)
    for column in (files, rows.new_down, matched.numbers):
        same &= column[order[1:]] == column[order[:-1]]
    late = same & (rows.positions[order[1:]] < rows.positions[order[:-1]])
    found.of_rows(Kind.OUT_OF_ORDER, rows, order[1:][late], "after a later one of the same channel")


def _compare_places(found: _Findings, place: Place, expected: Expected, rows: Rows, matched: Matched) -> None:
    known = matched.index >= 0
    groups = rows.groups
    if place.by_values:
        groups = np.full(len(known), -1)
        groups[known] = expected.groups[matched.index[known]]
    wrong = misplaced(place.exchange.partitioner, place.ends, place.new_down, rows.down, groups, rows.new_down)
    wrong |= (rows.new_down < 0) | (rows.new_down >= place.new_down)
    found.of_rows(Kind.MISPLACED, rows, wrong, "given to a subtask that does not own them")
    found.of_rows(Kind.MISPLACED, rows, rows.new_up != rows.up % place.new_up, "given to the wrong upstream subtask")
    if place.by_values:
        wrong = (groups >= 0) & (groups != rows.groups)
        found.of_rows(Kind.CHANGED, rows, wrong, "with a key group that is not the key's")


def differences(exchange: str, kind: Kind, rows: Rows, what: str) -> list[Difference]:
    """One difference per channel for all of these rows."""
    return by_channel(exchange, kind, rows.up, rows.down, rows.positions, what)
