"""From frame to stretch in one pass, for keys that lie at a place known beforehand.

The general way goes over a window once to find frames, once to find keys, once to hash them, and again for groups,
owners and fingerprints, with a column between any two. For small records those columns cost more than the work, so here
each record is read once. A kernel that is in any doubt about an element (a frame that cannot be one, a key that is
null or cut short, a key group that the channel should not carry) stops in front of it: the caller continues there with
the general reader, which reports what is wrong.
"""

# What is an int to mypy has a machine type for numba, so these would be wrong either way.
# mypy: disable-error-code="untyped-decorator, misc, no-any-return, assignment, return-value, arg-type, call-arg"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, uint32, uint64

from cdr_core.kernels.decode_walk import read_length
from cdr_core.kernels.element_runs import END, LANE, POSITION, STRETCH_BYTES
from cdr_core.kernels.fingerprint import ROW_BYTES, add_words, hash_words
from cdr_core.kernels.frames import LENGTH_BYTES, OK, TAG_RECORD, TAG_RECORD_WITH_TIMESTAMP, check_element
from cdr_core.kernels.hashes import fold_64, key_group, murmur_finish, murmur_mix
from cdr_core.kernels.hashes_rows import SEED
from cdr_core.kernels.raw_memory import address_of, load_be32, load_be64, load_byte, load_le32, load_le64, store_64
from cdr_core.kernels.rowdata import KIND_BITS, MAX_KIND
from cdr_core.kernels.values import read_unit

LONG, INT, STRING, ROW = 0, 1, 2, 3
"""Kinds of keys: one field of a record, or of a binary row one column that lies in its slot."""

HOW, OFFSET, FIELD, HEADER, WIDTH, FIXED_PART = 0, 1, 2, 3, 4, 5
"""A key's place: its kind, and where in the value it begins; of a row the column's number, the bytes of the header, of
the column, and of header and slots together.
"""
PLACE_FIELDS = 6

DOUBT = 100
"""Result of a scan beside those of `frames`: in front of an element that only the general reader can judge."""

Memory = Any
"""An array, or its address."""

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_HIGH_BITS = uint64(0x8080808080808080)
_ALL_BITS = uint64(0xFFFFFFFFFFFFFFFF)
_POWERS = np.array([pow(31, n, 1 << 32) for n in range(9)], np.uint32)
"""Powers of 31, modulo 2**32."""
_SLOT = 8
_NULL_KEY = uint32(1 << KIND_BITS)
"""The first word of a key row whose only column is null."""


@njit(forceinline=True)
def _eight_units(word: int) -> int:
    """Return the share of eight ASCII characters, the first in the lowest byte, in a string's hash; zeros in front add
    nothing.
    """
    h = uint32(0)
    for k in range(8):
        h = uint32(h + uint32(uint32((word >> uint64(8 * k)) & uint64(0xFF)) * _POWERS[7 - k]))
    return h


@njit(forceinline=True)
def _string_code(data: Memory, at: int, end: int) -> int:
    """Return Java's hash of a string that begins with its length, or −1 where it is null or invalid."""
    length, at = read_length(data, at, end)
    units = length - 1
    if units < 0 or units > end - at:
        return np.int64(-1)
    h = uint32(0)
    while units > 0 and at + 8 <= end:
        word = load_le64(data, at)
        taken = min(units, 8)
        word <<= uint64(8 * (8 - taken))
        if word & _HIGH_BITS != 0:
            break
        h = uint32(uint32(h * _POWERS[taken]) + _eight_units(word))
        at += taken
        units -= taken
    while units > 0:
        if at >= end:
            return np.int64(-1)
        unit, at = read_unit(data, at, end)
        if unit < 0:
            return np.int64(-1)
        h = uint32(uint32(h * uint32(31)) + uint32(unit))
        units -= 1
    return np.int64(h)


@njit(forceinline=True)
def _row_code(data: Memory, at: int, end: int, field: int, header: int, width: int, fixed: int) -> int:
    """Return the hash of a SQL key of one column in its slot, or −1 where there is no such row."""
    if end - at < LENGTH_BYTES:
        return np.int64(-1)
    size, row = np.int64(np.int32(load_be32(data, at))), at + LENGTH_BYTES
    if size < fixed or size & 7 or size > end - row or load_byte(data, row) > MAX_KIND:
        return np.int64(-1)
    bit = field + KIND_BITS
    null = (load_byte(data, row + (bit >> 3)) >> (bit & 7)) & 1 == 1
    value = load_le64(data, row + header + _SLOT * field) & (_ALL_BITS >> uint64(64 - 8 * width))
    if null:
        value = uint64(0)
    h = murmur_mix(uint32(SEED), _NULL_KEY if null else uint32(0))
    h = murmur_mix(h, uint32(0))
    h = murmur_mix(h, uint32(value))
    h = murmur_mix(h, uint32(value >> uint64(32)))
    return np.int64(murmur_finish(h, 16))


@njit(forceinline=True)
def _code(data: Memory, at: int, end: int, how: int, field: int, header: int, width: int, fixed: int) -> int:
    """Return the hash of the key of the value ``data[at:end]``, or −1 where it is in doubt."""
    if how == LONG:
        return np.int64(fold_64(load_be64(data, at))) if at + 8 <= end else np.int64(-1)
    if how == INT:
        return np.int64(load_be32(data, at)) if at + 4 <= end else np.int64(-1)
    if how == STRING:
        return _string_code(data, at, end)
    return _row_code(data, at, end, field, header, width, fixed)


@njit(cache=True, nogil=True)
def sort_elements(
    data: Bytes,
    at: int,
    size: int,
    base: int,
    limit: int,
    place: Longs,
    lane_of: npt.NDArray[np.int32],
    sums: npt.NDArray[np.uint64],
    stretches: Longs,
    count: int,
    position: int,
) -> tuple[int, int, int, int]:
    """Frame, key, owner and fingerprint of each element of ``data[at:size]``.

    ``data[0]`` is logical ``base``, no frame may reach beyond logical ``limit``. ``place`` is the place of the key,
    ``lane_of`` which lane a key group belongs to, −1 where none does. Elements are added to ``stretches[:count]``, of
    which the last one may grow; the caller has made room for one an element. Returns where the first element begins
    that was not added, how many stretches there are now, the position behind them, and how it ended: OK where no whole
    frame is left, DOUBT where that element is for the general way.
    """
    how, offset, field, header = place[HOW], place[OFFSET], place[FIELD], place[HEADER]
    width, fixed, groups, lanes = place[WIDTH], place[FIXED_PART], lane_of.shape[0], sums.shape[0]
    memory, rows, owners = address_of(data), address_of(sums), address_of(lane_of)
    into = address_of(stretches) - STRETCH_BYTES
    last = stretches[count - 1, LANE] if count > 0 else np.int64(-1)
    while at + LENGTH_BYTES <= size:
        length = np.int64(np.int32(load_be32(memory, at)))
        start = at + LENGTH_BYTES
        end = start + length
        if length < 1 or base + end > limit:
            return at, count, position, DOUBT
        if end > size:
            break
        tag = load_byte(memory, start)
        if tag > TAG_RECORD:
            if check_element(memory, start, tag, length) != OK:
                return at, count, position, DOUBT
            lane = lanes + np.int64(tag)
            last = np.int64(-1)
        else:
            value = start + 1 + offset
            if tag == TAG_RECORD_WITH_TIMESTAMP:
                value += 8
            code = _code(memory, value, end, how, field, header, width, fixed)
            if code < 0:
                return at, count, position, DOUBT
            lane = np.int64(np.int32(load_le32(owners, 4 * key_group(uint32(code), groups))))
            if lane < 0:
                return at, count, position, DOUBT
            first, second = hash_words(memory, start, end)
            add_words(rows + ROW_BYTES * lane, first, second)
        position += 1
        # Without a branch: whether neighbours have one owner is a matter of chance, and a wrong guess of the processor
        # costs more than a few stores.
        count += np.int64(lane != last)
        last = lane
        store_64(into, STRETCH_BYTES * count + 8 * LANE, uint64(lane))
        store_64(into, STRETCH_BYTES * count + 8 * END, uint64(base + end))
        store_64(into, STRETCH_BYTES * count + 8 * POSITION, uint64(position))
        at = end
    return at, count, position, OK
