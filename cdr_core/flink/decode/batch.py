"""One batch of records through walker and columns to a struct array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.flink.decode import columns
from cdr_core.flink.decode.columns import Bytes, Column, Level, Positions
from cdr_core.flink.decode.failure import BadValue, bad_value
from cdr_core.flink.decode.parts import Part
from cdr_core.flink.decode.program import Program
from cdr_core.flink.decode.rowdata import RowColumns, Spans
from cdr_core.flink.types import Array, Kind, RowData, Scalar, Struct
from cdr_core.kernels import decode_walk as walker


@dataclass(frozen=True, slots=True)
class Walked:
    """Result of the walker: each slot's stream, and the first record that does not fit, if any."""

    slots: tuple[Positions, ...]
    failure: BadValue | None


def as_input(data: Bytes, starts: Positions, ends: Positions) -> tuple[Bytes, Positions, Positions]:
    """Return the same arrays, contiguous and read-only, because numba compiles a kernel anew for each kind of array."""
    data, starts, ends = (
        np.ascontiguousarray(data, np.uint8)[:],
        np.ascontiguousarray(starts, np.int64)[:],
        np.ascontiguousarray(ends, np.int64)[:],
    )
    data.flags.writeable = starts.flags.writeable = ends.flags.writeable = False
    return data, starts, ends


def walk(program: Program, data: Bytes, starts: Positions, ends: Positions) -> Walked:
    """Run the program. With arrays a first run counts their elements, so that the second has exactly enough room."""
    count = len(program.slot_scopes)
    room = np.full(count, len(starts), dtype=np.int64)
    if any(program.slot_scopes):
        room[:] = 0
        failure = _run(program, data, starts, ends, False, np.empty(0, dtype=np.int64), room)
        if failure is not None:
            return Walked((), failure)
    cursors = np.concatenate(([0], np.cumsum(room)[:-1])).astype(np.int64) if count else room
    begins = cursors.copy()
    slots = np.empty(int(room.sum()), dtype=np.int64)
    failure = _run(program, data, starts, ends, True, slots, cursors)
    streams = tuple(slots[begin : begin + size] for begin, size in zip(begins, room, strict=True))
    return Walked(streams, failure)


def _run(
    program: Program, data: Bytes, starts: Positions, ends: Positions, store: bool, slots: Positions, cursors: Positions
) -> BadValue | None:
    failure = np.zeros(3, dtype=np.int64)
    registers = np.zeros(program.registers + 1, dtype=np.int64)
    bad = walker.walk(data, starts, ends, program.rows, store, slots, cursors, registers, failure)
    if bad < 0:
        return None
    reason, row, offset = (int(value) for value in failure)
    return bad_value(reason, bad, offset, program.paths[row])


def mask_kinds(data: Bytes, positions: Positions) -> npt.NDArray[np.uint8]:
    """Return the row kinds in the masks of ROWs: their first two bits, the low one first; 0 for a null."""
    heads = data[np.maximum(positions, 0)]
    return np.where(positions < 0, np.uint8(0), heads >> np.uint8(7) | heads >> np.uint8(5) & np.uint8(2))


class Assembly:
    """Builds Arrow arrays from parts; keeps the fault of the earliest record, and counts replacements."""

    def __init__(self, data: Bytes, slots: tuple[Positions, ...], count: int, replace: bool) -> None:
        self.rows = RowColumns(data, replace)
        self._data = data
        self._slots = slots
        self._replace = replace
        self._levels = {0: Level()}
        self._counts = {0: count}

    def build(self, part: Part) -> Any:
        """Return the part's array; void where there is a fault."""
        description, level = part.description, self._levels[part.scope]
        if isinstance(description, Struct):
            return self._struct(part)
        positions = self._slots[part.slot]
        if isinstance(description, Array):
            return self._list(part, level, positions)
        if isinstance(description, RowData):
            sizes = self._slots[part.slot + 1]
            return self.rows.build(description.names, description.types, Spans(positions, sizes), level, part.path)
        assert isinstance(description, Scalar)
        column = self._scalar(description.kind, part, positions)
        return self.rows.settle(column, description.value_type, positions, level, part.path)

    def _scalar(self, kind: Kind, part: Part, positions: Positions) -> Column:
        data = self._data[part.delta :]  # so that a position is the part's, not that of the first in its run
        if kind in columns.FIXED:
            return columns.FIXED[kind](data, positions)
        if kind is Kind.CHAR:
            return columns.character_column(data, positions, self._replace)
        if kind in columns.LAYOUTS:
            return columns.time_column(data, positions, columns.LAYOUTS[kind])
        sizes = self._slots[part.slot + 1]
        if kind is Kind.STRING:
            return columns.string_column(data, positions, sizes, self._replace)
        if kind in (Kind.BIGINT_BIG, Kind.DECIMAL_BIG):
            return columns.big_column(data, positions, sizes, kind is Kind.DECIMAL_BIG)
        return columns.bytes_column(data, positions, sizes, pa.binary())

    def _struct(self, part: Part) -> Any:
        bitmap, nulls = columns.validity(self._slots[part.slot]) if part.slot >= 0 else (None, 0)
        children = [self.build(child) for child in part.children]
        count = self._counts[part.scope]
        return pa.Array.from_buffers(part.description.value_type, count, [bitmap], nulls, children=children)

    def _list(self, part: Part, level: Level, counts: Positions) -> Any:
        offsets = columns.list_offsets(counts)
        element = part.children[0]
        self._levels[element.scope] = Level(level, offsets)
        self._counts[element.scope] = int(offsets[-1])
        bitmap, nulls = columns.validity(counts)
        buffers = [bitmap, pa.py_buffer(offsets)]
        child = self.build(element)
        return pa.Array.from_buffers(part.description.value_type, len(counts), buffers, nulls, children=[child])
