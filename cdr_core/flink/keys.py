"""Key groups of records, and the subtasks that own key groups.

A key of one field is that value itself, as ``keyBy(t -> t.f0)`` has it; several fields are a tuple of them. Keys of
ROWDATA are a binary row of the key columns, as the SQL planner projects them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from cdr_core.errors import SpecRefused
from cdr_core.flink.decode.batch import as_input, mask_kinds, walk
from cdr_core.flink.decode.columns import LAYOUTS, Bytes, Positions
from cdr_core.flink.decode.failure import bad_value
from cdr_core.flink.decode.parts import Part
from cdr_core.flink.decode.program import Program, compile_program
from cdr_core.flink.types import Array, Kind, RowData, Scalar, SqlKind, SqlType, Struct, StructKind, TypeDescription
from cdr_core.flink.types.sql import BINARIES, COMPACT_DECIMAL, COMPACT_TIMESTAMP, NESTED, STRINGS, TIMESTAMPS
from cdr_core.kernels import decode_text, decode_walk, hashes, hashes_objects, hashes_rows, key_sort, rowdata, values

Hashes = npt.NDArray[np.uint32]

MOST_KEY_GROUPS: Final = 1 << 15
"""Flink runs nothing at a higher max parallelism, and so at no higher parallelism."""

_FIXED = {
    Kind.BOOLEAN: hashes.hash_booleans,
    Kind.BYTE: hashes.hash_8,
    Kind.SHORT: hashes.hash_16,
    Kind.CHAR: hashes.hash_characters,
    Kind.INT: hashes.hash_32,
    Kind.LONG: hashes.hash_64,
    Kind.FLOAT: hashes.hash_floats,
    Kind.DOUBLE: hashes.hash_doubles,
    Kind.DATE: hashes_objects.hash_millis,
    Kind.TIME: hashes_objects.hash_millis,
    Kind.TIMESTAMP: hashes_objects.hash_millis,
}

_PLACED = {
    Kind.LONG: (key_sort.LONG, decode_walk.FIXED),
    Kind.INT: (key_sort.INT, decode_walk.FIXED),
    Kind.STRING: (key_sort.STRING, decode_walk.STRING),
}
"""Keys that a kernel finds by itself, and the walker's operation that they are."""


def owner(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the subtask that owns the key group."""
    return key_group * parallelism // max_parallelism


def key_group_range(index: int, parallelism: int, max_parallelism: int) -> tuple[int, int]:
    """Return the first and last key group of a subtask, both inclusive; last < first when it owns none."""
    first = (index * max_parallelism + parallelism - 1) // parallelism
    return first, ((index + 1) * max_parallelism - 1) // parallelism


class KeyWithoutHash(SpecRefused):
    """The record has the key, but its hash cannot be computed here; refused only where the hash is needed."""


def check_key(description: TypeDescription, key: Sequence[str]) -> None:
    """Refuse a key that the record does not have, or (:class:`KeyWithoutHash`) whose hash only its Java class knows."""
    _plan(description, tuple(key))


@lru_cache(maxsize=256)
def key_place(description: TypeDescription, key: tuple[str, ...]) -> npt.NDArray[np.int64] | None:
    """Return where the key lies in every record, for :mod:`cdr_core.kernels.key_sort`; ``None`` if its place varies.

    That is one field behind fields of a fixed length, or of a binary row one column in its slot.
    """
    plan = _plan(description, key)
    place = np.zeros(key_sort.PLACE_FIELDS, np.int64)
    if isinstance(description, RowData):
        if len(plan.columns) != 1 or plan.columns[0, 1] != hashes_rows.FIXED:
            return None
        header = rowdata.header_bytes(len(description.types))
        fixed = header + rowdata.SLOT * len(description.types)
        place[:] = (key_sort.ROW, 0, plan.columns[0, 0], header, plan.columns[0, 2], fixed)
        return place
    *before, found, last = plan.program.rows.tolist()
    part = plan.parts[0]
    kind = part.description.kind if isinstance(part.description, Scalar) else None
    if len(plan.parts) > 1 or part.flagged or part.delta or kind not in _PLACED or last[0] != decode_walk.STOP:
        return None
    how, operation = _PLACED[kind]
    if found[0] != operation or any(row[0] != decode_walk.SKIP for row in before):
        return None
    place[key_sort.HOW], place[key_sort.OFFSET] = how, sum(row[1] for row in before)
    return place


def key_groups(
    description: TypeDescription,
    key: Sequence[str],
    data: Bytes,
    starts: Positions,
    ends: Positions,
    max_parallelism: int,
) -> npt.NDArray[np.int32]:
    """Return the key group of each record ``data[starts[i]:ends[i]]``; raises as :func:`key_hashes`."""
    return groups_of(key_hashes(description, key, data, starts, ends), max_parallelism)


def key_hashes(
    description: TypeDescription, key: Sequence[str], data: Bytes, starts: Positions, ends: Positions
) -> Hashes:
    """Return the Java hash code of each record's key.

    Names are fields of the record, with dots into nested ones (``f0.id``). Bytes behind the last key field are not
    read. Raises BadValue for the first record that ends before its key or has none, SpecRefused as ``check_key``.
    """
    plan = _plan(description, tuple(key))
    data, starts, ends = as_input(data, starts, ends)
    walked = walk(plan.program, data, starts, ends)
    if walked.failure is not None:
        raise walked.failure
    if isinstance(description, RowData):
        return _hash_rows(plan, description, data, *walked.slots)
    return _Hasher(data, walked.slots, len(starts)).key(plan.parts)


def groups_of(codes: Hashes, max_parallelism: int) -> npt.NDArray[np.int32]:
    """Return the key group of each hash code."""
    groups = np.empty(len(codes), dtype=np.int32)
    hashes.to_key_groups(codes, max_parallelism, groups)
    return groups


def key_type(description: TypeDescription, key: Sequence[str]) -> TypeDescription:
    """Return the type of a key: of its one field, a tuple of several, a row of SQL columns. Raises as ``check_key``."""
    plan = _plan(description, tuple(key))
    if isinstance(description, RowData):
        return RowData(tuple(key), tuple(description.types[description.names.index(name)] for name in key))
    types = tuple(part.description for part in plan.parts)
    return types[0] if len(types) == 1 else Struct(StructKind.TUPLE, tuple(f"f{i}" for i in range(len(types))), types)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Steps that find a key: its ``parts``, or of a SQL key (field, how, width) of each of its ``columns``."""

    program: Program
    parts: tuple[Part, ...]
    columns: npt.NDArray[np.int64]
    names: tuple[str, ...]


@lru_cache(maxsize=256)
def _plan(description: TypeDescription, key: tuple[str, ...]) -> _Plan:
    if not key:
        raise SpecRefused("there is no key field", hint="name the key's fields in the job spec")
    if isinstance(description, RowData):
        columns = [_sql_column(description, name) for name in key]
        return _Plan(compile_program(description, frozenset({""})), (), np.array(columns, dtype=np.int64), key)
    everything = _by_path(compile_program(description).root)
    for name in key:
        _check_part(name, name, everything.get(name), everything)
    wanted = frozenset(path for name in key for path in _by_path(everything[name]))
    program = compile_program(description, wanted)
    found = _by_path(program.root)
    return _Plan(program, tuple(found[name] for name in key), np.empty((0, 3), dtype=np.int64), key)


def _by_path(part: Part) -> dict[str, Part]:
    """Return the part and those inside it, arrays' elements apart."""
    result = {part.path: part}
    if isinstance(part.description, Struct):
        for child in part.children:
            result.update(_by_path(child))
    return result


def _check_part(key: str, path: str, part: Part | None, everything: dict[str, Part]) -> None:
    if part is None or not path:
        fields = ", ".join(known for known in everything if known)
        raise SpecRefused(f"the record has no field {path!r} for its key", hint=f"its fields are {fields}")
    description = part.description
    if isinstance(description, Struct) and description.kind is not StructKind.POJO:
        for child in part.children:
            _check_part(key, child.path, child, everything)
        return
    reason = ""
    if isinstance(description, Struct):
        reason = "a POJO's hash code is the user's own"
    elif isinstance(description, Array) or (isinstance(description, Scalar) and description.kind is Kind.BYTES):
        reason = "Java arrays have no hash code of their content, so Flink takes none as a key"
    elif isinstance(description, RowData):
        reason = "a row inside another type has no stable hash code"
    elif isinstance(description, Scalar) and description.kind is Kind.OPAQUE:
        reason = "its bytes are not described"
    if reason:
        raise KeyWithoutHash(
            f"field {path!r} of type {description.text} cannot be the key {key!r}: {reason}",
            hint="name the fields that the job's key selector returns",
        )


def _sql_column(description: RowData, name: str) -> tuple[int, int, int]:
    if name not in description.names:
        raise SpecRefused(
            f"the record has no field {name!r} for its key", hint=f"its fields are {', '.join(description.names)}"
        )
    field = description.names.index(name)
    type_ = description.types[field]
    if type_.kind in NESTED:
        raise KeyWithoutHash(
            f"field {name!r} of type {type_.text} cannot be a key here", hint="keys are columns without parts"
        )
    return field, _how(type_), type_.width


def _how(type_: SqlType) -> int:
    if type_.kind in STRINGS | BINARIES:
        return hashes_rows.BYTES
    if type_.kind is SqlKind.DECIMAL and type_.precision > COMPACT_DECIMAL:
        return hashes_rows.DECIMAL
    if type_.kind in TIMESTAMPS and type_.precision > COMPACT_TIMESTAMP:
        return hashes_rows.TIMESTAMP
    return hashes_rows.FIXED


def _hash_rows(plan: _Plan, description: RowData, data: Bytes, rows: Positions, sizes: Positions) -> Hashes:
    header = rowdata.header_bytes(len(description.types))
    bad, reason = rowdata.check_rows(data, rows, sizes, header + rowdata.SLOT * len(description.types))
    if bad >= 0:
        raise bad_value(reason, bad, int(rows[bad]), "")
    count = len(plan.columns)
    key_header = rowdata.header_bytes(count)
    longest = int(sizes.max()) if len(sizes) else 0
    room = key_header + count * (rowdata.SLOT + longest + 2 * hashes_rows.DECIMAL_BYTES)
    codes = np.empty(len(rows), dtype=np.uint32)
    key = np.zeros(room, dtype=np.uint8)
    bad, column = hashes_rows.hash_projection(data, rows, sizes, header, plan.columns, key_header, key, codes)
    if bad >= 0:
        raise bad_value(values.BAD_SPAN, bad, int(rows[bad]), plan.names[column])
    return codes


class _Hasher:
    """Computes hash codes of parts, whole columns at a time."""

    def __init__(self, data: Bytes, slots: tuple[Positions, ...], count: int) -> None:
        self._data = data
        self._slots = slots
        self._count = count

    def key(self, parts: tuple[Part, ...]) -> Hashes:
        """Return the key's hash: of the one field, which cannot be null, or of a tuple of several, where null is 0."""
        if len(parts) > 1:
            return self._tuple(parts)
        codes, null = self._part(parts[0])
        if null.any():
            raise bad_value(values.NULL_KEY, int(np.argmax(null)), -1, parts[0].path)
        return codes

    def _tuple(self, parts: Sequence[Part]) -> Hashes:
        codes, _ = self._part(parts[0])
        for part in parts[1:]:
            codes = codes * np.uint32(31) + self._part(part)[0]
        return codes

    def _part(self, part: Part) -> tuple[Hashes, npt.NDArray[np.bool_]]:
        """Return hash codes, 0 for nulls, and which are null."""
        if isinstance(part.description, Struct):
            null = self._slots[part.slot] < 0 if part.slot >= 0 else np.zeros(self._count, dtype=np.bool_)
            is_row = part.description.kind is StructKind.ROW
            codes = self._row(part) if is_row else self._tuple(part.children)
            return np.where(null, np.uint32(0), codes), null
        assert isinstance(part.description, Scalar)
        codes = self._scalar(part, part.description.kind)
        return codes, self._slots[part.slot] < 0

    def _row(self, part: Part) -> Hashes:
        """Return 31 times the kind, plus the fields: 31 times those before plus (31 plus the field's hash, or 0 for
        null).
        """
        kinds = mask_kinds(self._data, self._slots[part.slot]).astype(np.uint32)
        fields = np.ones(len(kinds), dtype=np.uint32)
        for child in part.children:
            codes, null = self._part(child)
            fields = fields * np.uint32(31) + np.where(null, np.uint32(0), codes + np.uint32(31))
        return kinds * np.uint32(31) + fields

    def _scalar(self, part: Part, kind: Kind) -> Hashes:
        positions = self._slots[part.slot]
        codes = np.empty(len(positions), dtype=np.uint32)
        if kind in _FIXED:
            _FIXED[kind](self._data, positions, codes)
        elif kind in LAYOUTS:
            assert LAYOUTS[kind] != decode_text.MILLIS
            hashes_objects.hash_times(self._data, positions, LAYOUTS[kind], codes)
        elif kind is Kind.STRING:
            bad = hashes.hash_strings(self._data, positions, self._slots[part.slot + 1], codes)
            if bad >= 0:
                raise bad_value(values.BAD_CHARACTER, bad, int(positions[bad]), part.path)
        else:
            hashes_objects.hash_bigs(self._data, positions, kind is Kind.DECIMAL_BIG, codes)
        return codes
