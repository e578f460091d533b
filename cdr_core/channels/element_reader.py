"""Every in-flight element of a checkpoint, in channel order, as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from cdr_core.channels.channel_ranges import Stretch
from cdr_core.channels.channel_source import open_channel
from cdr_core.channels.element_columns import CONTENT, PLACE, Elements, element_columns, to_batch, value_fields
from cdr_core.channels.record_owners import Misplaced
from cdr_core.flink.decode import BadValue
from cdr_core.flink.virtual_channel import windows
from cdr_core.kernels import frames
from cdr_core.planning.plan import Plan

WINDOW = 1024 * 1024
"""Bytes decoded at once."""

STATES = ("input", "output", "input+output")
"""The sides on which an element's bytes are."""


def element_schema(plan: Plan) -> pa.Schema:
    """Return the columns of all elements: those of a table without its new places, and those that only the
    stream has.
    """
    wire = [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("from_state", pa.string(), nullable=False),
        pa.field("length", pa.int32(), nullable=False),
    ]
    return pa.schema([*PLACE, *wire, *CONTENT, *value_fields(plan)])


OWNER = pa.field("owner", pa.int32())
"""The new downstream subtask of a record; no table has it, readers get it on request."""


def element_batches(
    plan: Plan,
    number: int,
    wanted: frozenset[str] | None = None,
    *,
    replace_text: bool = False,
    stretch: Stretch | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the elements of virtual channel ``number``; only wanted columns are computed.

    Elements before one that does not fit its type, or is not where its key belongs, are yielded before the error is
    raised. ``replace_text``: bytes that are no text become U+FFFD. ``stretch``: only those.
    """
    schema = element_schema(plan)
    if wanted is not None and OWNER.name in wanted:
        schema = schema.append(OWNER)
    if wanted is not None:
        schema = pa.schema([field for field in schema if field.name in wanted])
    channel = open_channel(plan, number)
    names = frozenset(schema.names)
    part = stretch or Stretch(number)
    end = channel.size if part.end is None else part.end
    for window in windows(channel, part.begin, end, part.position, WINDOW):
        positions = np.arange(window.position, window.position + len(window.starts), dtype=np.int64)
        elements = Elements(window.data, window.starts, window.ends, window.tags, positions, window.base)
        failure: BadValue | Misplaced | None = None
        while True:
            try:
                columns = element_columns(plan, number, elements, names, replace_text=replace_text)
                break
            except (BadValue, Misplaced) as error:  # found by its value or later by its key: fewer remain each time
                failure = error
                elements = _before(elements, error.record)
        columns["from_state"] = _states(elements, window.base, channel.input_size)
        if len(elements.starts):
            yield to_batch(schema, columns, len(elements.starts))
        if failure is not None:
            raise failure


def _before(elements: Elements, record: int) -> Elements:
    """Return the elements in front of the record-th record."""
    count = int(np.flatnonzero(elements.tags <= frames.TAG_RECORD)[record])
    starts, ends, tags = elements.starts[:count], elements.ends[:count], elements.tags[:count]
    return Elements(elements.data, starts, ends, tags, elements.positions[:count], elements.base)


def _states(elements: Elements, base: int, input_size: int) -> pa.Array:
    begins_inside = base + elements.starts - frames.LENGTH_BYTES < input_size
    ends_inside = base + elements.ends <= input_size
    state = np.where(ends_inside, 0, np.where(begins_inside, 2, 1)).astype(np.int8)
    return pa.array(STATES).take(pa.array(state))
