"""The flow of records from old to new subtasks, per exchange, small enough to be drawn. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from cdr_core.metadata import PlannedEnds, PlanSummary
from cdr_core.metadata.recovery_list import Flow

MOST_NODES = 48
"""Subtasks on a side that can be told apart; more of them are drawn in groups of neighbours."""


def picture(plan: PlanSummary | None, flows: Sequence[Flow] | None) -> list[dict[str, Any]]:
    """One picture an exchange of the plan, in its order.

    ``flows`` ``None`` = not counted yet, which differs from zero; without new subtasks the filter has not decided.
    """
    by_exchange: dict[str, list[Flow]] = defaultdict(list)
    for flow in flows or ():
        by_exchange[flow.exchange].append(flow)
    drawn = [_exchange(each, by_exchange[each.name]) for each in (() if plan is None else plan.exchanges)]
    return drawn if flows is not None else [each | {"records": None, "bytes": None} for each in drawn]


def _exchange(exchange: PlannedEnds, flows: Sequence[Flow]) -> dict[str, Any]:
    old, new = exchange.down
    left, right = _group(old), _group(new)
    links: dict[tuple[int, int | None], list[int]] = defaultdict(lambda: [0, 0])
    for flow in flows:
        target = None if flow.new_down is None else flow.new_down // right
        sums = links[flow.down // left, target]
        sums[0] += flow.records
        sums[1] += flow.bytes
    return {
        "exchange": exchange.name,
        "partitioner": exchange.partitioner,
        "old": _side(old, left),
        "new": _side(new, right),
        "records": sum(flow.records for flow in flows),
        "bytes": sum(flow.bytes for flow in flows),
        "links": [
            {"from": down, "to": target, "records": records, "bytes": size}
            for (down, target), (records, size) in sorted(links.items(), key=lambda item: (item[0][0], item[0][1] or 0))
        ],
    }


def _group(subtasks: int) -> int:
    return max(1, -(-subtasks // MOST_NODES))


def _side(subtasks: int, group: int) -> dict[str, Any]:
    starts = range(0, subtasks, group)
    return {
        "subtasks": subtasks,
        "group": group,
        "nodes": [
            str(start) if min(start + group, subtasks) - start == 1 else f"{start}–{min(start + group, subtasks) - 1}"
            for start in starts
        ],
    }
