"""Segments to the rows of a committed table: records only, a segment of many channels at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.channels.channel_scan import element_place
from cdr_core.channels.element_columns import RAW, TIMED, raw_column, repeated, to_batch, type_of
from cdr_core.channels.record_owners import Misplaced, require_old_owners
from cdr_core.channels.table_shapes import FINGERPRINT, LENGTH, TableShape
from cdr_core.drain.segment_elements import SegmentElements
from cdr_core.errors import Where
from cdr_core.flink.decode import BadValue, decode_values
from cdr_core.flink.keys import key_groups
from cdr_core.kernels import frames
from cdr_core.kernels.fingerprint import FINGERPRINT_BYTES
from cdr_core.planning.exchange_binding import PlannedExchange
from cdr_core.planning.job_spec import Partitioner
from cdr_core.planning.plan import Plan

Longs = npt.NDArray[np.int64]


class RowBuilder:
    """Turns the segments of one new subtask into record batches of one schema."""

    def __init__(self, plan: Plan, subtask: int, shape: TableShape) -> None:
        self._plan, self._index, self._shape = plan, plan.subtasks[subtask].index, shape
        self.schema = shape.schema(plan)

    def build(self, elements: SegmentElements) -> pa.RecordBatch:
        """The rows of a segment, in order; a record that does not decode is an error naming its channel."""
        records = elements if elements.records.all() else elements.only(elements.records)
        count, channels = len(records.starts), self._plan.channels
        numbers = channels.of_lines(records.lines)
        exchange = self._plan.exchanges[int(channels.exchange[numbers[0]])]
        times, values = np.empty(count, np.int64), np.empty(count, np.int64)
        frames.element_times(records.data, records.starts, records.tags, times, values)
        of = records.piece
        downs = channels.down[numbers][of]
        columns = {
            "exchange": repeated(exchange.name, count),
            "gate": pa.array(np.full(count, exchange.gate, np.int32)),
            "up": pa.array(channels.up[numbers][of]),
            "down": pa.array(downs),
            "pos": pa.array(records.positions),
            "new_up": pa.array(channels.new_up[numbers][of]),
            "new_down": pa.array(np.full(count, self._index, np.int32)),
            "ts": pa.array(times, mask=~TIMED[records.tags]),
            **self._identity(exchange, records),
        }
        try:
            columns |= _value_columns(exchange, records, values, downs)
        except (BadValue, Misplaced) as error:
            raise self._placed(error, numbers[of], records.positions) from None
        return to_batch(self.schema, columns, count)

    def _identity(self, exchange: PlannedExchange, records: SegmentElements) -> dict[str, pa.Array]:
        """The columns that say what the bytes of a record were."""
        columns = {}
        if self._shape.fills_raw(exchange):
            columns[RAW] = raw_column(records.data, records.starts, records.ends)
        if self._shape.has_fingerprint:
            words = [None, pa.py_buffer(records.fingerprints)]
            count, kind = len(records.starts), pa.binary(FINGERPRINT_BYTES)
            columns[FINGERPRINT] = pa.FixedSizeBinaryArray.from_buffers(kind, count, words)
            columns[LENGTH] = pa.array((records.ends - records.starts).astype(np.int32))
        return columns

    def _placed(self, error: BadValue | Misplaced, numbers: Longs, positions: Longs) -> BadValue | Misplaced:
        number, position = int(numbers[error.record]), int(positions[error.record])
        channel = self._plan.channels[number]
        exchange = self._plan.exchanges[channel.exchange]
        known = Where(
            self._plan.checkpoint, exchange.name, exchange.downstream, channel.down, exchange.gate, channel.up
        )
        return error.at(element_place(self._plan, number, position) or known, position)


def _value_columns(
    exchange: PlannedExchange, records: SegmentElements, values: Longs, downs: npt.NDArray[np.int32]
) -> dict[str, pa.Array]:
    """Value, row kind and key group of records of one exchange."""
    description = type_of(exchange.record)
    decoded = decode_values(description, records.data, values, records.ends)
    columns = {exchange.name: decoded.values, "row_kind": decoded.row_kind}
    if exchange.partitioner == Partitioner.HASH and exchange.key:
        groups = key_groups(description, exchange.key, records.data, values, records.ends, exchange.max_parallelism)
        require_old_owners(exchange, groups, downs)
        columns["key_group"] = pa.array(groups.astype(np.int32, copy=False))
    return columns
