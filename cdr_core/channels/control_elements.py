"""The rule for elements that are not records when channels are cut and merged, and its accounting.

A new channel C = (new subtask, gate, new upstream subtask) is fed by the virtual channels whose records may arrive on
it: old upstream subtasks that map to its upstream, times old downstream subtasks whose records its subtask may own. All
of them count, also those without in-flight data: as in Flink, a connection that was silent has seen no watermark.

``KEPT``
    One feed, and all of that feed's records go to C. Every element of every kind stays in its place, so the bytes of a
    channel whose ends keep their parallelism are the same before and after.
``REPLICATED``
    One feed, but its records are divided among several new subtasks. Watermarks, internal watermarks and statuses stay
    in their place *at each of them*: they apply to all records behind them, at every owner. Latency
    markers and record attributes are dropped: a marker that arrives twice is measured twice, and a backlog that was
    announced for one channel is not one of several.
``MERGED``
    Several feeds. The feeds follow one after another, so no watermark inside any of them is true of the whole: what is
    not a record leaves the stream. Behind the last record of C follow

    1. one watermark: the minimum of the last watermarks of all feeds, idle or not, as Flink's own demultiplexer takes
       it. None at all if a feed has none;
    2. one status, *idle*, if the last status of every feed is idle. Nothing otherwise: a channel begins as active and C
       has carried no status before, so its reader takes it for *active* already. It comes after the watermark,
       because Flink ignores a watermark of an idle channel.

    Latency markers, attributes and internal watermarks (whose subpartition does not exist on the merged channel) are
    dropped.

Every element of the source is thus kept, merged or dropped, and counted as exactly one of them: *kept* if it is in its
place on at least one new channel, *merged* if it is a watermark or status that closing elements summarise,
*dropped* otherwise. Copies (replicated) and closing elements are counted apart, where they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cdr_core.flink.element_kinds import OTHER_KINDS
from cdr_core.kernels import frames
from cdr_core.planning.job_spec import Partitioner
from cdr_core.planning.plan import Plan, PlannedExchange
from cdr_core.planning.subtask_mapping import new_owners

Longs = npt.NDArray[np.int64]

IDLE: Final = -1
"""A watermark status in the stream; 0 is active."""

CLOSING_POSITION: Final = -1
"""Position of a closing element: it has no place in a virtual channel, because it summarises all of them."""

CLOSING_PREFIX: Final = "closing_"


class Rule(StrEnum):
    """How the elements of one virtual channel that are no records go on to one of its new channels."""

    KEPT = "kept"
    REPLICATED = "replicated"
    MERGED = "merged"


_CARRIED: Final = {
    Rule.KEPT: frozenset(OTHER_KINDS),
    Rule.REPLICATED: frozenset(
        {frames.TAG_WATERMARK, frames.TAG_WATERMARK_STATUS, frames.TAG_INTERNAL_WATERMARK},
    ),
    Rule.MERGED: frozenset[int](),
}
"""Tags that stay in their place."""

_SUMMED_UP: Final = frozenset({frames.TAG_WATERMARK, frames.TAG_WATERMARK_STATUS})
"""Tags that closing elements summarise."""

SUMMED_UP: Final = frozenset(OTHER_KINDS[tag] for tag in _SUMMED_UP)


_RULES: Final = tuple(Rule)
KEPT_RULE, _REPLICATED_RULE, MERGED_RULE = range(len(_RULES))


@lru_cache(maxsize=64)
def _downs_into(exchange: PlannedExchange) -> tuple[tuple[int, ...], ...]:
    """Return, by new downstream subtask, the old ones whose records it may own."""
    into: list[list[int]] = [[] for _ in range(exchange.new_down)]
    partitioner = Partitioner(exchange.partitioner)
    for down in range(exchange.old_down):
        owners = new_owners(partitioner, down, exchange.old_down, exchange.new_down, exchange.max_parallelism)
        for owner in owners:
            into[owner].append(down)
    return tuple(map(tuple, into))


def rules(plan: Plan, number: int) -> tuple[Rule, ...]:
    """Return the rule for each possible owner of a virtual channel, in their order."""
    channel = plan.channels[number]
    exchange = plan.exchanges[channel.exchange]
    single = Rule.KEPT if len(channel.subtasks) == 1 else Rule.REPLICATED
    ups = len(range(channel.new_up, exchange.old_up, exchange.new_up))
    return tuple(
        single if ups * len(_downs_into(exchange)[plan.subtasks[subtask].index]) == 1 else Rule.MERGED
        for subtask in channel.subtasks
    )


def feed_counts(plan: Plan, lines: Longs) -> Longs:
    """Return how many virtual channels feed the new channel of each line, those without data included."""
    channels = plan.channels.of_lines(lines)
    exchange, subtasks = plan.channels.exchange[channels], plan.channels.subtask_of_lines(lines)
    indexes = np.array([subtask.index for subtask in plan.subtasks], np.int64)[subtasks]
    found = np.zeros(len(lines), np.int64)
    for number, planned in enumerate(plan.exchanges):
        members = exchange == number
        ups = -(-(planned.old_up - plan.channels.new_up[channels[members]]) // planned.new_up)
        found[members] = ups * np.array([len(downs) for downs in _downs_into(planned)], np.int64)[indexes[members]]
    return found


def line_rules(plan: Plan, lines: Longs) -> npt.NDArray[np.int8]:
    """Return the rule of each line, as its place in :class:`Rule`."""
    owners = plan.channels.owner_count[plan.channels.of_lines(lines)]
    single = np.where(owners == 1, KEPT_RULE, _REPLICATED_RULE)
    return np.where(feed_counts(plan, lines) == 1, single, MERGED_RULE).astype(np.int8)


def carried_by(rules_of: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Return, per line and tag, whether such an element stays in its place by the line's rule."""
    return carried(_RULES)[rules_of]


def carried(of: Sequence[Rule]) -> npt.NDArray[np.uint8]:
    """Return, per lane and tag, whether such an element stays in its place; all of a record's columns are 0."""
    table = np.zeros((len(of), frames.TAGS), np.uint8)
    for lane, rule in enumerate(of):
        table[lane, sorted(_CARRIED[rule])] = 1
    return table


def account(in_place: Sequence[int], left: Sequence[int]) -> dict[str, dict[str, int]]:
    """Return counts by kind of elements that stayed in place somewhere, and of those that left the stream,
    both by tag.
    """
    return {
        "kept": _by_kind(in_place, OTHER_KINDS),
        "merged": _by_kind(left, _SUMMED_UP),
        "dropped": _by_kind(left, OTHER_KINDS.keys() - _SUMMED_UP),
    }


def _by_kind(counts: Sequence[int], tags: Iterable[int]) -> dict[str, int]:
    return {OTHER_KINDS[tag]: int(counts[tag]) for tag in sorted(tags) if counts[tag]}


def kinds(counts: Sequence[int]) -> dict[str, int]:
    """Return counts by tag as counts by kind; records and kinds that do not occur are left out."""
    return _by_kind(counts, OTHER_KINDS)


@dataclass(frozen=True, slots=True)
class Last:
    """The last watermark of a virtual channel, and whether its last status was idle; ``None`` = it has none."""

    watermark: int | None = None
    idle: bool | None = None

    def to_json(self) -> dict[str, Any]:
        return {"watermark": self.watermark, "idle": self.idle}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Last:
        return cls(value["watermark"], value["idle"])
