"""From element to run in one pass, for keys that lie at a place known beforehand.

The general way goes over a window once to find keys, once to hash them, and again for groups, owners, fingerprints and
runs, with a column between any two. For small records those columns cost more than the work, so here each record is
looked at once. A kernel that is in any doubt about an element (a key that is null or cut short, a key group that the
channel should not carry) stops in front of it: whoever called goes on from there in the general way, which knows how to
say what is wrong.
"""

# What is an int to mypy has a machine type for numba, so these would be wrong either way.
# mypy: disable-error-code="untyped-decorator, misc, no-any-return, assignment, return-value, arg-type, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, uint32, uint64

from cdr_core.kernels.decode_walk import read_length
from cdr_core.kernels.fingerprint import add_record, hash_words
from cdr_core.kernels.frames import LENGTH_BYTES, TAG_RECORD, TAG_RECORD_WITH_TIMESTAMP
from cdr_core.kernels.hashes import fold_64, key_group, murmur_finish, murmur_mix
from cdr_core.kernels.hashes_rows import SEED
from cdr_core.kernels.memory import load_be32, load_be64, load_le64
from cdr_core.kernels.rowdata import KIND_BITS, MAX_KIND
from cdr_core.kernels.values import read_unit

LONG, INT, STRING, ROW = 0, 1, 2, 3
"""What a key is: one field of a record, or of a binary row one column that lies in its slot."""

HOW, OFFSET, FIELD, HEADER, WIDTH, FIXED_PART = 0, 1, 2, 3, 4, 5
"""A key's place: what it is, and where in the value it begins; of a row the column's number, the bytes of the header,
of the column, and of header and slots together."""
PLACE_FIELDS = 6

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_HIGH_BITS = uint64(0x8080808080808080)
_ALL_BITS = uint64(0xFFFFFFFFFFFFFFFF)
_POWERS = np.array([pow(31, n, 1 << 32) for n in range(9)], np.uint32)
"""Of 31, modulo 2**32."""
_SLOT = 8
_NULL_KEY = uint32(1 << KIND_BITS)
"""The first word of a key row whose only column is null."""


@njit(forceinline=True)
def _eight_units(word: int) -> int:
    """What eight ASCII characters, the first in the lowest byte, add to a string's hash; zeros in front add nothing."""
    h = uint32(0)
    for k in range(8):
        h = uint32(h + uint32(uint32((word >> uint64(8 * k)) & uint64(0xFF)) * _POWERS[7 - k]))
    return h


@njit(forceinline=True)
def _string_code(data: Bytes, at: int, end: int) -> int:
    """Java's hash of a string that begins with its length, or −1 where it is null or none."""
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
def _row_code(data: Bytes, at: int, end: int, field: int, header: int, width: int, fixed: int) -> int:
    """The hash of a SQL key of one column in its slot, or −1 where there is no such row."""
    if end - at < LENGTH_BYTES:
        return np.int64(-1)
    size, row = np.int64(np.int32(load_be32(data, at))), at + LENGTH_BYTES
    if size < fixed or size & 7 or size > end - row or data[row] > MAX_KIND:
        return np.int64(-1)
    bit = field + KIND_BITS
    null = (data[row + (bit >> 3)] >> (bit & 7)) & 1 == 1
    value = load_le64(data, row + header + _SLOT * field) & (_ALL_BITS >> uint64(64 - 8 * width))
    if null:
        value = uint64(0)
    h = murmur_mix(uint32(SEED), _NULL_KEY if null else uint32(0))
    h = murmur_mix(h, uint32(0))
    h = murmur_mix(h, uint32(value))
    h = murmur_mix(h, uint32(value >> uint64(32)))
    return np.int64(murmur_finish(h, 16))


@njit(cache=True, nogil=True)
def sort_records(  # noqa: C901 - one branch a kind of key, and a call each would cost more than the work
    data: Bytes,
    starts: Longs,
    ends: Longs,
    tags: npt.NDArray[np.int8],
    place: Longs,
    lane_of: npt.NDArray[np.int32],
    carried: Bytes,
    base: int,
    first_position: int,
    sums: npt.NDArray[np.uint64],
    counts: Longs,
    runs: Longs,
) -> tuple[int, int]:
    """Key, owner, fingerprint and run of each element; (elements done, runs). The rest is for the general way.

    ``place`` says where the key is, ``lane_of`` which lane a key group belongs to, −1 where none does. The others are
    as for ``fold_records`` and ``select_runs``, whose columns are the rows of ``runs``.
    """
    how, offset, field, header = place[HOW], place[OFFSET], place[FIELD], place[HEADER]
    width, fixed, groups = place[WIDTH], place[FIXED_PART], lane_of.shape[0]
    lanes = carried.shape[0]
    latest, reached = np.full(lanes, -1, np.int64), np.full(lanes, -1, np.int64)
    count = 0
    for i in range(starts.shape[0]):
        start, end, tag = starts[i], ends[i], tags[i]
        if tag > TAG_RECORD:
            count = _place_other(
                start, end, tag, carried, base, first_position + i, counts, latest, reached, runs, count
            )
            continue
        at = start + 1 + offset
        if tag == TAG_RECORD_WITH_TIMESTAMP:
            at += 8
        if how == LONG:
            if at + 8 > end:
                return i, count
            code = np.int64(fold_64(load_be64(data, at)))
        elif how == INT:
            if at + 4 > end:
                return i, count
            code = np.int64(load_be32(data, at))
        elif how == STRING:
            code = _string_code(data, at, end)
        else:
            code = _row_code(data, at, end, field, header, width, fixed)
        if code < 0:
            return i, count
        lane = np.int64(lane_of[key_group(uint32(code), groups)])
        if lane < 0:
            return i, count
        first, second = hash_words(data, start, end)
        add_record(sums, lane, first, second, end - start)
        count = _extend(start, end, lane, base, first_position + i, latest, reached, runs, count)
    return starts.shape[0], count


@njit(forceinline=True)
def _extend(
    start: int, end: int, lane: int, base: int, position: int, latest: Longs, reached: Longs, runs: Longs, count: int
) -> int:
    """Make an element part of its lane's latest run, or of a new one; how many runs there are.

    Written without a branch: whether neighbours have one owner is a matter of chance, and a wrong guess of the
    processor costs more than a few stores.
    """
    begin = start - LENGTH_BYTES
    fresh = np.int64(reached[lane] != begin)
    run = count if fresh else latest[lane]
    latest[lane], reached[lane] = run, end
    runs[0, run] = lane
    runs[1, run] = base + begin if fresh else runs[1, run]
    runs[2, run] = base + end
    runs[3, run] = position if fresh else runs[3, run]
    runs[4, run] = 1 if fresh else runs[4, run] + 1
    return count + fresh


@njit(cache=True, nogil=True)
def _place_other(
    start: int,
    end: int,
    tag: int,
    carried: Bytes,
    base: int,
    position: int,
    counts: Longs,
    latest: Longs,
    reached: Longs,
    runs: Longs,
    count: int,
) -> int:
    """An element that is no record: to every lane that carries its tag, and counted as ``select_runs`` does."""
    width = carried.shape[0]
    placed = False
    for lane in range(width):
        if carried[lane, tag]:
            counts[lane, tag] += 1
            placed = True
            count = _extend(start, end, lane, base, position, latest, reached, runs, count)
    counts[width if placed else width + 1, tag] += 1
    return count
