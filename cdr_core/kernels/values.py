"""From positions to columns: fixed-width values, strings and bytes, written straight into Arrow's buffers.

A position of −1 is a null and becomes a zero (or nothing). Positions come from the walkers, which have compared them
with the ends of their records; what is checked here is whether the bytes make a value.
"""

# What is an int to mypy has a machine type for numba, so these would be wrong either way.
# mypy: disable-error-code="untyped-decorator, misc, no-any-return, assignment, return-value, arg-type, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from cdr_core.kernels.raw_memory import load_be16, load_be32, load_be64, load_byte, load_le64, store_64

OK, BAD_CHARACTER, LONE_SURROGATE, BAD_UTF8, TOO_LARGE, BAD_BOOLEAN, BAD_TIME = 0, 20, 21, 22, 23, 24, 25
BAD_DECIMAL, TOO_FINE, BAD_KEY, BAD_SPAN, NULL_KEY = 26, 27, 28, 29, 30
"""Reasons why bytes are no value; numbered apart from the walkers' reasons."""

SLACK = 8
"""Extra bytes that a target must have: whole words are stored, also at the end."""

_HIGH_BITS = uint64(0x8080808080808080)
_ALL_BITS = uint64(0xFFFFFFFFFFFFFFFF)

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Offsets = npt.NDArray[np.int32]


@njit(cache=True, nogil=True)
def gather_8(data: Bytes, positions: Positions, out: Bytes) -> None:
    """Single bytes."""
    for i in range(positions.shape[0]):
        at = positions[i]
        out[i] = data[at] if at >= 0 else 0


@njit(cache=True, nogil=True)
def gather_be16(data: Bytes, positions: Positions, out: npt.NDArray[np.uint16]) -> None:
    """Big-endian 16-bit words."""
    for i in range(positions.shape[0]):
        at = positions[i]
        out[i] = load_be16(data, at) if at >= 0 else 0


@njit(cache=True, nogil=True)
def gather_be32(data: Bytes, positions: Positions, out: npt.NDArray[np.uint32]) -> None:
    """Big-endian 32-bit words."""
    for i in range(positions.shape[0]):
        at = positions[i]
        out[i] = load_be32(data, at) if at >= 0 else 0


@njit(cache=True, nogil=True)
def gather_be64(data: Bytes, positions: Positions, out: npt.NDArray[np.uint64]) -> None:
    """Big-endian 64-bit words."""
    for i in range(positions.shape[0]):
        at = positions[i]
        out[i] = load_be64(data, at) if at >= 0 else uint64(0)  # a bare 0 would make both a float


@njit(cache=True, nogil=True)
def gather_bits(data: Bytes, positions: Positions, out: Bytes) -> int:
    """Store booleans in a bitmap; return the index of the first byte that is neither 0 nor 1, or −1."""
    for i in range(positions.shape[0]):
        at = positions[i]
        if at < 0:
            continue
        if data[at] > 1:
            return i
        out[i >> 3] |= data[at] << (i & 7)
    return -1


@njit(cache=True, nogil=True)
def copy_word_tail(data: Bytes, at: int, count: int, out: Bytes, used: int) -> None:
    """Copy fewer than eight bytes; as one word where the source has room behind them (the target has, see SLACK)."""
    if at + 8 <= data.shape[0]:
        store_64(out, used, load_le64(data, at))
    else:
        for k in range(count):
            out[used + k] = data[at + k]


@njit(cache=True, nogil=True)
def gather_bytes(data: Bytes, positions: Positions, sizes: Positions, offsets: Offsets, out: Bytes) -> None:
    """Store byte strings one after another, and where each ends. ``out`` has room for all and SLACK."""
    used = 0
    for i in range(positions.shape[0]):
        at = positions[i]
        if at >= 0:
            stop = at + sizes[i]
            while at + 8 <= stop:
                store_64(out, used, load_le64(data, at))
                at += 8
                used += 8
            copy_word_tail(data, at, stop - at, out, used)
            used += stop - at
        offsets[i + 1] = used


@njit(cache=True, nogil=True)
def read_unit(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Return a UTF-16 code unit from its varint and where it ends; −1 where there is none, or a longer one than Flink
    writes.
    """
    unit = np.int64(load_byte(data, at))
    if unit < 0x80:
        return unit, at + 1
    if at + 1 >= stop:
        return -1, at
    byte = np.int64(load_byte(data, at + 1))
    unit = (unit & 0x7F) | ((byte & 0x7F) << 7)
    if byte < 0x80:
        return (unit if byte > 0 else -1), at + 2
    if at + 2 >= stop:
        return -1, at
    byte = np.int64(load_byte(data, at + 2))
    return (unit | (byte << 14) if 0 < byte <= 3 else -1), at + 3


@njit(cache=True, nogil=True)
def write_utf8(code: int, out: Bytes, used: int) -> int:
    """Append a code point; where it ends."""
    if code < 0x80:
        out[used] = code
        return used + 1
    if code < 0x800:
        out[used] = 0xC0 | (code >> 6)
        out[used + 1] = 0x80 | (code & 0x3F)
        return used + 2
    if code < 0x10000:
        out[used] = 0xE0 | (code >> 12)
        out[used + 1] = 0x80 | ((code >> 6) & 0x3F)
        out[used + 2] = 0x80 | (code & 0x3F)
        return used + 3
    out[used] = 0xF0 | (code >> 18)
    out[used + 1] = 0x80 | ((code >> 12) & 0x3F)
    out[used + 2] = 0x80 | ((code >> 6) & 0x3F)
    out[used + 3] = 0x80 | (code & 0x3F)
    return used + 4


@njit(cache=True, nogil=True)
def read_code_point(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Return a code point from one or two code units and where it ends; −1 no unit, −2 half of a surrogate pair."""
    unit, at = read_unit(data, at, stop)
    if unit < 0xD800 or unit > 0xDFFF:
        return unit, at
    if unit >= 0xDC00 or at >= stop:
        return -2, at
    low, after = read_unit(data, at, stop)
    if low < 0xDC00 or low > 0xDFFF:
        return -2, at
    return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), after


@njit(cache=True, nogil=True)
def gather_strings(
    data: Bytes, positions: Positions, sizes: Positions, replace: bool, offsets: Offsets, out: Bytes
) -> tuple[int, int, int, int]:
    """Flink's strings as UTF-8, and where each ends: (bytes written, first bad index or −1, why, halves replaced).

    ``out`` has room for one and a half times the sizes and SLACK: two bytes of a varint become at most three of UTF-8.
    With ``replace``, half of a surrogate pair becomes U+FFFD and is counted.
    """
    used = 0
    replaced = 0
    for i in range(positions.shape[0]):
        at = positions[i]
        stop = at + sizes[i] if at >= 0 else at
        while at + 32 <= stop:  # plain ASCII in large steps, up to the first that is not
            first, second = load_le64(data, at), load_le64(data, at + 8)
            third, fourth = load_le64(data, at + 16), load_le64(data, at + 24)
            if (first | second | third | fourth) & _HIGH_BITS != 0:
                break
            store_64(out, used, first)
            store_64(out, used + 8, second)
            store_64(out, used + 16, third)
            store_64(out, used + 24, fourth)
            at += 32
            used += 32
        while at < stop:
            left = stop - at
            if at + 8 <= data.shape[0]:
                word = load_le64(data, at)
                mask = _HIGH_BITS if left >= 8 else _HIGH_BITS & (_ALL_BITS >> uint64(64 - 8 * left))
                if word & mask == 0:
                    store_64(out, used, word)
                    step = min(left, 8)
                    at += step
                    used += step
                    continue
            code, at = read_code_point(data, at, stop)
            if code == -1:
                return used, i, BAD_CHARACTER, replaced
            if code == -2:
                if not replace:
                    return used, i, LONE_SURROGATE, replaced
                replaced += 1
                code = 0xFFFD
            used = write_utf8(code, out, used)
        offsets[i + 1] = used
    return used, -1, OK, replaced
