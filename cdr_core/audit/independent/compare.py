"""A table against its source, one virtual channel at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from cdr_core.audit.independent.checkpoint import Channel
from cdr_core.audit.independent.digests import Expected, Longs, as_array
from cdr_core.audit.independent.placement import Ends, misplaced
from cdr_core.audit.independent.report import Difference, Kind, of_records
from cdr_core.audit.independent.rows import Rows
from cdr_core.audit.independent.spec import Exchange

_NONE = np.empty(0, np.int64)
NO_ROWS = Rows(_NONE, _NONE, _NONE, _NONE, _NONE, as_array([]), 0)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an exchange's rows belong: its ends and their new parallelism."""

    exchange: Exchange
    ends: Ends
    new_up: int
    new_down: int


def compare_channel(channel: Channel, place: Place, expected: Expected, rows: Rows, ordered: bool) -> list[Difference]:
    """Every expected record exactly once, unchanged, in order and where it belongs; and nothing else."""
    return [
        *_compare_records(channel, expected, rows),
        *_compare_order(channel, rows, ordered),
        *_compare_places(channel, place, expected, rows),
    ]


def _compare_records(channel: Channel, expected: Expected, rows: Rows) -> Iterator[Difference]:
    known, equal = matches(expected, rows)
    # Of rows that claim one position, the right one comes first and counts; the others are too many.
    order = np.lexsort((~equal, rows.positions))
    positions = rows.positions[order]
    again = np.zeros(len(order), bool)
    again[1:] = positions[1:] == positions[:-1]
    present = np.isin(expected.positions, positions)
    yield from of_records(Kind.MISSING, channel, expected.positions[~present], "of the source not in the output")
    yield from of_records(Kind.EXTRA, channel, positions[~known[order]], "in the output that the source does not have")
    doubled = again & known[order]
    yield from of_records(Kind.DOUBLED, channel, positions[doubled], "in the output more than once")
    changed = known[order] & ~equal[order] & ~again
    yield from of_records(Kind.CHANGED, channel, positions[changed], "changed")


def matches(expected: Expected, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Per row: whether the source has a record at its position, and whether it is this one."""
    if not len(expected.positions):
        nothing = np.zeros(len(rows.positions), bool)
        return nothing, nothing
    index = np.searchsorted(expected.positions, rows.positions).clip(max=len(expected.positions) - 1)
    known = expected.positions[index] == rows.positions
    return known, known & (expected.digests[index] == rows.digests).all(axis=1)


def _compare_order(channel: Channel, rows: Rows, ordered: bool) -> Iterator[Difference]:
    """Rows of one new subtask ascend: over all files where the table orders them, else within each file."""
    sequences = rows.new_down if ordered else rows.new_down * (rows.files.max(initial=0) + 1) + rows.files
    late: list[int] = []
    for sequence in np.unique(sequences):
        positions = rows.positions[sequences == sequence]
        late += positions[1:][positions[1:] < positions[:-1]].tolist()
    yield from of_records(Kind.OUT_OF_ORDER, channel, late, "after a later one of the same channel")


def _compare_places(channel: Channel, place: Place, expected: Expected, rows: Rows) -> Iterator[Difference]:
    groups = _groups(expected, rows)
    down = np.full(len(rows.positions), channel.down, np.int64)
    partitioner = place.exchange.partitioner
    wrong = misplaced(partitioner, place.ends, place.new_down, down, groups, rows.new_down)
    wrong |= (rows.new_down < 0) | (rows.new_down >= place.new_down)
    yield from of_records(Kind.MISPLACED, channel, rows.positions[wrong], "given to a subtask that does not own them")
    wrong = rows.new_up != channel.up % place.new_up
    yield from of_records(Kind.MISPLACED, channel, rows.positions[wrong], "given to the wrong upstream subtask")
    if expected.groups is not None:
        wrong = (groups >= 0) & (groups != rows.groups)
        what = "with a key group that is not the key's"
        yield from of_records(Kind.CHANGED, channel, rows.positions[wrong], what)


def _groups(expected: Expected, rows: Rows) -> Longs:
    if expected.groups is None:
        return rows.groups
    known, _ = matches(expected, rows)
    index = np.searchsorted(expected.positions, rows.positions).clip(max=max(len(expected.positions) - 1, 0))
    return np.where(known, expected.groups[index], -1) if len(expected.positions) else np.full(len(known), -1)


def unknown_channels(rows: Mapping[Channel, Rows], known: set[Channel]) -> Iterator[Difference]:
    """Rows of channels that the source does not have."""
    for channel in sorted(set(rows) - known):
        positions = rows[channel].positions
        yield from of_records(Kind.EXTRA, channel, positions, "of a channel that the source does not have")
