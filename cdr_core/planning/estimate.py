"""The numbers of a what-if: records, spill and time of each new subtask. Pure: a plan and sizes in, values out.

A channel with one possible owner is known exactly. The bytes of the others are split evenly over their possible owners,
which is an estimate; :func:`counted` is exact, after every record was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.planning.plan import Plan

Longs = npt.NDArray[np.int64]

SEGMENT_HEADER = 12
"""Bytes in front of each segment of spilled records."""

ASSUMED_SPEED = 30_000_000
"""Bytes a second through all five phases, where no measurement exists.

From docs/benchmarks/recoveries.json: 430 MB, 16 → 12, on two cores take 7 s to `parquet:` and 12 s to `iceberg:`
without the start, which is 35 to 60 MB/s; a little less is assumed. A large recovery that finishes here replaces it.
"""

START_SECONDS = 6.0
"""Time that any recovery takes, however little is in flight: mostly the start of Spark, which those figures
leave out.
"""


@dataclass(frozen=True, slots=True)
class ExchangeOutlook:
    """An exchange of the plan, by its number there: its channels with data, how many of them must be decoded, and the
    bytes in flight (in all, and in those).
    """

    exchange: int
    channels: int
    ambiguous: int
    bytes: int
    ambiguous_bytes: int


@dataclass(frozen=True, slots=True)
class SubtaskOutlook:
    """A new subtask, by its number in the plan: the number of channels that may give it records, and their bytes.

    ``low`` is the least that it gets, ``high`` the bytes if it owns every record that it may own; ``records`` is
    ``None`` if they were not counted. Counted, ``low``, ``bytes`` and ``high`` are the same.
    """

    subtask: int
    channels: int
    low: int
    bytes: int
    high: int
    spill: int
    records: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """All numbers of a what-if; ``exact`` when every record was read.

    ``sizes``: the bytes of each channel of the plan; ``counted``: those of each of its lines, if they were counted.
    """

    exact: bool
    exchanges: tuple[ExchangeOutlook, ...]
    subtasks: tuple[SubtaskOutlook, ...]
    sizes: Longs
    counted: Longs | None = None

    @property
    def bytes(self) -> int:
        return sum(exchange.bytes for exchange in self.exchanges)

    def shares(self, plan: Plan) -> Longs:
        """Return the bytes that each possible owner of a channel gets, by line of the plan's channels."""
        if self.counted is not None:
            return self.counted
        count = plan.channels.owner_count
        share, rest = np.divmod(self.sizes, count)
        place = np.arange(plan.channels.line_first[-1]) - np.repeat(plan.channels.line_first[:-1], count)
        return np.repeat(share, count) + (place < np.repeat(rest, count))

    @property
    def spill(self) -> int:
        return sum(subtask.spill for subtask in self.subtasks)

    @property
    def records(self) -> int | None:
        return sum(subtask.records or 0 for subtask in self.subtasks) if self.exact else None


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """Counted records and bytes by line of the plan's channels, the records' length fields included.

    ``misplaced`` counts, by exchange, records that its owner function would not have sent where they were going.
    """

    records: Longs
    bytes: Longs
    misplaced: Longs


def estimated(plan: Plan, sizes: Longs, segment_size: int) -> Outlook:
    """Return the what-if from the bytes in flight on each channel of the plan."""
    first, count = plan.channels.owner_first.astype(np.int64), plan.channels.owner_count.astype(np.int64)
    share, rest = np.divmod(sizes, count)

    def spread(value: Longs, begin: Longs, end: Longs) -> list[int]:
        """Add a channel's value to every subtask from ``begin`` to ``end``; sums by subtask."""
        steps = np.zeros(len(plan.subtasks) + 1, np.int64)
        np.add.at(steps, begin, value)
        np.add.at(steps, end, -value)
        found: list[int] = np.cumsum(steps)[:-1].tolist()
        return found

    more, end = first + rest, first + count  # the first owners get a byte more, so that parts add up to the whole
    ones = np.ones_like(sizes)
    low = spread(np.where(count == 1, sizes, 0), first, end)
    expected = np.add(spread(share, first, end), spread(ones, first, more)).tolist()
    spill = np.add(
        spread(_spilled(share + 1, segment_size), first, more), spread(_spilled(share, segment_size), more, end)
    ).tolist()
    columns = (spread(ones, first, end), low, expected, spread(sizes, first, end), spill)
    subtasks = tuple(SubtaskOutlook(number, *row) for number, row in enumerate(zip(*columns, strict=True)))
    return Outlook(False, _exchanges(plan, sizes), subtasks, sizes)


def counted(plan: Plan, sizes: Longs, counts: Counted, segment_size: int) -> Outlook:
    """Return the what-if from counts; elements that are not records have no owner."""
    owner = plan.channels.subtask_of_lines(np.arange(len(counts.records)))

    def by_subtask(values: Longs) -> list[int]:
        sums = np.zeros(len(plan.subtasks), np.int64)
        np.add.at(sums, owner, values)
        found: list[int] = sums.tolist()
        return found

    held, spill = by_subtask(counts.bytes), by_subtask(_spilled(counts.bytes, segment_size))
    channels = by_subtask((counts.records > 0).astype(np.int64))
    columns = (channels, held, held, held, spill, by_subtask(counts.records))
    subtasks = tuple(SubtaskOutlook(number, *row) for number, row in enumerate(zip(*columns, strict=True)))
    return Outlook(True, _exchanges(plan, sizes), subtasks, sizes, counts.bytes)


def misplaced(plan: Plan, counts: Counted) -> Mapping[str, tuple[int, int]]:
    """Return, by exchange, how many of how many records an owner function contradicts; only exchanges with such
    records.
    """
    exchange = plan.channels.exchange[plan.channels.of_lines(np.arange(len(counts.records)))]
    return {
        each.name: (int(wrong), int(counts.records[exchange == number].sum()))
        for number, (each, wrong) in enumerate(zip(plan.exchanges, counts.misplaced, strict=True))
        if wrong
    }


def skew(outlook: Outlook, plan: Plan) -> Mapping[str, float]:
    """Return, by downstream operator's id, the fullest subtask over the mean one; 1 = even, 0 = nothing in flight."""
    loads: dict[str, list[int]] = {}
    for subtask in outlook.subtasks:
        loads.setdefault(plan.subtasks[subtask.subtask].operator, []).append(subtask.bytes)
    return {name: max(held) * len(held) / sum(held) if sum(held) else 0.0 for name, held in loads.items()}


@dataclass(frozen=True, slots=True)
class Speed:
    """Bytes a second through all phases, and the source of the number."""

    bytes_per_second: float
    source: str


def seconds(outlook: Outlook, speed: Speed) -> float:
    """Return the seconds for the start, and for the bytes at that speed."""
    return START_SECONDS + outlook.bytes / speed.bytes_per_second


def _exchanges(plan: Plan, sizes: Longs) -> tuple[ExchangeOutlook, ...]:
    ambiguous = plan.channels.owner_count > 1
    found = []
    for number in range(len(plan.exchanges)):
        members = plan.channels.exchange == number
        both = members & ambiguous
        numbers = (members.sum(), both.sum(), sizes[members].sum(), sizes[both].sum())
        found.append(ExchangeOutlook(number, *(int(each) for each in numbers)))
    return tuple(found)


def _spilled(size: Any, segment_size: int) -> Any:
    """Return a channel's bytes in segments of its own."""
    return size + SEGMENT_HEADER * -(-size // segment_size)
