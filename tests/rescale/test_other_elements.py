"""The rule for elements that are not records, as pure functions."""

from __future__ import annotations

import numpy as np
import pytest

from cdr_core.channels.closing_elements import closings
from cdr_core.channels.control_elements import Last, Rule, _downs_into, account, carried
from cdr_core.flink.element_kinds import OTHER_KINDS
from cdr_core.kernels import frames
from cdr_core.planning.plan import PLAN_VERSION, Plan, PlannedExchange, Subtask, lay_out
from cdr_core.planning.subtask_mapping import new_channel

W, S = frames.TAG_WATERMARK, frames.TAG_WATERMARK_STATUS


def exchange(partitioner: str, ups: tuple[int, int], downs: tuple[int, int]) -> PlannedExchange:
    return PlannedExchange(
        name="main",
        upstream="a",
        partition=0,
        downstream="b",
        gate=0,
        partitioner=partitioner,
        record="LONG",
        key=("f0",),
        owner="",
        max_parallelism=128,
        old_up=ups[0],
        old_down=downs[0],
        new_up=ups[1],
        new_down=downs[1],
    )


def closing(last: list[Last]) -> Last:
    """Return what the closing elements of a channel state that has these feeds."""
    feeds, zeros = len(last), np.zeros(len(last), np.int64)
    merged, subtasks = exchange("rebalance", (feeds, 1), (1, 1)), (Subtask("a", 0), Subtask("b", 0))
    channels = lay_out((merged,), subtasks, zeros, np.arange(feeds), zeros, zeros)
    plan = Plan(PLAN_VERSION, "", "", "", 1, (merged,), subtasks, channels)
    watermark = np.array([each.watermark or 0 for each in last], np.int64)
    known = np.array([each.watermark is not None for each in last])
    found = closings(plan, watermark, known, np.array([bool(each.idle) for each in last]))
    assert len(found) <= 1
    if not len(found):
        return Last()
    return Last(int(found.watermark[0]) if found.has_watermark[0] else None, True if found.idle[0] else None)


def feeds(planned: PlannedExchange, new_up: int, new_down: int) -> list[tuple[int, int]]:
    """Return the virtual channels (up, down) whose records may arrive on the new channel (new_up → new_down)."""
    ups = [up for up in range(planned.old_up) if new_channel(up, planned.new_up) == new_up]
    return [(up, down) for up in ups for down in _downs_into(planned)[new_down]]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ([Last(5), Last(3)], Last(3)),
        ([Last(5), Last(None)], Last(None)),
        ([Last(5), Last(3, idle=True)], Last(3)),
        ([Last(5), Last(None, idle=True)], Last(None)),
        ([Last(None), Last(3, idle=True)], Last(None)),
        ([Last(5, idle=True), Last(3, idle=True)], Last(3, idle=True)),
        ([Last(5, idle=True), Last(None, idle=True)], Last(None, idle=True)),
        ([Last(5, idle=False), Last(3, idle=True)], Last(3)),
        ([Last(5, idle=False), Last(3, idle=False)], Last(3)),
        ([Last(), Last()], Last()),
        ([Last(-(2**63)), Last(2**63 - 1)], Last(-(2**63))),
    ],
)
def test_what_merged_channels_say_together(last: list[Last], expected: Last) -> None:
    assert closing(last) == expected
    assert closing(last[::-1]) == expected


def test_a_new_channel_is_fed_by_every_old_connection_that_may_deliver_to_it() -> None:
    """Also by those without in-flight data: the product of old upstream and old downstream subtasks."""
    keyed = exchange("hash", (3, 2), (2, 3))
    assert feeds(keyed, 0, 0) == [(0, 0), (2, 0)]
    assert feeds(keyed, 0, 1) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert feeds(keyed, 1, 2) == [(1, 1)]
    assert feeds(exchange("rebalance", (1, 1), (4, 2)), 0, 1) == [(0, 1), (0, 3)]
    assert feeds(exchange("rebalance", (2, 4), (2, 4)), 3, 3) == []
    assert feeds(exchange("global", (1, 1), (2, 3)), 0, 0) == [(0, 0), (0, 1)]


def test_each_kind_is_kept_merged_or_dropped_exactly_once() -> None:
    counts = list(range(10, 10 + frames.TAGS))
    for nothing, something in ((counts, [0] * frames.TAGS), ([0] * frames.TAGS, counts)):
        parts = account(nothing, something)
        together = {kind: sum(part.get(kind, 0) for part in parts.values()) for kind in OTHER_KINDS.values()}
        assert together == {kind: counts[tag] for tag, kind in OTHER_KINDS.items()}
    assert account([0] * frames.TAGS, counts)["merged"].keys() == {"watermark", "watermark_status"}


def test_what_a_rule_carries_is_what_its_ledger_expects() -> None:
    table = carried(list(Rule))
    kinds = {rule: {OTHER_KINDS[tag] for tag in OTHER_KINDS if table[lane, tag]} for lane, rule in enumerate(Rule)}
    assert not table[:, :2].any(), "a record goes to its owner, not where its tag says"
    assert kinds == {
        Rule.KEPT: {*OTHER_KINDS.values()},
        Rule.REPLICATED: {"watermark", "watermark_status", "internal_watermark"},
        Rule.MERGED: set(),
    }
