"""Segments to Arrow rows: the columns of a committed table, decoded by kernels, a segment at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.audit.ledger import Tally
from cdr_core.errors import CorruptChannelState, Where
from cdr_core.flink.decode import decode_values
from cdr_core.flink.keys import key_groups
from cdr_core.flink.types import TypeDescription, parse_type
from cdr_core.kernels import fingerprint, frames
from cdr_core.rescale.plan import Plan, PlannedExchange, VirtualChannel
from cdr_core.rescale.spec import Partitioner
from cdr_core.spill.reader import SegmentBody

PROVENANCE = (
    pa.field("exchange", pa.string(), nullable=False),
    pa.field("gate", pa.int32(), nullable=False),
    pa.field("up", pa.int32(), nullable=False),
    pa.field("down", pa.int32(), nullable=False),
    pa.field("pos", pa.int64(), nullable=False),
    pa.field("new_up", pa.int32(), nullable=False),
    pa.field("new_down", pa.int32(), nullable=False),
    pa.field("ts", pa.int64()),
    pa.field("key_group", pa.int32()),
    pa.field("row_kind", pa.string()),
    pa.field("raw", pa.binary(), nullable=False),
)


def table_schema(plan: Plan) -> pa.Schema:
    """Provenance, the raw bytes of the element, and one struct column per exchange."""
    structs = [pa.field(e.name, parse_type(e.record).arrow_type) for e in plan.exchanges]
    return pa.schema([*PROVENANCE, *structs])


@dataclass(frozen=True, slots=True, eq=False)
class _Records:
    """The frames of a segment body, all of them records."""

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]


class RowBuilder:
    """Turns the segments of one new subtask into record batches of one schema, and tallies what it saw."""

    def __init__(self, plan: Plan, subtask: int) -> None:
        self._plan, self._subtask = plan, plan.subtasks[subtask]
        self.schema = table_schema(plan)
        self._types: dict[str, TypeDescription] = {e.name: parse_type(e.record) for e in plan.exchanges}
        self._tallies: dict[int, Tally] = {}

    @property
    def tallies(self) -> dict[int, Tally]:
        """What was built so far, by virtual channel number."""
        return dict(self._tallies)

    def build(self, body: SegmentBody) -> pa.RecordBatch:
        """The rows of a segment, in order; a record that does not decode is an error naming its channel."""
        channel = self._plan.channels[body.segment.virtual_channel]
        exchange = self._plan.exchanges[channel.exchange]
        records = self._frames(body, channel, exchange)
        self._tally(body.segment.virtual_channel, records)
        columns = self._columns(body, channel, exchange, records)
        arrays = [columns.get(field.name, None) for field in self.schema]
        count = len(records.starts)
        filled = [
            pa.nulls(count, field.type) if array is None else array
            for field, array in zip(self.schema, arrays, strict=True)
        ]
        return pa.RecordBatch.from_arrays(filled, schema=self.schema)

    def _frames(self, body: SegmentBody, channel: VirtualChannel, exchange: PlannedExchange) -> _Records:
        count = body.segment.records
        starts, ends = np.empty(count, np.int64), np.empty(count, np.int64)
        tags = np.empty(count, np.int8)
        size = len(body.body)
        found, used, outcome = frames.scan_frames(body.body, size, starts, ends, tags, size)
        if (found, used, outcome) != (count, size, frames.OK) or (count and tags.max() > frames.TAG_RECORD):
            raise CorruptChannelState(
                "a spill segment does not hold the records it was sealed with", where=_where(channel, exchange)
            )
        times, values = np.empty(count, np.int64), np.empty(count, np.int64)
        frames.element_times(body.body, starts, tags, times, values)
        return _Records(body.body, starts, ends, times, values)

    def _columns(
        self, body: SegmentBody, channel: VirtualChannel, exchange: PlannedExchange, records: _Records
    ) -> dict[str, pa.Array]:
        count = len(records.starts)
        decoded = decode_values(self._types[exchange.name], records.data, records.values, records.ends)
        columns = {
            "exchange": pa.array([exchange.name] * 1).take(pa.array(np.zeros(count, np.int32))),
            "gate": _constant(exchange.gate, count),
            "up": _constant(channel.up, count),
            "down": _constant(channel.down, count),
            "pos": pa.array(body.positions),
            "new_up": _constant(channel.new_up, count),
            "new_down": _constant(self._subtask.index, count),
            "ts": pa.array(records.times, mask=records.times == frames.NO_TIMESTAMP),
            "row_kind": decoded.row_kind,
            "raw": _raw(records),
            exchange.name: decoded.values,
        }
        if exchange.partitioner == Partitioner.HASH and exchange.key:
            groups = key_groups(
                self._types[exchange.name],
                exchange.key,
                records.data,
                records.values,
                records.ends,
                exchange.max_parallelism,
            )
            columns["key_group"] = pa.array(groups.astype(np.int32, copy=False))
        return columns

    def _tally(self, number: int, records: _Records) -> None:
        sums = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64)
        lanes = np.zeros(len(records.starts), np.int64)
        fingerprint.fold_records(records.data, records.starts, records.ends, lanes, sums)
        self._tallies[number] = self._tallies.get(number, Tally()).then(Tally.of_fold(sums[0]))


def _constant(value: int, count: int) -> pa.Array:
    return pa.array(np.full(count, value, np.int32))


def _raw(records: _Records) -> pa.Array:
    """The elements without their length fields, as one binary column."""
    lengths = records.ends - records.starts
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    data = np.empty(int(offsets[-1]), np.uint8)
    frames.gather_runs(records.data, 0, records.starts, records.ends, data)
    return pa.BinaryArray.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _where(channel: VirtualChannel, exchange: PlannedExchange) -> Where:
    return Where(exchange=exchange.name, subtask=channel.down, gate=exchange.gate, channel=channel.up)
