"""Checks by their bytes whether two sides belong together: records that begin in one's input end in the
other's output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cdr_core.channels.channel_source import announced_size, open_channel
from cdr_core.drafting.ends import End
from cdr_core.errors import CorruptChannelState
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.virtual_channel import ChannelBytes, windows
from cdr_core.planning.job_spec import Partitioner
from cdr_core.planning.plan import PLAN_VERSION, Plan, PlanChannels, PlannedExchange, VirtualChannel

MOST_CHANNELS: Final = 24
LARGEST_CHANNEL: Final = 32 * 1024 * 1024
"""Bytes. A draft must answer soon: it reads so many channels of a pair, and none that is larger."""

_WINDOW: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence in the bytes of a pair of ends.

    ``contradicted``: some channel does not frame into records, so these two do not belong together. ``straddling``:
    channels where a record begins on one side and ends on the other, which no other pair would complete.
    """

    contradicted: bool
    straddling: int


def compare(checkpoint: Checkpoint, output: End, gate: End) -> Evidence:
    """Join some channels of the two and check whether whole records come out; missing files prove nothing."""
    both = sorted(output.channels & gate.channels)
    others = sorted(output.channels ^ gate.channels)
    chosen = [*both, *others][:MOST_CHANNELS]
    plan = _plan(checkpoint, output, gate, chosen)
    straddling = 0
    for number in range(len(chosen)):
        if announced_size(plan, number) > LARGEST_CHANNEL:
            continue
        try:
            channel = open_channel(plan, number)
        except CorruptChannelState:
            continue
        try:
            straddling += _straddles(channel)
        except CorruptChannelState:
            return Evidence(True, 0)
    return Evidence(False, straddling)


def _straddles(channel: ChannelBytes) -> bool:
    """Return whether a record lies on both sides; refuses bytes that are not whole records."""
    on_border = channel.input_size in (0, channel.size)
    for window in windows(channel, 0, channel.size, 0, _WINDOW):
        on_border = on_border or bool(np.any(window.base + window.ends == channel.input_size))
    return not on_border


def _plan(checkpoint: Checkpoint, output: End, gate: End, channels: list[tuple[int, int]]) -> Plan:
    """Return as much of a plan as opening channels takes."""
    ups, downs = output.operator.parallelism, gate.operator.parallelism
    exchange = PlannedExchange(
        name="draft",
        upstream=output.operator.operator_id,
        partition=output.index,
        downstream=gate.operator.operator_id,
        gate=gate.index,
        partitioner=str(Partitioner.REBALANCE),
        record="OPAQUE",
        key=(),
        owner="",
        max_parallelism=gate.operator.max_parallelism,
        old_up=ups,
        old_down=downs,
        new_up=ups,
        new_down=downs,
    )
    virtual = PlanChannels.of(VirtualChannel(0, up, down, up, 0, ()) for up, down in channels)
    return Plan(PLAN_VERSION, checkpoint.address, checkpoint.sha256, "", 1, (exchange,), (), virtual)
