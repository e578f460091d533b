"""Java's hash codes, Flink's key groups and their owners, one value at a time."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from cdr_core.verify.binary_row import write_row
from cdr_core.verify.types import RecordType

_MASK = 0xFFFFFFFF
_CACHED_KEYS = 1 << 16

KeyGroup = Callable[[Mapping[str, Any]], int]


def key_group_of(record: RecordType, key: tuple[str, ...], max_parallelism: int) -> KeyGroup | None:
    """Return a function from a record's fields to its key group; ``None`` if the key's hash is not known here."""
    fields = {field.name: field.type for field in record.readable}
    types = tuple(fields.get(name, "") for name in key)
    if not key or not all(types):
        return None
    if record.kind == "ROWDATA":
        return _grouped(key, max_parallelism, lambda cells: row_hash(write_row(cells, types)))
    if not all(type_ in _HASHES for type_ in types):
        return None
    return _grouped(key, max_parallelism, lambda cells: _tuple_hash(cells, types))


def _grouped(key: tuple[str, ...], max_parallelism: int, hashed: Callable[[tuple[Any, ...]], int]) -> KeyGroup:
    @lru_cache(maxsize=_CACHED_KEYS)
    def group(cells: tuple[Any, ...], _signs: tuple[float, ...]) -> int:
        return murmur(hashed(cells)) % max_parallelism

    def of(fields: Mapping[str, Any]) -> int:
        cells = tuple(fields[name] for name in key)
        # 0.0 and -0.0 are equal as cache keys and have different hashes
        return group(cells, tuple(math.copysign(1, cell) for cell in cells if isinstance(cell, float)))

    return of


def owner(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the subtask that owns a key group."""
    return key_group * parallelism // max_parallelism


def murmur(code: int) -> int:
    """Apply Flink's spreading of a hash code, which precedes the modulo by the number of key groups."""
    mixed = _finish(_mix(0, code & _MASK), 4)
    if mixed >> 31:
        mixed = (1 << 32) - mixed
    return 0 if mixed == 1 << 31 else mixed


def row_hash(row: bytes) -> int:
    """Return the hash of a binary row: its bytes as little-endian words, from 42."""
    h = 42
    for (word,) in struct.iter_unpack("<I", row):
        h = _mix(h, word)
    return _finish(h, len(row))


def _mix(h: int, k: int) -> int:
    k = k * 0xCC9E2D51 & _MASK
    k = (k << 15 | k >> 17) & _MASK
    h ^= k * 0x1B873593 & _MASK
    h = (h << 13 | h >> 19) & _MASK
    return (h * 5 + 0xE6546B64) & _MASK


def _finish(h: int, length: int) -> int:
    h ^= length
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    return h ^ h >> 16


def _tuple_hash(cells: tuple[Any, ...], types: tuple[str, ...]) -> int:
    """Return the hash of a key: one field is the value itself, several are a tuple; both give the same for one."""
    code = 0
    for cell, type_ in zip(cells, types, strict=True):
        code = 31 * code + (0 if cell is None else _HASHES[type_](cell))
    return code & _MASK


def _fold(value: int) -> int:
    value &= (1 << 64) - 1
    return (value ^ value >> 32) & _MASK


def _string_hash(text: str) -> int:
    code = 0
    for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le", "surrogatepass")):
        code = (31 * code + unit) & _MASK
    return code


def _double_hash(value: float) -> int:
    bits = 0x7FF8000000000000 if math.isnan(value) else int(struct.unpack(">Q", struct.pack(">d", value))[0])
    return _fold(bits)


def _float_hash(value: float) -> int:
    return 0x7FC00000 if math.isnan(value) else int(struct.unpack(">I", struct.pack(">f", value))[0])


_HASHES: dict[str, Callable[[Any], int]] = {
    "BOOLEAN": lambda value: 1231 if value else 1237,
    "BYTE": int,
    "SHORT": int,
    "INT": int,
    "CHAR": ord,
    "LONG": _fold,
    "FLOAT": _float_hash,
    "DOUBLE": _double_hash,
    "STRING": _string_hash,
}
