"""Comparison of a table with its source: all virtual channels of an exchange at once."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cdr_core.errors import Corrupt
from cdr_core.verify.checkpoint import Channel
from cdr_core.verify.digests import Longs
from cdr_core.verify.placement import Ends, misplaced
from cdr_core.verify.report import Difference, Kind, of_records
from cdr_core.verify.rows import Reading, RowReader, Rows
from cdr_core.verify.source import Expected
from cdr_core.verify.spec import Exchange
from cdr_core.verify.tables import Table

_NOWHERE = Channel("", 0, 0)
STRANGE = "of a channel that the source does not have"

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Place:
    """New placement of an exchange's rows: its ends and their new parallelism. ``by_values``: rows have no
    raw bytes.
    """

    exchange: Exchange
    ends: Ends
    new_up: int
    new_down: int
    by_values: bool


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """Rows matched with source records: the number of each row's channel (−1 = not in the source), the index of the
    source record at its position (−1 = none), and whether the two are equal.
    """

    numbers: Longs
    index: Longs
    equal: Flags


def match(expected: Expected, rows: Rows) -> Matched:
    """Return each row's source record by channel and position."""
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
    """Return one difference for the records of each channel, in the order of channels; positions keep their order."""
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
        """Return the differences by channel; those of one channel in the order in which they were found."""
        return sorted(self.found, key=lambda each: each.channel or _NOWHERE)


def compare_rows(place: Place, expected: Expected, rows: Rows, matched: Matched, ordered: bool) -> list[Difference]:
    """Require every expected record exactly once, unchanged, in order and where it belongs, and no other record."""
    strange = rows.at(matched.numbers < 0)
    known = matched.numbers >= 0
    rows, matched = rows.at(known), Matched(matched.numbers[known], matched.index[known], matched.equal[known])
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
    # Of rows with the same position the right one comes first and counts; the others are duplicates.
    order = np.lexsort((~matched.equal, matched.index))
    again = np.zeros(len(order), bool)
    again[order[1:]] = matched.index[order[1:]] == matched.index[order[:-1]]
    found.of_rows(Kind.DOUBLED, rows, again & known, "in the output more than once")
    found.of_rows(Kind.CHANGED, rows, known & ~matched.equal & ~again, "changed")


def _compare_order(found: _Findings, rows: Rows, matched: Matched, ordered: bool) -> None:
    """Require that rows of one new subtask ascend: over all files where the table orders them, else within
    each file.
    """
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
    """Return one difference per channel for all of these rows."""
    return by_channel(exchange, kind, rows.up, rows.down, rows.positions, what)


def doubled_by_others(
    table: Table, readings: Mapping[str, Reading], expected: Mapping[str, Expected]
) -> Iterator[Difference]:
    """Yield records of the source that files of other writers contain again, with place and content.

    Their other rows belong to the other writers, and so does a file that cannot be read.
    """
    for number, file in enumerate(table.unsigned()):
        reader = RowReader(readings)
        try:
            reader.add_file(number, io.BytesIO(file.read()), file.uri)
        except Corrupt:
            continue
        for name, rows in reader.rows().items():
            if name in expected:
                again = match(expected[name], rows).equal
                yield from differences(
                    name, Kind.DOUBLED, rows.at(again), f"once more in {file.name}, which others appended"
                )
