"""Counts the records of each new subtask by reading every record; and sizes that need no reading."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdr_core.channels.batch_scan import batches_of, framed
from cdr_core.channels.batch_selection import record_lanes
from cdr_core.channels.channel_batch import BatchSource
from cdr_core.channels.channel_source import chunks_of, open_channel, place
from cdr_core.channels.record_owners import count_misplaced, window_owners
from cdr_core.errors import CdrError
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.metadata import Side
from cdr_core.flink.types import parse_type
from cdr_core.flink.virtual_channel import windows
from cdr_core.kernels import frames
from cdr_core.planning.estimate import Counted
from cdr_core.planning.handle_sizes import UNKNOWN, payload_sizes
from cdr_core.planning.job_spec import Partitioner
from cdr_core.planning.plan import Plan

WINDOW = 4 * 1024 * 1024
"""Bytes read at once."""

Longs = npt.NDArray[np.int64]


def plan_sizes(checkpoint: Checkpoint, plan: Plan) -> Longs:
    """Return bytes in flight on each channel of the plan, without length fields of chunks; no payload is read.

    Where a handle's size cannot be true, the lengths of its chunks are read.
    """
    found = np.zeros(len(plan.channels), np.int64)
    for number, exchange in enumerate(plan.exchanges):
        members = np.flatnonzero(plan.channels.exchange == number)
        for side in Side:
            columns = checkpoint.columns(exchange.end(side)[0], side)
            rows = exchange.rows_of(columns, plan.channels.up[members], plan.channels.down[members])
            there = rows >= 0
            sizes = payload_sizes(checkpoint, columns, rows[there])
            for unknown in np.flatnonzero(sizes == UNKNOWN):
                piece = columns.slice(int(rows[there][unknown]))
                sizes[unknown] = sum(part.size for part in chunks_of(plan, piece))
            found[members[there]] += sizes
    return found


def count_records(plan: Plan) -> Counted:
    """Return records and bytes of every line. Raise if a record has no owner, or several; the error names it."""
    lines = int(plan.channels.line_first[-1])
    found = Counted(np.zeros(lines, np.int64), np.zeros(lines, np.int64), np.zeros(len(plan.exchanges), np.int64))
    source = BatchSource(plan)
    for numbers, together in batches_of(plan, np.arange(len(plan.channels))):
        if not (together and _count_batch(plan, source, numbers, found)):
            for number in numbers.tolist():
                _count_channel(plan, number, found)
    return found


def _count_batch(plan: Plan, source: BatchSource, numbers: Longs, found: Counted) -> bool:
    """Count whole channels of one exchange together; return False, with nothing counted, in any doubt."""
    if plan.exchanges[int(plan.channels.exchange[numbers[0]])].partitioner == Partitioner.CUSTOM:
        return False  # its owner function is called for the old parallelism channel by channel
    try:
        elements = framed(source.open(numbers))
    except CdrError:
        return False
    lanes = None if elements is None else record_lanes(plan, numbers, *elements)
    if elements is None or lanes is None:
        return False
    window, first = elements
    lines = np.repeat(plan.channels.line_first[numbers], np.diff(first)) + lanes
    np.add.at(found.records, lines[window.records], 1)
    sizes = window.ends - window.starts + frames.LENGTH_BYTES
    np.add.at(found.bytes, lines[window.records], sizes[window.records])
    return True


def _count_channel(plan: Plan, number: int, found: Counted) -> None:
    planned = plan.channels[number]
    exchange = plan.exchanges[planned.exchange]
    description = parse_type(exchange.record)
    where = place(plan, number)
    first, lanes = plan.subtasks[planned.subtasks[0]].index, len(planned.subtasks)
    lines = slice(*plan.channels.line_first[number : number + 2])
    asked = exchange.partitioner == Partitioner.CUSTOM and lanes > 1
    channel = open_channel(plan, number)
    for window in windows(channel, 0, channel.size, 0, WINDOW):
        owners = window_owners(exchange, description, window, where)
        owned = owners >= 0
        places = owners[owned] - first
        sizes = (window.ends - window.starts)[owned] + frames.LENGTH_BYTES
        found.records[lines] += np.bincount(places, minlength=lanes)
        found.bytes[lines] += np.bincount(places, weights=sizes, minlength=lanes).astype(np.int64)
        if asked:
            found.misplaced[planned.exchange] += count_misplaced(exchange, description, window, where)
