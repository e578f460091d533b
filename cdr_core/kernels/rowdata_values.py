"""Values of binary rows to Arrow's buffers: little-endian words, decimals, timestamps, UTF-8."""

# What is an int to mypy has a machine type for numba, so these would be wrong either way.
# mypy: disable-error-code="untyped-decorator, misc, no-any-return, assignment, return-value, arg-type, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from cdr_core.kernels.decode_text import write_moment, write_time
from cdr_core.kernels.raw_memory import load_le16, load_le32, load_le64, store_64
from cdr_core.kernels.values import write_utf8

NANOS_PER_MILLI = 1_000_000
MILLIS_PER_DAY = 86_400_000

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Offsets = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]

_HIGH_BITS = uint64(0x8080808080808080)
_ALL_BITS = uint64(0xFFFFFFFFFFFFFFFF)
_MAX_MICRO_MILLIS = 9_223_372_036_854_775
_SIGN = uint64(1 << 63)


@njit(cache=True, nogil=True)
def gather_le16(data: Bytes, positions: Positions, out: npt.NDArray[np.uint16]) -> None:
    """Little-endian 16-bit words."""
    for i in range(positions.shape[0]):
        at = positions[i]
        out[i] = load_le16(data, at) if at >= 0 else 0


@njit(cache=True, nogil=True)
def gather_le32(data: Bytes, positions: Positions, out: npt.NDArray[np.uint32]) -> None:
    """Little-endian 32-bit words."""
    for i in range(positions.shape[0]):
        at = positions[i]
        out[i] = load_le32(data, at) if at >= 0 else 0


@njit(cache=True, nogil=True)
def gather_le64(data: Bytes, positions: Positions, out: Words) -> None:
    """Little-endian 64-bit words."""
    for i in range(positions.shape[0]):
        at = positions[i]
        out[i] = load_le64(data, at) if at >= 0 else uint64(0)  # a bare 0 would make both a float


@njit(inline="always")
def _fits(low: int, high: int, limit_low: int, limit_high: int) -> bool:
    """Return whether the magnitude of a 128-bit number is below the limit."""
    if high & _SIGN:
        low = ~low + uint64(1)
        high = ~high + (uint64(1) if low == 0 else uint64(0))
    return high < limit_high or (high == limit_high and low < limit_low)


@njit(cache=True, nogil=True)
def gather_compact_decimals(data: Bytes, cells: Positions, limit: int, out: Words) -> int:
    """Store decimals of up to 18 digits as 128-bit words; return the index of the first with more digits, or −1."""
    for i in range(cells.shape[0]):
        value = np.int64(load_le64(data, cells[i])) if cells[i] >= 0 else np.int64(0)
        if value >= limit or value <= -limit:
            return i
        out[2 * i] = uint64(value)
        out[2 * i + 1] = uint64(value >> 63)
    return -1


@njit(cache=True, nogil=True)
def gather_decimals(data: Bytes, starts: Positions, lengths: Positions, limit: Words, out: Words) -> int:
    """Decimals from two's complement big-endian bytes; the index of the first that has too many digits, or −1.

    ``limit`` is the low and the high word of what no magnitude reaches.
    """
    for i in range(starts.shape[0]):
        low, high = uint64(0), uint64(0)
        if starts[i] >= 0:
            if lengths[i] < 1 or lengths[i] > 16:
                return i
            if data[starts[i]] >= 0x80:
                low = high = _ALL_BITS
            for k in range(lengths[i]):
                high = (high << uint64(8)) | (low >> uint64(56))
                low = (low << uint64(8)) | uint64(data[starts[i] + k])
            if not _fits(low, high, limit[0], limit[1]):
                return i
        out[2 * i] = low
        out[2 * i + 1] = high
    return -1


@njit(cache=True, nogil=True)
def to_micros(millis: Positions, nanos: Positions, out: Positions) -> int:
    """Store milliseconds and the nanos in them as microseconds; return the index of the first that is finer or too far,
    or −1.
    """
    for i in range(millis.shape[0]):
        too_far = millis[i] >= _MAX_MICRO_MILLIS or millis[i] <= -_MAX_MICRO_MILLIS  # abs(-2**63) is negative
        if too_far or nanos[i] >= NANOS_PER_MILLI or nanos[i] % 1000:
            return i
        out[i] = millis[i] * 1000 + nanos[i] // 1000
    return -1


@njit(cache=True, nogil=True)
def gather_moments(
    cells: Positions, millis: Positions, nanos: Positions, zone: bool, offsets: Offsets, out: Bytes
) -> tuple[int, int]:
    """Write timestamps as ISO-8601 text: (bytes written, index of the first with impossible nanos or −1)."""
    used = 0
    for i in range(cells.shape[0]):
        if cells[i] >= 0:
            if nanos[i] >= NANOS_PER_MILLI:
                return used, i
            seconds = millis[i] // 1000
            fraction = (millis[i] - seconds * 1000) * NANOS_PER_MILLI + nanos[i]
            used = write_moment(seconds, fraction, zone, out, used)
        offsets[i + 1] = used
    return used, -1


@njit(cache=True, nogil=True)
def gather_times_of_day(data: Bytes, cells: Positions, offsets: Offsets, out: Bytes) -> tuple[int, int]:
    """Write milliseconds of the day as text: (bytes written, index of the first beyond a day or −1)."""
    used = 0
    for i in range(cells.shape[0]):
        if cells[i] >= 0:
            millis = np.int64(load_le32(data, cells[i]))
            if millis >= MILLIS_PER_DAY:
                return used, i
            used = write_time(millis // 1000, millis % 1000 * NANOS_PER_MILLI, out, used)
        offsets[i + 1] = used
    return used, -1


@njit(cache=True, nogil=True)
def sequence_length(data: Bytes, at: int, stop: int) -> int:
    """Return the number of bytes of the UTF-8 sequence that begins here, or 0 if none does."""
    first = data[at]
    if first < 0x80:
        return 1
    length = 2 if first < 0xE0 else (3 if first < 0xF0 else 4)
    if first < 0xC2 or first > 0xF4 or at + length > stop:
        return 0
    for k in range(1, length):
        if data[at + k] & 0xC0 != 0x80:
            return 0
    second = data[at + 1]
    too_long = (first == 0xE0 and second < 0xA0) or (first == 0xF0 and second < 0x90)
    too_far = (first == 0xED and second > 0x9F) or (first == 0xF4 and second > 0x8F)
    return 0 if too_long or too_far else length


@njit(cache=True, nogil=True)
def gather_utf8(
    data: Bytes, starts: Positions, lengths: Positions, replace: bool, offsets: Offsets, out: Bytes
) -> tuple[int, int, int]:
    """Strings that are UTF-8 already: (bytes written, first that is not or −1, bytes replaced).

    ``out`` has room for the lengths and SLACK; with ``replace`` three times as much, as each byte that is in no
    sequence becomes U+FFFD.
    """
    used = 0
    replaced = 0
    for i in range(starts.shape[0]):
        at = starts[i]
        stop = at + lengths[i]
        while at >= 0 and at < stop:
            left = stop - at
            if at + 8 <= data.shape[0]:
                word = load_le64(data, at)
                mask = _HIGH_BITS if left >= 8 else _HIGH_BITS & (_ALL_BITS >> uint64(64 - 8 * left))
                if word & mask == 0:
                    store_64(out, used, word)
                    at += min(left, 8)
                    used += min(left, 8)
                    continue
            length = sequence_length(data, at, stop)
            if length == 0:
                if not replace:
                    return used, i, replaced
                replaced += 1
                used = write_utf8(0xFFFD, out, used)
                at += 1
                continue
            for k in range(length):
                out[used + k] = data[at + k]
            at += length
            used += length
        offsets[i + 1] = used
    return used, -1, replaced
