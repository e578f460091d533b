"""Flink SQL's binary rows: a row's bytes are little-endian, in slots of eight bytes behind the bits of nulls."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

_SLOT = 8


def read_row(value: bytes, types: Sequence[str]) -> tuple[list[Any], int]:
    """Return the fields (``None`` for null and for types that are not read here) and the number of the row kind."""
    size = int.from_bytes(value[:4], "big", signed=True)
    row = value[4 : 4 + size]
    slots = _null_bytes(len(types))
    if size < slots + _SLOT * len(types) or len(row) != size or row[0] > 3:
        raise ValueError("no binary row of these fields")
    cells: list[Any] = []
    for number, type_ in enumerate(types):
        bit = number + 8
        read = _CELLS.get(type_)
        null = row[bit // 8] >> bit % 8 & 1
        cells.append(None if null or read is None else read(row, slots + _SLOT * number))
    return cells, row[0]


def write_row(cells: Sequence[Any], types: Sequence[str]) -> bytes:
    """Return the row of a key, as the planner projects it; only types whose bytes have one form are accepted."""
    nulls = bytearray(_null_bytes(len(types)))
    slots, tail = bytearray(), bytearray()
    front = len(nulls) + _SLOT * len(types)
    for number, (cell, type_) in enumerate(zip(cells, types, strict=True)):
        if cell is None:
            nulls[(number + 8) // 8] |= 1 << (number + 8) % 8
            slots += bytes(_SLOT)
        elif type_ in _FIXED:
            slots += struct.pack("<" + _FIXED[type_], cell).ljust(_SLOT, b"\0")
        else:
            data = cell.encode() if isinstance(cell, str) else bytes(cell)
            if len(data) <= 7:
                slots += data.ljust(7, b"\0") + bytes([0x80 | len(data)])
            else:
                slots += struct.pack("<II", len(data), front + len(tail))
                tail += data.ljust(-(-len(data) // _SLOT) * _SLOT, b"\0")
    return bytes(nulls + slots + tail)


def _null_bytes(fields: int) -> int:
    return (fields + 63 + 8) // 64 * 8


def _fixed(letter: str) -> Callable[[bytes, int], Any]:
    packed = struct.Struct("<" + letter)
    return lambda row, at: packed.unpack_from(row, at)[0]


def _variable(row: bytes, at: int) -> bytes:
    slot = row[at : at + _SLOT]
    if slot[7] & 0x80:
        return slot[: slot[7] & 0x7F]
    length, offset = struct.unpack("<II", slot)
    if offset + length > len(row):
        raise ValueError("a value beyond the end of its row")
    return row[offset : offset + length]


def _text(row: bytes, at: int) -> str:
    return _variable(row, at).decode("utf-8")


_FIXED = {
    "BOOLEAN": "?",
    "TINYINT": "b",
    "SMALLINT": "h",
    "INT": "i",
    "INTEGER": "i",
    "BIGINT": "q",
    "FLOAT": "f",
    "DOUBLE": "d",
}
_CELLS: dict[str, Callable[[bytes, int], Any]] = {
    **{name: _fixed(letter) for name, letter in _FIXED.items()},
    **dict.fromkeys(("STRING", "VARCHAR", "CHAR"), _text),
    **dict.fromkeys(("BYTES", "BINARY", "VARBINARY"), _variable),
}
