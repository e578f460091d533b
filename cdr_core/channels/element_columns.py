"""Elements of a virtual channel as Arrow columns, for committed tables, data sources and the shell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.channels.channel_source import place
from cdr_core.channels.record_owners import Misplaced, record_owners, require_old_owner
from cdr_core.errors import Where
from cdr_core.flink.decode import BadValue, decode_values
from cdr_core.flink.element_kinds import KINDS
from cdr_core.flink.keys import key_groups
from cdr_core.flink.types import TypeDescription, parse_type
from cdr_core.kernels import frames
from cdr_core.planning.job_spec import Partitioner
from cdr_core.planning.plan import Plan, PlannedExchange

Longs = npt.NDArray[np.int64]

PLACE = (
    pa.field("exchange", pa.string(), nullable=False),
    pa.field("gate", pa.int32(), nullable=False),
    pa.field("up", pa.int32(), nullable=False),
    pa.field("down", pa.int32(), nullable=False),
    pa.field("pos", pa.int64(), nullable=False),
)
"""The place of an element: its virtual channel and its position in it."""

RAW = "raw"
"""The bytes of an element without its length field."""

CONTENT = (
    pa.field("ts", pa.int64()),
    pa.field("key_group", pa.int32()),
    pa.field("row_kind", pa.string()),
    pa.field(RAW, pa.binary(), nullable=False),
)
"""Columns of every exchange's elements; a record's value is in the struct column named after its exchange."""


def value_fields(plan: Plan) -> list[pa.Field]:
    """Return one struct column per exchange, null in rows of others."""
    return [pa.field(exchange.name, type_of(exchange.record).arrow_type) for exchange in plan.exchanges]


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """Whole elements in a buffer: element i is ``data[starts[i]:ends[i]]``, the tag first.

    ``base`` is the offset of ``data[0]`` in its virtual channel, for errors; ``None`` where that is not known.
    """

    data: npt.NDArray[np.uint8]
    starts: Longs
    ends: Longs
    tags: npt.NDArray[np.int8]
    positions: Longs
    base: int | None = None


def element_columns(
    plan: Plan,
    number: int,
    elements: Elements,
    wanted: frozenset[str] | None = None,
    *,
    replace_text: bool = False,
) -> dict[str, pa.Array]:
    """Return the columns of some elements of virtual channel ``number``; a record that does not decode is named
    exactly.

    Values and keys are decoded only if one of their columns is wanted. ``owner``, the new downstream subtask of each
    record, is a column only where it is named. ``replace_text``: bytes that are no text become U+FFFD, for display
    only.
    """
    channel = plan.channels[number]
    exchange = plan.exchanges[channel.exchange]
    where = _place(plan, number, elements)
    count = len(elements.starts)
    times, values = np.empty(count, np.int64), np.empty(count, np.int64)
    frames.element_times(elements.data, elements.starts, elements.tags, times, values)
    _add_internal_times(elements, times)
    columns = {
        "exchange": repeated(exchange.name, count),
        "gate": _constant(exchange.gate, count),
        "up": _constant(channel.up, count),
        "down": _constant(channel.down, count),
        "pos": pa.array(elements.positions),
        "ts": pa.array(times, mask=~TIMED[elements.tags]),
        **({RAW: raw_column(elements.data, elements.starts, elements.ends)} if wanted is None or RAW in wanted else {}),
    }
    if wanted is None or "kind" in wanted:
        columns["kind"] = _kind_names().take(pa.array(elements.tags))
    if wanted is None or "length" in wanted:
        columns["length"] = pa.array((elements.ends - elements.starts).astype(np.int32))
    if wanted is not None and wanted.isdisjoint({exchange.name, "row_kind", "key_group", "owner"}):
        return columns
    try:
        return columns | _record_columns(exchange, elements, values, where, wanted or frozenset(), replace_text)
    except (BadValue, Misplaced) as error:
        index = _index(elements, error.record)
        raise error.at(_exact(where, elements, index), int(elements.positions[index])) from None


TIMED = np.zeros(frames.TAGS, bool)
TIMED[[frames.TAG_RECORD_WITH_TIMESTAMP, frames.TAG_WATERMARK, frames.TAG_INTERNAL_WATERMARK]] = True
"""By tag, whether its elements have a time."""


def _add_internal_times(elements: Elements, times: Longs) -> None:
    """Set the times of internal watermarks, which follow a subpartition's number. They are rare, so no kernel handles
    them.
    """
    for index in np.flatnonzero(elements.tags == frames.TAG_INTERNAL_WATERMARK).tolist():
        end = int(elements.ends[index])
        times[index] = int.from_bytes(elements.data[end - 8 : end].tobytes(), "big", signed=True)


def _record_columns(
    exchange: PlannedExchange,
    elements: Elements,
    values: Longs,
    where: Where,
    wanted: frozenset[str],
    replace_text: bool,
) -> dict[str, pa.Array]:
    """Return value, row kind, key group and owner; null for elements that are not records."""
    records = elements.tags <= frames.TAG_RECORD
    description = type_of(exchange.record)
    starts, ends = values[records], elements.ends[records]
    decoded = decode_values(description, elements.data, starts, ends, replace_invalid_text=replace_text)
    columns = {exchange.name: decoded.values, "row_kind": decoded.row_kind}
    if exchange.partitioner == Partitioner.HASH and exchange.key:
        groups = key_groups(description, exchange.key, elements.data, starts, ends, exchange.max_parallelism)
        require_old_owner(exchange, groups, where)
        columns["key_group"] = pa.array(groups.astype(np.int32, copy=False))
    # An owner function that sees replaced text may name another owner than the job would, so it gets none.
    if "owner" in wanted and not (decoded.replaced and exchange.partitioner == Partitioner.CUSTOM):
        owners = record_owners(exchange, description, elements.data, starts, ends, where)
        columns["owner"] = pa.array(owners.astype(np.int32))
    if records.all():
        return columns
    places = pa.array(np.cumsum(records) - 1, mask=~records)
    return {name: column.take(places) for name, column in columns.items()}


def _place(plan: Plan, number: int, elements: Elements) -> Where:
    """Return the channel's place with its operator's label, if the checkpoint is open; the drain no longer needs it
    open.
    """
    if elements.base is not None:
        return place(plan, number)
    channel = plan.channels[number]
    exchange = plan.exchanges[channel.exchange]
    return Where(plan.checkpoint, exchange.name, exchange.downstream, channel.down, exchange.gate, channel.up)


def _index(elements: Elements, record: int) -> int:
    """Return which of the elements is the record-th record."""
    return int(np.flatnonzero(elements.tags <= frames.TAG_RECORD)[record])


def _exact(where: Where, elements: Elements, index: int) -> Where:
    """Return the place of an element, its length field included."""
    if elements.base is None:
        return where
    return replace(where, offset=elements.base + int(elements.starts[index]) - frames.LENGTH_BYTES)


@lru_cache(maxsize=256)
def type_of(text: str) -> TypeDescription:
    return parse_type(text)


@lru_cache(maxsize=1)
def _kind_names() -> pa.Array:
    """Return the kind names as an array. It is not made at import: Arrow's first array imports pandas where it is
    installed, and a driver that only plans needs no array.
    """
    return pa.array([KINDS[tag] for tag in range(frames.TAGS)])


def repeated(text: str, count: int) -> pa.Array:
    """Return the same text for every element."""
    data = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data * count))


def _constant(value: int, count: int) -> pa.Array:
    return pa.array(np.full(count, value, np.int32))


def raw_column(data: npt.NDArray[np.uint8], starts: Longs, ends: Longs) -> pa.Array:
    """Return the elements without their length fields, as one binary column."""
    offsets = np.concatenate(([0], np.cumsum(ends - starts))).astype(np.int32)
    packed = np.empty(int(offsets[-1]), np.uint8)
    frames.gather_runs(data, 0, starts, ends, packed)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(packed)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(starts), buffers)


def to_batch(schema: pa.Schema, columns: dict[str, pa.Array], count: int) -> pa.RecordBatch:
    """Return the columns in the schema's order; those that are missing are null."""
    arrays = [columns.get(field.name) for field in schema]
    filled = [
        pa.nulls(count, field.type) if array is None else array for field, array in zip(schema, arrays, strict=True)
    ]
    return pa.RecordBatch.from_arrays(filled, schema=schema)
