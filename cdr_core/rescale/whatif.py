"""The numbers of a what-if: what each new subtask would get, spill and take. Pure: a plan and sizes in, values out.

A channel with one possible owner is known exactly. The bytes of the others are split evenly over their possible owners,
which is an estimate: only a look at every record tells, and then :func:`counted` gives the truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdr_core.rescale.plan import Plan

SEGMENT_HEADER = 12
"""Bytes in front of each segment of spilled records."""

ASSUMED_SPEED = 30_000_000
"""Bytes a second through all five phases, where nothing better is known.

From docs/benchmarks/recoveries.json: 430 MB, 16 → 12, on two cores take 7 s to `parquet:` and 12 s to `iceberg:`, the
start taken off, which is 35 to 60 MB/s; a little less is assumed. A large recovery that finishes here replaces it.
"""

START_SECONDS = 6.0
"""What any recovery takes, however little is in flight: mostly the start of Spark, which those figures leave out."""


@dataclass(frozen=True, slots=True)
class ExchangeOutlook:
    """An exchange of the plan, by its number there: its channels with data, how many of them have to be looked into,
    and the bytes in flight (in all, and in those).
    """

    exchange: int
    channels: int
    ambiguous: int
    bytes: int
    ambiguous_bytes: int


@dataclass(frozen=True, slots=True)
class SubtaskOutlook:
    """A new subtask, by its number in the plan: from how many channels it may get something, and how much.

    ``low`` is what it gets in any case, ``high`` what it gets if it owns every record that it may own; ``records`` is
    ``None`` where nobody has counted. Counted, ``low``, ``bytes`` and ``high`` are the same.
    """

    subtask: int
    channels: int
    low: int
    bytes: int
    high: int
    spill: int
    records: int | None = None


@dataclass(frozen=True, slots=True)
class Outlook:
    """All numbers of a what-if; ``exact`` when every record was looked at. ``shares``: by channel of the plan the bytes
    that each of its possible owners gets, in the order of its ``subtasks``.
    """

    exact: bool
    exchanges: tuple[ExchangeOutlook, ...]
    subtasks: tuple[SubtaskOutlook, ...]
    shares: tuple[tuple[int, ...], ...]

    @property
    def bytes(self) -> int:
        return sum(exchange.bytes for exchange in self.exchanges)

    @property
    def spill(self) -> int:
        return sum(subtask.spill for subtask in self.subtasks)

    @property
    def records(self) -> int | None:
        return sum(subtask.records or 0 for subtask in self.subtasks) if self.exact else None


@dataclass(frozen=True, slots=True)
class Counted:
    """What a channel's possible owners get, in the order of its ``subtasks``; bytes with the records' length fields.

    ``misplaced`` counts records that a custom exchange's owner function would not have sent where they were going.
    """

    records: tuple[int, ...]
    bytes: tuple[int, ...]
    misplaced: int = 0


def estimated(plan: Plan, sizes: Sequence[int], segment_size: int) -> Outlook:
    """From the bytes in flight on each channel of the plan."""
    low, expected, high, channels, spill = ([0] * len(plan.subtasks) for _ in range(5))
    shares = tuple(_evenly(size, len(channel.subtasks)) for channel, size in zip(plan.channels, sizes, strict=True))
    for channel, size, share in zip(plan.channels, sizes, shares, strict=True):
        for subtask, mine in zip(channel.subtasks, share, strict=True):
            low[subtask] += size if len(channel.subtasks) == 1 else 0
            expected[subtask] += mine
            high[subtask] += size
            channels[subtask] += 1
            spill[subtask] += _spilled(mine, segment_size)
    subtasks = tuple(
        SubtaskOutlook(number, channels[number], low[number], expected[number], high[number], spill[number])
        for number in range(len(plan.subtasks))
    )
    return Outlook(False, _exchanges(plan, sizes), subtasks, shares)


def _evenly(size: int, owners: int) -> tuple[int, ...]:
    """Parts that add up to the whole."""
    share, rest = divmod(size, owners)
    return tuple(share + (place < rest) for place in range(owners))


def counted(plan: Plan, sizes: Sequence[int], counts: Sequence[Counted], segment_size: int) -> Outlook:
    """From what was counted in each channel of the plan; elements that are not records have no owner."""
    records, held, channels, spill = ([0] * len(plan.subtasks) for _ in range(4))
    for channel, count in zip(plan.channels, counts, strict=True):
        for subtask, number, size in zip(channel.subtasks, count.records, count.bytes, strict=True):
            records[subtask] += number
            held[subtask] += size
            channels[subtask] += number > 0
            spill[subtask] += _spilled(size, segment_size)
    subtasks = tuple(
        SubtaskOutlook(n, channels[n], held[n], held[n], held[n], spill[n], records[n])
        for n in range(len(plan.subtasks))
    )
    return Outlook(True, _exchanges(plan, sizes), subtasks, tuple(count.bytes for count in counts))


def misplaced(plan: Plan, counts: Sequence[Counted]) -> Mapping[str, tuple[int, int]]:
    """By exchange: how many of how many records an owner function contradicts; only exchanges with such records."""
    sums: dict[str, tuple[int, int]] = {}
    for channel, count in zip(plan.channels, counts, strict=True):
        name = plan.exchanges[channel.exchange].name
        wrong, of = sums.get(name, (0, 0))
        sums[name] = wrong + count.misplaced, of + sum(count.records)
    return {name: both for name, both in sums.items() if both[0]}


def skew(outlook: Outlook, plan: Plan) -> Mapping[str, float]:
    """By downstream operator's id: the fullest subtask over the mean one; 1 = even, 0 = nothing in flight."""
    loads: dict[str, list[int]] = {}
    for subtask in outlook.subtasks:
        loads.setdefault(plan.subtasks[subtask.subtask].operator, []).append(subtask.bytes)
    return {name: max(held) * len(held) / sum(held) if sum(held) else 0.0 for name, held in loads.items()}


@dataclass(frozen=True, slots=True)
class Speed:
    """Bytes a second through all phases, and where the number comes from."""

    bytes_per_second: float
    source: str


def seconds(outlook: Outlook, speed: Speed) -> float:
    """The start, and the bytes at that speed."""
    return START_SECONDS + outlook.bytes / speed.bytes_per_second


def _exchanges(plan: Plan, sizes: Sequence[int]) -> tuple[ExchangeOutlook, ...]:
    totals = [[0, 0, 0, 0] for _ in plan.exchanges]
    for channel, size in zip(plan.channels, sizes, strict=True):
        ambiguous = len(channel.subtasks) > 1
        for place, value in enumerate((1, int(ambiguous), size, size if ambiguous else 0)):
            totals[channel.exchange][place] += value
    return tuple(ExchangeOutlook(number, *values) for number, values in enumerate(totals))


def _spilled(size: int, segment_size: int) -> int:
    """A channel's bytes in segments of its own."""
    return size + SEGMENT_HEADER * -(-size // segment_size)
