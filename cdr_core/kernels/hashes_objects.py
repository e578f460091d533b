"""Java's hash codes of dates, times and big numbers.

A null, which dates and times encode as a value, has hash 0, and its position becomes −1 for the caller.
"""

# What is an int to mypy has a machine type for numba, so these would be wrong either way.
# mypy: disable-error-code="untyped-decorator, misc, no-any-return, assignment, return-value, arg-type, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, uint32, uint64

from cdr_core.kernels.decode_text import INSTANT, LOCALDATE, LOCALTIME, is_null_date, is_null_time
from cdr_core.kernels.hashes import fold_64
from cdr_core.kernels.raw_memory import load_be32, load_be64

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]

_31, _51 = uint32(31), uint32(51)
_NULL_64 = uint64(1 << 63)


@njit(cache=True, nogil=True)
def hash_millis(data: Bytes, positions: Positions, out: Hashes) -> None:
    """java.util.Date and its kin: the milliseconds, folded."""
    for i in range(positions.shape[0]):
        out[i] = 0
        if positions[i] < 0:
            continue
        word = load_be64(data, positions[i])
        if word == _NULL_64:
            positions[i] = -1
        else:
            out[i] = fold_64(word)


@njit(cache=True, nogil=True)
def hash_local_date(data: Bytes, at: int) -> int:
    """LocalDate."""
    year, month, day = load_be32(data, at), uint32(data[at + 4]), uint32(data[at + 5])
    packed = uint32(uint32(year << uint32(11)) + uint32(month << uint32(6)) + day)
    return uint32(uint32(year & uint32(0xFFFFF800)) ^ packed)


@njit(cache=True, nogil=True)
def hash_local_time(data: Bytes, at: int) -> int:
    """LocalTime: the nanos of the day, folded."""
    seconds = np.int64(data[at]) * 3600 + np.int64(data[at + 1]) * 60 + np.int64(data[at + 2])
    return fold_64(uint64(seconds * 1_000_000_000 + np.int64(load_be32(data, at + 3))))


@njit(cache=True, nogil=True)
def hash_instant(data: Bytes, at: int) -> int:
    """Instant: the seconds, folded, and 51 times the nanos."""
    return uint32(fold_64(load_be64(data, at)) + uint32(_51 * load_be32(data, at + 8)))


@njit(cache=True, nogil=True)
def is_null(data: Bytes, at: int, layout: int) -> bool:
    """Return whether the bytes are a null."""
    if layout == INSTANT:
        return load_be64(data, at) == _NULL_64 and load_be32(data, at + 8) == 0x80000000
    if layout == LOCALDATE:
        return is_null_date(data, at)
    if layout == LOCALTIME:
        return is_null_time(data, at)
    return is_null_date(data, at) and is_null_time(data, at + 6)


@njit(cache=True, nogil=True)
def hash_times(data: Bytes, positions: Positions, layout: int, out: Hashes) -> None:
    """java.time's types, by their layout."""
    for i in range(positions.shape[0]):
        at = positions[i]
        out[i] = 0
        if at < 0:
            continue
        if is_null(data, at, layout):
            positions[i] = -1
        elif layout == INSTANT:
            out[i] = hash_instant(data, at)
        elif layout == LOCALDATE:
            out[i] = hash_local_date(data, at)
        elif layout == LOCALTIME:
            out[i] = hash_local_time(data, at)
        else:
            out[i] = uint32(hash_local_date(data, at) ^ hash_local_time(data, at + 6))


@njit(cache=True, nogil=True)
def hash_magnitude(data: Bytes, at: int, size: int) -> int:
    """BigInteger from two's complement bytes: 31 to the power of their place times the words of its magnitude."""
    negative = data[at] >= 0x80
    carry = uint64(1)
    h, power = uint32(0), uint32(1)
    for k in range((size + 3) // 4):
        word = uint64(0)
        for j in range(4):
            from_end = 4 * k + j
            byte = uint64(data[at + size - 1 - from_end]) if from_end < size else uint64(0xFF if negative else 0)
            word |= byte << uint64(8 * j)
        if negative:
            word = (word ^ uint64(0xFFFFFFFF)) + carry
            carry = word >> uint64(32)
        h = uint32(h + uint32(uint32(word & uint64(0xFFFFFFFF)) * power))
        power = uint32(power * _31)
    return uint32(uint32(0) - h) if negative else h


@njit(cache=True, nogil=True)
def hash_bigs(data: Bytes, positions: Positions, with_scale: bool, out: Hashes) -> None:
    """BigInteger, or BigDecimal: 31 times the unscaled value's and the scale. Each begins with Flink's i32."""
    for i in range(positions.shape[0]):
        at = positions[i]
        out[i] = 0
        if at < 0:
            continue
        header = np.int64(load_be32(data, at))
        size = header - 4 if header > 4 else 0
        at += 4
        h = hash_magnitude(data, at, size) if size > 0 else uint32(10 if header == 3 else header - 1)
        out[i] = uint32(uint32(h * _31) + load_be32(data, at + size)) if with_scale else h
