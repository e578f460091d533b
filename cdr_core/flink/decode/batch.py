"""One batch of records through walker and columns to a struct array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.errors import SpecRefused
from cdr_core.flink.decode import columns
from cdr_core.flink.decode.columns import Bytes, Column, Positions
from cdr_core.flink.decode.failure import BadValue, bad_value
from cdr_core.flink.decode.program import Part, Program
from cdr_core.flink.types import Array, Kind, Scalar, Struct
from cdr_core.kernels import decode_walk as walker


@dataclass(frozen=True, slots=True)
class Walked:
    """What the walker found: each slot's stream, and the first record that does not fit, if any."""

    slots: tuple[Positions, ...]
    failure: BadValue | None


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


@dataclass(slots=True)
class Assembly:
    """Builds arrays from parts; remembers the first record with an impossible value, and replacements.

    ``parents`` leads from an entry of a scope to the entry of the scope around it, and so to its record.
    """

    data: Bytes
    slots: tuple[Positions, ...]
    replace: bool
    failure: BadValue | None = None
    replaced: int = 0
    parents: dict[int, tuple[int, npt.NDArray[np.int32]]] | None = None

    def build(self, part: Part) -> Any:
        """The part's Arrow array; nulls of its type where a value is impossible (the failure is kept)."""
        if isinstance(part.description, Struct):
            return self._struct(part)
        if isinstance(part.description, Array):
            return self._list(part)
        assert isinstance(part.description, Scalar)
        column = self._scalar(part, part.description.kind)
        return self.settle(part, column)

    def settle(self, part: Part, column: Column) -> Any:
        """Take over a column: its array, or its problem."""
        self.replaced += column.replaced
        if column.problem is None:
            return column.array
        record = self._record(part.scope, column.problem.index)
        if self.failure is None or record < self.failure.record:
            offset = int(self.slots[part.slot][column.problem.index])
            self.failure = bad_value(column.problem.reason, record, offset, part.path)
        return pa.nulls(len(self.slots[part.slot]), part.description.value_type)

    def _record(self, scope: int, index: int) -> int:
        while scope:
            scope, offsets = (self.parents or {})[scope]
            index = int(np.searchsorted(offsets, index, side="right")) - 1
        return index

    def _scalar(self, part: Part, kind: Kind) -> Column:
        positions = self.slots[part.slot]
        if kind in columns.FIXED:
            return columns.FIXED[kind](self.data, positions)
        sizes = self.slots[part.slot + 1]
        if kind is Kind.STRING:
            return columns.string_column(self.data, positions, sizes, self.replace)
        if kind in (Kind.BYTES, Kind.OPAQUE):
            return columns.bytes_column(self.data, positions, sizes, pa.binary())
        raise SpecRefused(f"{kind} cannot be decoded yet")

    def _struct(self, part: Part) -> Any:
        positions = self.slots[part.slot]
        bitmap, nulls = columns.validity(positions)
        children = [self.build(child) for child in part.children]
        return pa.Array.from_buffers(part.description.value_type, len(positions), [bitmap], nulls, children=children)

    def _list(self, part: Part) -> Any:
        counts = self.slots[part.slot]
        total = int(np.sum(counts, where=counts > 0))
        columns.refuse_oversize(total)
        offsets = np.zeros(len(counts) + 1, dtype=np.int32)
        np.cumsum(np.maximum(counts, 0), out=offsets[1:])
        element = part.children[0]
        self.parents = {**(self.parents or {}), element.scope: (part.scope, offsets)}
        bitmap, nulls = columns.validity(counts)
        buffers = [bitmap, pa.py_buffer(offsets)]
        child = self.build(element)
        return pa.Array.from_buffers(part.description.value_type, len(counts), buffers, nulls, children=[child])
