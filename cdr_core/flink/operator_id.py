"""From the uid a user gives an operator to the id Flink stores: MurmurHash3, x64, 128 bits, seed 0."""

from __future__ import annotations

import struct
from typing import Final

_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


def operator_id_of_uid(uid: str) -> str:
    """Return the 32-hex operator id of a uid; finds an operator also where the metadata stores no uid (versions 3 and
    4).
    """
    # Java turns a lone surrogate into a question mark; any other text has a UTF-8 form.
    return _murmur3_128(uid.encode("utf-8", "replace")).hex()


def _murmur3_128(data: bytes) -> bytes:
    """Return the hash as the 16 bytes Flink prints: both halves little-endian."""
    h1 = h2 = 0
    body = len(data) & ~15
    for k1, k2 in struct.iter_unpack("<QQ", data[:body]):
        h1 = ((_rotate(h1 ^ _mix1(k1), 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 = ((_rotate(h2 ^ _mix2(k2), 31) + h1) * 5 + 0x38495AB5) & _MASK
    k1, k2 = struct.unpack("<QQ", data[body:].ljust(16, b"\x00"))
    h1 ^= _mix1(k1) ^ len(data)
    h2 ^= _mix2(k2) ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _avalanche(h1), _avalanche(h2)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return struct.pack("<QQ", h1, h2)


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _mix1(k1: int) -> int:
    return (_rotate(k1 * _C1 & _MASK, 31) * _C2) & _MASK


def _mix2(k2: int) -> int:
    return (_rotate(k2 * _C2 & _MASK, 33) * _C1) & _MASK


def _avalanche(value: int) -> int:
    value = (value ^ (value >> 33)) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ (value >> 33)
