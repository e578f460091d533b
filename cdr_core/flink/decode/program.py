"""From a type description to the walker's program and the tree of parts its slots belong to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cdr_core.flink.types import Array, Kind, Nullable, RowData, Scalar, Struct, StructKind, TypeDescription
from cdr_core.kernels import decode_walk as walker

WIDTHS = {
    Kind.BOOLEAN: 1,
    Kind.BYTE: 1,
    Kind.SHORT: 2,
    Kind.INT: 4,
    Kind.LONG: 8,
    Kind.FLOAT: 4,
    Kind.DOUBLE: 8,
    Kind.CHAR: 2,
    Kind.INSTANT: 12,
    Kind.DATE: 8,
    Kind.TIME: 8,
    Kind.TIMESTAMP: 12,
    Kind.LOCALDATE: 6,
    Kind.LOCALTIME: 7,
    Kind.LOCALDATETIME: 13,
}
"""Bytes of the values that always take the same."""

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


@dataclass(slots=True)
class Part:
    """A value, struct or array inside the record, in the order of the description.

    ``slot`` is where the walker puts a value's position, an array's count, or where a struct begins; −1 if it is not
    wanted. ``flagged`` parts have NULLABLE's byte in front. ``scope`` numbers the repetition it is in: 0 = once a
    record, else once an element of that scope's array. ``first`` to ``last`` are all its slots of that scope, to be set
    when it is null.
    """

    description: TypeDescription
    path: str
    scope: int
    flagged: bool = False
    slot: int = -1
    first: int = 0
    last: int = 0
    children: list[Part] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Program:
    """What the walker runs. ``paths`` names the part each row is about; ``slot_scopes`` the scope of each slot."""

    rows: npt.NDArray[np.int64]
    paths: tuple[str, ...]
    slot_scopes: tuple[int, ...]
    registers: int
    root: Part


@lru_cache(maxsize=256)
def compile_program(description: TypeDescription, wanted: frozenset[str] | None = None) -> Program:
    """The program for whole records; or, with ``wanted`` paths, one that finds these parts and stops."""
    compiler = _Compiler(wanted)
    root = compiler.plan(description)
    compiler.emit_record(root)
    rows = np.array(compiler.rows, dtype=np.int64)
    assert rows.shape[1] == walker.FIELDS
    return Program(rows, tuple(compiler.paths), tuple(compiler.slot_scopes), compiler.registers, root)


def root_path(description: TypeDescription) -> str:
    """A record that is no struct is shown as the one field f0."""
    inner = description.element if isinstance(description, Nullable) else description
    return "" if isinstance(inner, Struct | RowData) else "f0"


class _Compiler:
    """Two passes: slots are numbered scope by scope, so that a null part's are neighbours; then rows are emitted."""

    def __init__(self, wanted: Collection[str] | None) -> None:
        self.wanted = wanted
        self.rows: list[list[int]] = []
        self.paths: list[str] = []
        self.slot_scopes: list[int] = []
        self.registers = 0
        self._pending: list[tuple[Part, TypeDescription]] = []
        self._scopes = 1
        self._missing = 0

    # --- pass one: slots ---

    def plan(self, description: TypeDescription) -> Part:
        """The tree of parts with their slots; elements of arrays come after everything around them."""
        root = self._plan_part(description, root_path(description), 0)
        while self._pending:
            array, element = self._pending.pop(0)
            array.children.append(self._plan_part(element, f"{array.path}[]", self._scopes))
            self._scopes += 1
        return root

    def _plan_part(self, description: TypeDescription, path: str, scope: int) -> Part:
        flagged = isinstance(description, Nullable)
        inner = description.element if isinstance(description, Nullable) else description
        part = Part(inner, path, scope, flagged, first=len(self.slot_scopes))
        if isinstance(inner, Struct):
            part.slot = self._new_slot(part, 1)
            planned = {}
            for i in inner.byte_order:
                name = f"{path}.{inner.names[i]}" if path else inner.names[i]
                planned[i] = self._plan_part(inner.types[i], name, scope)
            part.children = [planned[i] for i in range(len(planned))]
        elif isinstance(inner, Array):
            part.slot = self._new_slot(part, 1)
            self._pending.append((part, inner.content))
        else:
            fixed = isinstance(inner, Scalar) and inner.kind in WIDTHS
            part.slot = self._new_slot(part, 1 if fixed else 2)
        part.last = len(self.slot_scopes)
        return part

    def _new_slot(self, part: Part, count: int) -> int:
        if self.wanted is not None and part.path not in self.wanted:
            return -1
        self._missing += 1
        self.slot_scopes.extend([part.scope] * count)
        return len(self.slot_scopes) - count

    # --- pass two: rows ---

    def emit_record(self, root: Part) -> None:
        """The whole record, or as much of it as holds the wanted parts."""
        self._emit(root)
        self._row(walker.END if self.wanted is None else walker.STOP, "")

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
        """A row that may find the part null and jump behind it; then the part (with its own flag if ``nested``)."""
        if self._done():
            return
        test = self._row(op, part.path, a, b, part.first, part.last)
        if nested:
            self._emit(part)
        else:
            self._emit_value(part)
        self.rows[test][5] = len(self.rows)

    def _done(self) -> bool:
        return self.wanted is not None and self._missing == 0

    def _emit_value(self, part: Part) -> None:
        if self._done():
            return
        if part.slot >= 0:
            self._missing -= 1
        if isinstance(part.description, Struct):
            self._emit_struct(part, part.description)
        elif isinstance(part.description, Array):
            self._emit_array(part, part.description)
        elif isinstance(part.description, Scalar) and part.description.kind in WIDTHS:
            self._emit_fixed(part, WIDTHS[part.description.kind])
        elif isinstance(part.description, Scalar):
            self._row(_VARIABLE[part.description.kind], part.path, part.slot)
        else:
            self._row(walker.BYTES, part.path, part.slot)

    def _emit_fixed(self, part: Part, width: int) -> None:
        if part.slot >= 0:
            self._row(walker.FIXED, part.path, width, part.slot)
        elif self.rows and self.rows[-1][0] == walker.SKIP and not self._is_target():
            self.rows[-1][1] += width
        else:
            self._row(walker.SKIP, part.path, width)

    def _is_target(self) -> bool:
        """Does a jump lead to where the next row will be? Then it must not melt into the one before."""
        return any(row[5] == len(self.rows) for row in self.rows) or any(
            row[0] == walker.LIST and row[3] == len(self.rows) for row in self.rows
        )

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
