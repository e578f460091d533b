"""Counting what each new subtask gets, by looking at every record; and the sizes that can be told without."""

from __future__ import annotations

import numpy as np

from cdr_core.flink.channel_state import ChannelSlice
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.metadata import Side
from cdr_core.flink.types import parse_type
from cdr_core.flink.virtual_channel import windows
from cdr_core.kernels import frames
from cdr_core.rescale.announced import payload_size
from cdr_core.rescale.owners import count_misplaced, window_owners
from cdr_core.rescale.plan import Plan
from cdr_core.rescale.source import chunks_of, open_channel, place
from cdr_core.rescale.spec import Partitioner
from cdr_core.rescale.whatif import Counted

WINDOW = 4 * 1024 * 1024
"""Bytes looked at at once."""


def payload_sizes(checkpoint: Checkpoint, plan: Plan) -> tuple[int, ...]:
    """Bytes in flight on each channel of the plan, without length fields of chunks; no payload is read.

    Where a handle's size cannot be true, the lengths of its chunks are read.
    """
    sizes = {}
    for exchange in plan.exchanges:
        for operator, side in ((exchange.downstream, Side.INPUT), (exchange.upstream, Side.OUTPUT)):
            if (operator, side) not in sizes:
                pieces = checkpoint.channels(operator, side)
                sizes[operator, side] = {at: _payload(checkpoint, plan, piece) for at, piece in pieces.items()}
    found = []
    for channel in plan.channels:
        exchange = plan.exchanges[channel.exchange]
        inputs, outputs = sizes[exchange.downstream, Side.INPUT], sizes[exchange.upstream, Side.OUTPUT]
        received = inputs.get(exchange.input_at(channel.up, channel.down), 0)
        found.append(received + outputs.get(exchange.output_at(channel.up, channel.down), 0))
    return tuple(found)


def _payload(checkpoint: Checkpoint, plan: Plan, piece: ChannelSlice) -> int:
    announced = payload_size(checkpoint, piece)
    return sum(part.size for part in chunks_of(plan, piece)) if announced is None else announced


def count_channel(plan: Plan, number: int) -> Counted:
    """Records and bytes of a channel per possible owner; a record that nobody owns, or two do, cannot be counted."""
    planned = plan.channels[number]
    exchange = plan.exchanges[planned.exchange]
    description = parse_type(exchange.record)
    where = place(plan, number)
    first, lanes = plan.subtasks[planned.subtasks[0]].index, len(planned.subtasks)
    records, held, misplaced = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64), 0
    asked = exchange.partitioner == Partitioner.CUSTOM and lanes > 1
    channel = open_channel(plan, number)
    for window in windows(channel, 0, channel.size, 0, WINDOW):
        owners = window_owners(exchange, description, window, where)
        owned = owners >= 0
        places = owners[owned] - first
        sizes = (window.ends - window.starts)[owned] + frames.LENGTH_BYTES
        records += np.bincount(places, minlength=lanes)
        held += np.bincount(places, weights=sizes, minlength=lanes).astype(np.int64)
        misplaced += count_misplaced(exchange, description, window, where) if asked else 0
    return Counted(tuple(records.tolist()), tuple(held.tolist()), misplaced)
