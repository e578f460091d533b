"""Java's hash codes and Flink's key groups once more, value by value, from the rules alone: slow and plain.

Shares nothing with the code under test, so that a mistake would have to be made twice.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

MASK = 0xFFFFFFFF


def signed(value: int) -> int:
    value &= MASK
    return value - (1 << 32) if value >> 31 else value


def rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & MASK


def mix(h: int, k: int) -> int:
    k = rotate(k * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK
    return (rotate(h ^ k, 13) * 5 + 0xE6546B64) & MASK


def finish(h: int, length: int) -> int:
    h ^= length
    h = (h ^ h >> 16) * 0x85EBCA6B & MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & MASK
    return h ^ h >> 16


def murmur(code: int) -> int:
    """Flink's murmur of a hash code, which is never negative."""
    mixed = signed(finish(mix(0, code & MASK), 4))
    if mixed == -(1 << 31):
        return 0
    return abs(mixed)


def key_group(code: int, max_parallelism: int) -> int:
    return murmur(code) % max_parallelism


def row_hash(row: bytes) -> int:
    """BinaryRowData.hashCode."""
    h = 42
    for (word,) in struct.iter_unpack("<I", row):
        h = mix(h, word)
    return signed(finish(h, len(row)))


def fold(value: int) -> int:
    value &= (1 << 64) - 1
    return (value ^ value >> 32) & MASK


def units(text: str) -> list[int]:
    encoded = text.encode("utf-16-be", "surrogatepass")
    return list(struct.unpack(f">{len(encoded) // 2}H", encoded))


def string_hash(text: str) -> int:
    h = 0
    for unit in units(text):
        h = (31 * h + unit) & MASK
    return h


def big_hash(value: int) -> int:
    magnitude, h = abs(value), 0
    words = [magnitude >> shift & MASK for shift in range(0, max(magnitude.bit_length(), 1), 32)]
    for word in reversed(words):
        h = (31 * h + word) & MASK
    return -h & MASK if value < 0 else h


def decimal_hash(value: Decimal) -> int:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits)))
    return (31 * big_hash(-unscaled if sign else unscaled) - exponent) & MASK


def float_hash(value: float) -> int:
    return 0x7FC00000 if math.isnan(value) else int(struct.unpack(">I", struct.pack(">f", value))[0])


def double_hash(value: float) -> int:
    return fold(0x7FF8 << 48 if math.isnan(value) else struct.unpack(">Q", struct.pack(">d", value))[0])


def java_hash(kind: str, value: Any) -> int:
    """The hash code of a value as decoding shows it, by its type's name; null is 0."""
    if value is None:
        return 0
    if kind == "BOOLEAN":
        return 1231 if value else 1237
    if kind in ("BYTE", "SHORT", "INT"):
        return int(value) & MASK
    if kind == "LONG":
        return fold(value)
    if kind == "CHAR":
        return units(value)[0]
    if kind == "FLOAT":
        return float_hash(value)
    if kind == "DOUBLE":
        return double_hash(value)
    if kind == "STRING":
        return string_hash(value)
    if kind == "BIGINT_BIG":
        return big_hash(int(value))
    assert kind == "DECIMAL_BIG"
    return decimal_hash(Decimal(value))


def tuple_hash(codes: Sequence[int]) -> int:
    h = codes[0]
    for code in codes[1:]:
        h = (31 * h + code) & MASK
    return h
