"""Java's hash codes of key fields, and Flink's key groups. All arithmetic is modulo 2**32.

A position of −1 is a null, whose hash is 0 as in a tuple; whether a null may be a key is the caller's question.
"""

# What is an int to mypy has a machine type for numba, so these would be wrong either way.
# mypy: disable-error-code="untyped-decorator, misc, no-any-return, assignment, return-value, arg-type, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, uint32, uint64

from cdr_core.kernels.raw_memory import load_be16, load_be32, load_be64
from cdr_core.kernels.values import read_unit

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]

_TRUE, _FALSE = uint32(1231), uint32(1237)
_NAN_32, _NAN_64 = uint32(0x7FC00000), uint64(0x7FF8000000000000)
_C1, _C2 = uint32(0xCC9E2D51), uint32(0x1B873593)
_FIVE, _ADD = uint32(5), uint32(0xE6546B64)
_F1, _F2 = uint32(0x85EBCA6B), uint32(0xC2B2AE35)
_31 = uint32(31)


@njit(inline="always")
def _rotate(value: int, bits: int) -> int:
    return uint32(value << uint32(bits)) | uint32(value >> uint32(32 - bits))


@njit(cache=True, nogil=True)
def murmur_mix(h: int, k: int) -> int:
    """Return one 32-bit word of murmur3."""
    k = _rotate(uint32(uint32(k) * _C1), 15)
    h = _rotate(uint32(uint32(h) ^ uint32(k * _C2)), 13)
    return uint32(h * _FIVE + _ADD)


@njit(cache=True, nogil=True)
def murmur_finish(h: int, length: int) -> int:
    """Return the end of murmur3 over ``length`` bytes."""
    h = uint32(h) ^ uint32(length)
    h = uint32(uint32(h ^ (h >> uint32(16))) * _F1)
    h = uint32(uint32(h ^ (h >> uint32(13))) * _F2)
    return uint32(h ^ (h >> uint32(16)))


@njit(cache=True, nogil=True)
def key_group(code: int, max_parallelism: int) -> int:
    """Return the key group of a hash code: murmur once more, without its sign, modulo the number of groups."""
    mixed = np.int64(np.int32(murmur_finish(murmur_mix(uint32(0), uint32(code)), 4)))
    if mixed == -2147483648:
        return np.int64(0)
    return np.int64(uint32(abs(mixed)) % uint32(max_parallelism))  # 32 bits divide several times faster than 64


@njit(cache=True, nogil=True)
def to_key_groups(hashes: Hashes, max_parallelism: int, out: npt.NDArray[np.int32]) -> None:
    """Store the key group of each hash code."""
    for i in range(hashes.shape[0]):
        out[i] = key_group(hashes[i], max_parallelism)


@njit(cache=True, nogil=True)
def fold_64(word: int) -> int:
    """Return Java's hash of a long."""
    return uint32(uint64(word) ^ (uint64(word) >> uint64(32)))


@njit(cache=True, nogil=True)
def hash_booleans(data: Bytes, positions: Positions, out: Hashes) -> None:
    """Boolean."""
    for i in range(positions.shape[0]):
        at = positions[i]
        out[i] = (_TRUE if data[at] else _FALSE) if at >= 0 else 0


@njit(cache=True, nogil=True)
def hash_8(data: Bytes, positions: Positions, out: Hashes) -> None:
    """Byte: its value."""
    for i in range(positions.shape[0]):
        at = positions[i]
        out[i] = uint32(np.int8(data[at])) if at >= 0 else 0


@njit(cache=True, nogil=True)
def hash_16(data: Bytes, positions: Positions, out: Hashes) -> None:
    """Short: its value."""
    for i in range(positions.shape[0]):
        at = positions[i]
        out[i] = uint32(np.int16(load_be16(data, at))) if at >= 0 else 0


@njit(cache=True, nogil=True)
def hash_characters(data: Bytes, positions: Positions, out: Hashes) -> None:
    """Character: its code unit."""
    for i in range(positions.shape[0]):
        at = positions[i]
        out[i] = load_be16(data, at) if at >= 0 else 0


@njit(cache=True, nogil=True)
def hash_32(data: Bytes, positions: Positions, out: Hashes) -> None:
    """Integer: its value."""
    for i in range(positions.shape[0]):
        at = positions[i]
        out[i] = load_be32(data, at) if at >= 0 else 0


@njit(cache=True, nogil=True)
def hash_64(data: Bytes, positions: Positions, out: Hashes) -> None:
    """Long: both halves folded."""
    for i in range(positions.shape[0]):
        at = positions[i]
        out[i] = fold_64(load_be64(data, at)) if at >= 0 else 0


@njit(cache=True, nogil=True)
def hash_floats(data: Bytes, positions: Positions, out: Hashes) -> None:
    """Float: its bits, with one pattern for all NaN."""
    for i in range(positions.shape[0]):
        at = positions[i]
        if at < 0:
            out[i] = 0
            continue
        bits = load_be32(data, at)
        out[i] = _NAN_32 if (bits & uint32(0x7FFFFFFF)) > uint32(0x7F800000) else bits


@njit(cache=True, nogil=True)
def hash_doubles(data: Bytes, positions: Positions, out: Hashes) -> None:
    """Double: its bits, with one pattern for all NaN, folded."""
    for i in range(positions.shape[0]):
        at = positions[i]
        if at < 0:
            out[i] = 0
            continue
        bits = load_be64(data, at)
        if (bits & uint64(0x7FFFFFFFFFFFFFFF)) > uint64(0x7FF0000000000000):
            bits = _NAN_64
        out[i] = fold_64(bits)


@njit(cache=True, nogil=True)
def hash_strings(data: Bytes, positions: Positions, sizes: Positions, out: Hashes) -> int:
    """Hash strings: 31 times the hash so far plus each code unit; return the first index with an impossible unit, or
    −1.
    """
    for i in range(positions.shape[0]):
        at = positions[i]
        stop = at + sizes[i] if at >= 0 else at
        h = uint32(0)
        while at < stop:
            unit = np.int64(data[at])
            if unit < 0x80:
                at += 1
            else:
                unit, at = read_unit(data, at, stop)
                if unit < 0:
                    return i
            h = uint32(h * _31 + uint32(unit))
        out[i] = h
    return -1
