"""BigInteger and BigDecimal as decimal text, as Java's toString gives it, so that value and scale survive."""

# What is an int to mypy has a machine type for numba, so these would be wrong either way.
# mypy: disable-error-code="untyped-decorator, misc, no-any-return, assignment, return-value, arg-type, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from cdr_core.kernels.decode_text import write_digits
from cdr_core.kernels.raw_memory import load_be32

MAX_BYTES = 4096
"""Limit of a magnitude: converting takes quadratic time, and longer numbers (over 9864 digits) are of no use."""
MAX_DIGITS = 9880
EXTRA_TEXT = 24
"""Bytes of text beyond the digits: sign, leading zeros or exponent."""

_BILLION = uint64(1_000_000_000)

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Offsets = npt.NDArray[np.int32]


@njit(cache=True, nogil=True)
def load_limbs(data: Bytes, at: int, size: int, limbs: npt.NDArray[np.uint32]) -> tuple[int, bool]:
    """Load two's complement big-endian bytes as a magnitude of 32-bit limbs, lowest first: (limbs, negative)."""
    count = (size + 3) // 4
    negative = data[at] >= 0x80
    carry = uint64(1 if negative else 0)
    for k in range(count):
        limb = uint64(0)
        for j in range(4):
            from_end = 4 * k + j
            byte = uint64(data[at + size - 1 - from_end]) if from_end < size else uint64(0xFF if negative else 0)
            limb |= byte << uint64(8 * j)
        if negative:
            limb = (limb ^ uint64(0xFFFFFFFF)) + carry
            carry = limb >> uint64(32)
        limbs[k] = limb & uint64(0xFFFFFFFF)
    while count > 0 and limbs[count - 1] == 0:
        count -= 1
    return count, negative


@njit(cache=True, nogil=True)
def write_magnitude(limbs: npt.NDArray[np.uint32], count: int, groups: npt.NDArray[np.uint32], digits: Bytes) -> int:
    """Write the limbs' decimal digits; return how many. The limbs are consumed."""
    found = 0
    while count > 0:
        rest = uint64(0)
        for k in range(count - 1, -1, -1):
            value = (rest << uint64(32)) | uint64(limbs[k])
            limbs[k] = value // _BILLION
            rest = value % _BILLION
        groups[found] = rest
        found += 1
        while count > 0 and limbs[count - 1] == 0:
            count -= 1
    if found == 0:
        digits[0] = 48
        return 1
    used = write_digits(np.int64(groups[found - 1]), 1, digits, 0)
    for k in range(found - 2, -1, -1):
        used = write_digits(np.int64(groups[k]), 9, digits, used)
    return used


@njit(cache=True, nogil=True)
def write_decimal(digits: Bytes, count: int, scale: int, out: Bytes, used: int) -> int:
    """Write digits with their point, plain where Java does so, else with an exponent; return where the text ends."""
    exponent = count - 1 - scale
    if scale >= 0 and exponent >= -6:
        whole = count - scale
        if whole <= 0:
            out[used] = 48
            used += 1
        for k in range(min(0, whole), count):
            if k == whole:
                out[used] = 46
                used += 1
            out[used] = digits[k] if k >= 0 else 48
            used += 1
        return used
    out[used] = digits[0]
    used += 1
    if count > 1:
        out[used] = 46
        used += 1
        for k in range(1, count):
            out[used] = digits[k]
            used += 1
    out[used] = 69
    out[used + 1] = 45 if exponent < 0 else 43
    return write_digits(abs(exponent), 1, out, used + 2)


@njit(cache=True, nogil=True)
def gather_bigs(
    data: Bytes, positions: Positions, sizes: Positions, with_scale: bool, offsets: Offsets, out: Bytes
) -> tuple[int, int]:
    """Numbers as text one after another: (bytes written, index of the first over MAX_BYTES or −1).

    Each begins with Flink's i32 (1, 2, 3 are the constants 0, 1, 10; else bytes + 4). ``out`` has two and a half times
    the sizes and EXTRA_TEXT an entry.
    """
    limbs = np.empty(MAX_BYTES // 4 + 1, dtype=np.uint32)
    groups = np.empty(MAX_DIGITS // 9 + 1, dtype=np.uint32)
    digits = np.empty(MAX_DIGITS + 9, dtype=np.uint8)
    used = 0
    for i in range(positions.shape[0]):
        at = positions[i]
        if at >= 0:
            header = np.int64(load_be32(data, at))
            size = header - 4 if header > 4 else 0
            at += 4
            if size > MAX_BYTES:
                return used, i
            negative = False
            if size == 0:
                limbs[0] = 10 if header == 3 else header - 1
                count = 1 if header > 1 else 0
            else:
                count, negative = load_limbs(data, at, size, limbs)
            if negative:
                out[used] = 45
                used += 1
            count = write_magnitude(limbs, count, groups, digits)
            if with_scale:
                scale = np.int64(np.int32(load_be32(data, at + size)))
                used = write_decimal(digits, count, scale, out, used)
            else:
                out[used : used + count] = digits[:count]
                used += count
        offsets[i + 1] = used
    return used, -1
