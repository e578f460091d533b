"""Compiles a type description to the program that the walker runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cdr_core.flink.decode.parts import Part, Planner
from cdr_core.flink.types import Array, Kind, Scalar, Struct, StructKind, TypeDescription
from cdr_core.kernels import decode_walk as walker

_VARIABLE = {
    Kind.STRING: walker.STRING,
    Kind.BYTES: walker.BYTES,
    Kind.BIGINT_BIG: walker.BIG,
    Kind.DECIMAL_BIG: walker.DECIMAL,
    Kind.OPAQUE: walker.REST,
}

POJO_NULL, POJO_EXACT = 1, 2
KIND_BITS = 2
"""Bits of a ROW's mask in front of the null bits."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program for the walker. ``paths`` has the part of each row; ``slot_scopes`` the scope of each slot."""

    rows: npt.NDArray[np.int64]
    paths: tuple[str, ...]
    slot_scopes: tuple[int, ...]
    registers: int
    root: Part


@lru_cache(maxsize=256)
def compile_program(description: TypeDescription, wanted: frozenset[str] | None = None) -> Program:
    """Return the program for whole records; or, with ``wanted`` paths, one that finds these parts and stops."""
    planner = Planner(wanted)
    root = planner.plan(description)
    emitter = _Emitter(planner.slotted if wanted is not None else -1)
    emitter.emit_record(root)
    rows = np.array(emitter.rows, dtype=np.int64)
    assert rows.shape[1] == walker.FIELDS
    return Program(rows, tuple(emitter.paths), tuple(planner.slot_scopes), emitter.registers, root)


class _Emitter:
    """Writes the rows; with a number of ``missing`` parts it stops when all have been found."""

    def __init__(self, missing: int) -> None:
        self.rows: list[list[int]] = []
        self.paths: list[str] = []
        self.registers = 0
        self._missing = missing
        self._last = walker.END if missing < 0 else walker.STOP

    def emit_record(self, root: Part) -> None:
        """Emit the whole record, or as much of it as holds the wanted parts."""
        self._emit(root)
        self._row(self._last, "")

    def _row(self, op: int, path: str, *arguments: int) -> int:
        self.rows.append([op, *arguments, *(0,) * (walker.FIELDS - 1 - len(arguments))])
        self.paths.append(path)
        return len(self.rows) - 1

    def _register(self) -> int:
        self.registers += 1
        return self.registers - 1

    def _emit(self, part: Part) -> None:
        if part.flagged:
            self._emit_optional(part, walker.FLAG, 1, 0)
        else:
            self._emit_value(part)

    def _emit_optional(self, part: Part, op: int, a: int, b: int, nested: bool = False) -> None:
        """Emit a row that jumps behind the part if it is null; then the part (with its own flag if ``nested``)."""
        if self._missing == 0:
            return
        test = self._row(op, part.path, a, b, part.first, part.last)
        if nested:
            self._emit(part)
        else:
            self._emit_value(part)
        self.rows[test][5] = len(self.rows)

    def _emit_value(self, part: Part) -> None:
        if self._missing == 0 or part.delta:
            return
        if part.slot >= 0:
            self._missing -= 1
        if isinstance(part.description, Struct):
            self._emit_struct(part, part.description)
        elif isinstance(part.description, Array):
            self._emit_array(part, part.description)
        elif part.run:
            self._emit_fixed(part)
        elif isinstance(part.description, Scalar):
            self._row(_VARIABLE[part.description.kind], part.path, part.slot)
        else:
            self._row(walker.BYTES, part.path, part.slot)

    def _emit_fixed(self, part: Part) -> None:
        if part.slot >= 0:
            self._row(walker.FIXED, part.path, part.run, part.slot)
        elif self.rows and self.rows[-1][0] == walker.SKIP and not self._is_target():
            self.rows[-1][1] += part.run
        else:
            self._row(walker.SKIP, part.path, part.run)

    def _is_target(self) -> bool:
        """Return whether a jump leads to the next row, which then must not be merged into the one before."""
        here = len(self.rows)
        return any(row[5] == here or (row[0] == walker.LIST and row[3] == here) for row in self.rows)

    def _emit_struct(self, part: Part, struct: Struct) -> None:
        if struct.kind is StructKind.TUPLE:
            if part.slot >= 0:
                self._row(walker.MARK, part.path, part.slot)
            for child in part.children:
                self._emit(child)
        elif struct.kind is StructKind.ROW:
            bits = KIND_BITS + len(part.children)
            width, register = (bits + 7) // 8, self._register()
            self._row(walker.MASK, part.path, width, register, part.slot, width * 8 - bits)
            for i, child in enumerate(part.children):
                self._emit_optional(child, walker.BIT, register, KIND_BITS + i, nested=True)
        else:
            self._emit_pojo(part, struct)

    def _emit_pojo(self, part: Part, struct: Struct) -> None:
        flags = self._row(walker.POJO, part.path, POJO_NULL, POJO_EXACT, part.first, part.last)
        if part.slot >= 0:
            self._row(walker.MARK, part.path, part.slot)
        for i in struct.byte_order:
            self._emit_optional(part.children[i], walker.FLAG, 1, 0, nested=True)
        self.rows[flags][5] = len(self.rows)

    def _emit_array(self, part: Part, array: Array) -> None:
        register, element = self._register(), part.children[0]
        head = self._row(walker.LIST, part.path, part.slot, register)
        if array.boxed:
            self._emit_optional(element, walker.FLAG, 0, 1)
        else:
            self._emit(element)
        self._row(walker.NEXT, part.path, register, head + 1)
        self.rows[head][3] = len(self.rows)
