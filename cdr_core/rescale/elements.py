"""Every in-flight element of a checkpoint, in channel order, as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from cdr_core.flink.virtual_channel import windows
from cdr_core.rescale.columns import CONTENT, PLACE, Elements, element_columns, to_batch, value_fields
from cdr_core.rescale.plan import Plan
from cdr_core.rescale.source import open_channel

WINDOW = 1024 * 1024
"""Bytes decoded at once."""

STATES = ("input", "output", "input+output")
"""Which side's state an element's bytes are in."""


def element_schema(plan: Plan) -> pa.Schema:
    """The columns of all elements: those of a table without its new places, and what only the wire knows."""
    wire = [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("from_state", pa.string(), nullable=False),
        pa.field("length", pa.int32(), nullable=False),
    ]
    return pa.schema([*PLACE, *wire, *CONTENT, *value_fields(plan)])


def element_batches(plan: Plan, number: int, wanted: frozenset[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The elements of virtual channel ``number``; only the wanted columns, so that others cost nothing."""
    schema = element_schema(plan)
    if wanted is not None:
        schema = pa.schema([field for field in schema if field.name in wanted])
    channel = open_channel(plan, number)
    for window in windows(channel, 0, channel.size, 0, WINDOW):
        count = len(window.starts)
        positions = np.arange(window.position, window.position + count, dtype=np.int64)
        elements = Elements(window.data, window.starts, window.ends, window.tags, positions, window.base)
        columns = element_columns(plan, number, elements, frozenset(schema.names))
        begins_inside = window.base + window.starts - 4 < channel.input_size
        ends_inside = window.base + window.ends <= channel.input_size
        state = np.where(ends_inside, 0, np.where(begins_inside, 2, 1)).astype(np.int8)
        columns["from_state"] = pa.array(STATES).take(pa.array(state))
        yield to_batch(schema, columns, count)
