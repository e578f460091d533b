"""Binary rows to Arrow, column by column and level by level: a nested row or array is one more batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdr_core.flink.decode import columns
from cdr_core.flink.decode.columns import Bytes, Column, Level, Positions, Problem
from cdr_core.flink.decode.failure import Faults
from cdr_core.flink.types.sql import (
    ARROW_TIMESTAMP,
    BINARIES,
    COMPACT_DECIMAL,
    COMPACT_TIMESTAMP,
    STRINGS,
    TIMESTAMPS,
    SqlKind,
    SqlType,
)
from cdr_core.kernels import decode_text, rowdata, rowdata_values, values

_FIXED: dict[SqlKind, Callable[[Bytes, Positions], Column]] = {
    SqlKind.BOOLEAN: columns.boolean_column,
    SqlKind.TINYINT: columns.gathered(pa.int8(), np.uint8, values.gather_8),
    SqlKind.SMALLINT: columns.gathered(pa.int16(), np.uint16, rowdata_values.gather_le16),
    SqlKind.INT: columns.gathered(pa.int32(), np.uint32, rowdata_values.gather_le32),
    SqlKind.BIGINT: columns.gathered(pa.int64(), np.uint64, rowdata_values.gather_le64),
    SqlKind.FLOAT: columns.gathered(pa.float32(), np.uint32, rowdata_values.gather_le32),
    SqlKind.DOUBLE: columns.gathered(pa.float64(), np.uint64, rowdata_values.gather_le64),
    SqlKind.DATE: columns.gathered(pa.date32(), np.uint32, rowdata_values.gather_le32),
    SqlKind.INTERVAL_MONTHS: columns.gathered(pa.int32(), np.uint32, rowdata_values.gather_le32),
    SqlKind.INTERVAL_MILLIS: columns.gathered(pa.int64(), np.uint64, rowdata_values.gather_le64),
}


@dataclass(frozen=True, slots=True)
class Spans:
    """Rows, arrays or byte strings: where each begins (−1 = null) and how many bytes it has."""

    starts: Positions
    sizes: Positions


@dataclass(frozen=True, slots=True)
class Cells:
    """One field of each entry: where its slot is (−1 = null), and the row or array around it."""

    positions: Positions
    around: Spans
    level: Level
    path: str


class RowColumns:
    """Builds the arrays of binary rows; they are valid unless ``faults`` has one. ``replaced`` counts replaced text."""

    def __init__(self, data: Bytes, replace: bool) -> None:
        self._data = data
        self._replace = replace
        self.faults = Faults()
        self.replaced = 0

    def build(self, names: tuple[str, ...], types: tuple[SqlType, ...], rows: Spans, level: Level, path: str) -> Any:
        """Return the struct array of rows with these fields."""
        header = rowdata.header_bytes(len(types))
        bad, reason = rowdata.check_rows(self._data, rows.starts, rows.sizes, header + rowdata.SLOT * len(types))
        struct = pa.struct([pa.field(n, t.arrow_type) for n, t in zip(names, types, strict=True)])
        if bad >= 0:
            return self.settle(Column(None, Problem(bad, reason)), struct, rows.starts, level, path)
        children = []
        for i, (name, type_) in enumerate(zip(names, types, strict=True)):
            positions = np.empty(len(rows.starts), dtype=np.int64)
            rowdata.row_cells(self._data, rows.starts, i, header, positions)
            cells = Cells(positions, rows, level, f"{path}.{name}" if path else name)
            children.append(self._column(type_, cells))
        bitmap, nulls = columns.validity(rows.starts)
        return pa.Array.from_buffers(struct, len(rows.starts), [bitmap], nulls, children=children)

    def settle(self, column: Column, arrow_type: pa.DataType, positions: Positions, level: Level, path: str) -> Any:
        """Return a column's array; or, where it has a problem, record its fault and return nulls in its place."""
        self.replaced += column.replaced
        if column.problem is None:
            return column.array
        index = column.problem.index
        self.faults.note(column.problem.reason, level.record(index), int(positions[index]), path)
        return pa.nulls(len(positions), arrow_type)

    def _column(self, type_: SqlType, cells: Cells) -> Any:
        if type_.kind in _NESTED:
            return _NESTED[type_.kind](self, type_, cells)
        column = self._flat(type_, cells)
        return self.settle(column, type_.arrow_type, cells.positions, cells.level, cells.path)

    def _flat(self, type_: SqlType, cells: Cells) -> Column:
        if type_.kind in _FIXED:
            return _FIXED[type_.kind](self._data, cells.positions)
        if type_.kind is SqlKind.DECIMAL:
            return self._decimals(type_, cells)
        if type_.kind in TIMESTAMPS:
            return self._timestamps(type_, cells)
        if type_.kind is SqlKind.TIME:
            return self._times(cells)
        spans = self._spans(cells, inline=type_.kind in STRINGS | BINARIES)
        if isinstance(spans, Problem):
            return Column(None, spans)
        if type_.kind in STRINGS:
            return self._strings(spans)
        return columns.bytes_column(self._data, spans.starts, spans.sizes, pa.binary())

    def _spans(self, cells: Cells, inline: bool = False) -> Spans | Problem:
        count = len(cells.positions)
        spans = Spans(np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64))
        around = cells.around
        bad = rowdata.find_spans(
            self._data, cells.positions, around.starts, around.sizes, inline, spans.starts, spans.sizes
        )
        return spans if bad < 0 else Problem(bad, values.BAD_SPAN)

    def _strings(self, spans: Spans) -> Column:
        bound = columns.total(spans.sizes) * (3 if self._replace else 1)
        columns.refuse_oversize(bound)
        offsets = np.zeros(len(spans.starts) + 1, dtype=np.int32)
        out = np.empty(bound + values.SLACK, dtype=np.uint8)
        used, bad, replaced = rowdata_values.gather_utf8(
            self._data, spans.starts, spans.sizes, self._replace, offsets, out
        )
        if bad >= 0:
            return Column(None, Problem(bad, values.BAD_UTF8))
        return Column(columns.variable_array(pa.string(), spans.starts, offsets, out[:used]), None, replaced)

    def _decimals(self, type_: SqlType, cells: Cells) -> Column:
        out = np.empty(2 * len(cells.positions), dtype=np.uint64)
        limit = 10**type_.precision
        if type_.precision <= COMPACT_DECIMAL:
            bad = rowdata_values.gather_compact_decimals(self._data, cells.positions, limit, out)
        else:
            spans = self._spans(cells)
            if isinstance(spans, Problem):
                return Column(None, spans)
            words = np.array([limit & (2**64 - 1), limit >> 64], dtype=np.uint64)
            bad = rowdata_values.gather_decimals(self._data, spans.starts, spans.sizes, words, out)
        if bad >= 0:
            return Column(None, Problem(bad, values.BAD_DECIMAL))
        return columns.fixed_column(type_.arrow_type, cells.positions, out)

    def _timestamps(self, type_: SqlType, cells: Cells) -> Column:
        count = len(cells.positions)
        millis, nanos = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        if type_.precision <= COMPACT_TIMESTAMP:
            rowdata_values.gather_le64(self._data, cells.positions, millis.view(np.uint64))
        else:
            around = cells.around
            bad = rowdata.find_timestamps(self._data, cells.positions, around.starts, around.sizes, millis, nanos)
            if bad >= 0:
                return Column(None, Problem(bad, values.BAD_SPAN))
        if type_.precision > ARROW_TIMESTAMP:
            return self._moments(type_, cells, millis, nanos)
        micros = np.empty(count, dtype=np.int64)
        bad = rowdata_values.to_micros(millis, nanos, micros)
        if bad >= 0:
            return Column(None, Problem(bad, values.TOO_FINE))
        return columns.fixed_column(type_.arrow_type, cells.positions, micros)

    def _moments(self, type_: SqlType, cells: Cells, millis: Positions, nanos: Positions) -> Column:
        offsets, out = _room_for_times(len(cells.positions))
        zone = type_.kind is SqlKind.TIMESTAMP_LTZ
        used, bad = rowdata_values.gather_moments(cells.positions, millis, nanos, zone, offsets, out)
        if bad >= 0:
            return Column(None, Problem(bad, values.BAD_TIME))
        return Column(columns.variable_array(pa.string(), cells.positions, offsets, out[:used]))

    def _times(self, cells: Cells) -> Column:
        offsets, out = _room_for_times(len(cells.positions))
        used, bad = rowdata_values.gather_times_of_day(self._data, cells.positions, offsets, out)
        if bad >= 0:
            return Column(None, Problem(bad, values.BAD_TIME))
        return Column(columns.variable_array(pa.string(), cells.positions, offsets, out[:used]))

    # --- nested types ---

    def _fault(self, type_: SqlType, cells: Cells, problem: Problem) -> Any:
        return self.settle(Column(None, problem), type_.arrow_type, cells.positions, cells.level, cells.path)

    def _row(self, type_: SqlType, cells: Cells) -> Any:
        spans = self._spans(cells)
        if isinstance(spans, Problem):
            return self._fault(type_, cells, spans)
        return self.build(type_.names, type_.children, spans, cells.level, cells.path)

    def _array(self, type_: SqlType, cells: Cells) -> Any:
        spans = self._spans(cells)
        if isinstance(spans, Problem):
            return self._fault(type_, cells, spans)
        counts = np.empty(len(spans.starts), dtype=np.int64)
        bad = rowdata.count_elements(self._data, spans.starts, spans.sizes, type_.children[0].width, counts)
        if bad >= 0:
            return self._fault(type_, cells, Problem(bad, values.BAD_SPAN))
        offsets = columns.list_offsets(counts)
        child = self._elements(type_.children[0], spans, counts, Level(cells.level, offsets), cells.path)
        bitmap, nulls = columns.validity(spans.starts)
        buffers = [bitmap, pa.py_buffer(offsets)]
        return pa.Array.from_buffers(type_.arrow_type, len(counts), buffers, nulls, children=[child])

    def _elements(self, type_: SqlType, arrays: Spans, counts: Positions, level: Level, path: str) -> Any:
        repeats = np.maximum(counts, 0)
        positions = np.empty(int(repeats.sum()), dtype=np.int64)
        rowdata.array_cells(self._data, arrays.starts, counts, type_.width, positions)
        around = Spans(np.repeat(arrays.starts, repeats), np.repeat(arrays.sizes, repeats))
        return self._column(type_, Cells(positions, around, level, f"{path}[]"))

    def _map(self, type_: SqlType, cells: Cells) -> Any:
        maps = self._spans(cells)
        if isinstance(maps, Problem):
            return self._fault(type_, cells, maps)
        key_type = type_.children[0]
        value_type = type_.children[1] if type_.kind is SqlKind.MAP else SqlType(SqlKind.INT)
        key_sizes, starts, sizes, counts, value_counts = (np.empty(len(maps.starts), dtype=np.int64) for _ in range(5))
        keys, entries = Spans(maps.starts, key_sizes), Spans(starts, sizes)
        bad = rowdata.split_maps(self._data, maps.starts, maps.sizes, key_sizes, starts, sizes)
        for spans, element, into in ((keys, key_type, counts), (entries, value_type, value_counts)):
            if bad < 0:
                bad = rowdata.count_elements(self._data, spans.starts, spans.sizes, element.width, into)
        if bad < 0:
            bad = rowdata.check_pairs(counts, value_counts)
        if bad >= 0:
            return self._fault(type_, cells, Problem(bad, values.BAD_SPAN))
        offsets = columns.list_offsets(counts)
        level = Level(cells.level, offsets)
        pairs = [
            self._elements(key_type, keys, counts, level, cells.path),
            self._elements(value_type, entries, counts, level, cells.path),
        ]
        if pairs[0].null_count:
            null = int(np.argmax(pairs[0].is_null().to_numpy(zero_copy_only=False)))
            self.faults.note(values.BAD_KEY, level.record(null), -1, cells.path)
            return pa.nulls(len(counts), type_.arrow_type)
        return _map_array(type_.arrow_type, pairs, offsets, maps.starts)


def _map_array(map_type: pa.MapType, pairs: list[Any], offsets: Any, starts: Positions) -> Any:
    bitmap, nulls = columns.validity(starts)
    entry = pa.struct([map_type.key_field, map_type.item_field])
    child = pa.Array.from_buffers(entry, len(pairs[0]), [None], 0, children=pairs)
    return pa.Array.from_buffers(map_type, len(starts), [bitmap, pa.py_buffer(offsets)], nulls, children=[child])


def _room_for_times(count: int) -> tuple[Any, Bytes]:
    bound = decode_text.MAX_TIME_TEXT * count
    columns.refuse_oversize(bound)
    return np.zeros(count + 1, dtype=np.int32), np.empty(bound, dtype=np.uint8)


_NESTED: dict[SqlKind, Callable[[RowColumns, SqlType, Cells], Any]] = {
    SqlKind.ROW: RowColumns._row,
    SqlKind.ARRAY: RowColumns._array,
    SqlKind.MAP: RowColumns._map,
    SqlKind.MULTISET: RowColumns._map,
}
