"""Per-record hashes that add up: an order-free 128-bit fingerprint and an order chain.

The hash of a record's raw bytes (tag, timestamp, value; not the length in front) is a pair of 64-bit words, all
arithmetic modulo 2**64, words read little-endian, the last one padded with zeros::

    a, b = SEED_A + length, SEED_B ^ (length * PRIME_C)
    words 0, 2, 4 … :  a = rotl31((a ^ word) * PRIME_A)
    words 1, 3, 5 … :  b = rotl29((b ^ word) * PRIME_B)
    hash = (mix(a + rotl17(b)), mix(b ^ (a * PRIME_C)))
    mix(x): x ^= x >> 33; x *= MIX_A; x ^= x >> 29; x *= MIX_B; x ^= x >> 32

* fingerprint of a multiset = the sums of both words, so parts computed apart are added;
* chain of a sequence = fold ``chain * CHAIN + first word``, so parts computed apart are joined when the length of the
  second is known: ``chain(xy) = chain(x) * CHAIN ** len(y) + chain(y)``.

The definition is written out here because the independent reader implements it a second time.
"""

# mypy: disable-error-code="untyped-decorator, misc"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from cdr_core.kernels.frames import TAG_RECORD, TAG_WATERMARK, TAG_WATERMARK_STATUS
from cdr_core.kernels.raw_memory import address_of, load_be64, load_byte, load_le64, rotate_left, store_64

Memory = Any
"""An array, or its address."""

Word = Any
"""A 64-bit word inside a kernel; numba knows its type, mypy does not."""

SEED_A = 0x9E3779B97F4A7C15
SEED_B = 0xC2B2AE3D27D4EB4F
PRIME_A = 0x9FB21C651E98DF25
PRIME_B = 0xD6E8FEB86659FD93
PRIME_C = 0xA0761D6478BD642F
MIX_A = 0xFF51AFD7ED558CCD
MIX_B = 0xC4CEB9FE1A85EC53
CHAIN = 0xE7037ED1A0B428DB
MASK = (1 << 64) - 1

_SEED_A, _SEED_B = uint64(SEED_A), uint64(SEED_B)
_PRIME_A, _PRIME_B, _PRIME_C = uint64(PRIME_A), uint64(PRIME_B), uint64(PRIME_C)
_MIX_A, _MIX_B, _CHAIN = uint64(MIX_A), uint64(MIX_B), uint64(CHAIN)


FOLD_COLUMNS = 5
ROW_BYTES = 8 * FOLD_COLUMNS
FINGERPRINT_BYTES = 16
"""Layout of one record's fingerprint: both hash words, big-endian, so that its hexadecimal digits are the words'."""
NO_FINGERPRINTS = np.empty(0, np.uint8)
"""Passed to a kernel whose caller does not want them."""
SIZES = slice(3, 5)
"""The columns of a fold that count: records and raw bytes."""

LONG_RECORD = 32
"""Bytes from which on two records are hashed side by side; shorter ones are not worth the comparison."""


@njit(forceinline=True)
def _mix(value: Word) -> Word:
    value ^= value >> uint64(33)
    value *= _MIX_A
    value ^= value >> uint64(29)
    value *= _MIX_B
    return value ^ (value >> uint64(32))


@njit(cache=True, nogil=True)
def _short_word(data: Memory, at: int, end: int) -> Word:
    """Return a word of up to 7 bytes, loaded one by one. Rare, so not inlined: the code would exceed its caller's."""
    word = uint64(0)
    for i in range(at, end):
        word |= uint64(load_byte(data, i)) << uint64(8 * (i - at))
    return word


@njit(forceinline=True)
def _tail_word(data: Memory, begin: int, at: int, end: int) -> Word:
    """Return the last 1 to 7 bytes of a record that begins at ``begin``; one load where the record is a
    word or longer.
    """
    if end - begin >= 8:
        return load_le64(data, end - 8) >> uint64(8 * (8 - (end - at)))
    return _short_word(data, at, end)


@njit(forceinline=True)
def _finish(data: Memory, begin: int, at: int, end: int, a: Word, b: Word) -> tuple[Word, Word]:
    """Return both hash words, from the state after the bytes up to ``at``, which is a multiple of two words from the
    start.
    """
    while at + 32 <= end:
        a = rotate_left((a ^ load_le64(data, at)) * _PRIME_A, 31)
        b = rotate_left((b ^ load_le64(data, at + 8)) * _PRIME_B, 29)
        a = rotate_left((a ^ load_le64(data, at + 16)) * _PRIME_A, 31)
        b = rotate_left((b ^ load_le64(data, at + 24)) * _PRIME_B, 29)
        at += 32
    if at + 16 <= end:
        a = rotate_left((a ^ load_le64(data, at)) * _PRIME_A, 31)
        b = rotate_left((b ^ load_le64(data, at + 8)) * _PRIME_B, 29)
        at += 16
    if at + 8 <= end:
        a = rotate_left((a ^ load_le64(data, at)) * _PRIME_A, 31)
        at += 8
        if at < end:
            b = rotate_left((b ^ _tail_word(data, begin, at, end)) * _PRIME_B, 29)
    elif at < end:
        a = rotate_left((a ^ _tail_word(data, begin, at, end)) * _PRIME_A, 31)
    return _mix(a + rotate_left(b, 17)), _mix(b ^ (a * _PRIME_C))


@njit(forceinline=True)
def _begin(length: int) -> tuple[Word, Word]:
    return _SEED_A + uint64(length), _SEED_B ^ (uint64(length) * _PRIME_C)


@njit(forceinline=True)
def hash_words(data: Memory, start: int, end: int) -> tuple[Word, Word]:
    """Return both hash words of ``data[start:end]``, inside another kernel."""
    a, b = _begin(end - start)
    return _finish(data, start, start, end, a, b)


@njit(forceinline=True)
def hash_two(data: Memory, start: int, end: int, next_start: int, next_end: int) -> tuple[Word, Word, Word, Word]:
    """Return the hash words of two records: a word of one has to wait for the word before it, not for the
    other record.
    """
    a, b = _begin(end - start)
    c, d = _begin(next_end - next_start)
    common = min(end - start, next_end - next_start) & ~15
    at, following, upto = start, next_start, start + common
    while at < upto:
        a = rotate_left((a ^ load_le64(data, at)) * _PRIME_A, 31)
        b = rotate_left((b ^ load_le64(data, at + 8)) * _PRIME_B, 29)
        c = rotate_left((c ^ load_le64(data, following)) * _PRIME_A, 31)
        d = rotate_left((d ^ load_le64(data, following + 8)) * _PRIME_B, 29)
        at += 16
        following += 16
    first, second = _finish(data, start, at, end, a, b)
    third, fourth = _finish(data, next_start, following, next_end, c, d)
    return first, second, third, fourth


@njit(forceinline=True)
def add_words(row: Memory, first: Word, second: Word) -> None:
    """Add the hash words of a record to a row of a fold; its records and bytes are counted otherwise."""
    store_64(row, 0, load_le64(row, 0) + first)
    store_64(row, 8, load_le64(row, 8) + second)
    store_64(row, 16, load_le64(row, 16) * _CHAIN + first)


@njit(forceinline=True)
def add_record(row: Memory, first: Word, second: Word, length: int) -> None:
    """Add a record with these hash words to a row of a fold."""
    add_words(row, first, second)
    store_64(row, 24, load_le64(row, 24) + uint64(1))
    store_64(row, 32, load_le64(row, 32) + uint64(length))


@njit(cache=True, nogil=True)
def fold_records(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    lanes: npt.NDArray[np.int64],
    sums: npt.NDArray[np.uint64],
) -> None:
    """Add each record to the row of ``sums`` its lane names.

    Columns: sum of first words, sum of second words, chain, records, raw bytes. A negative lane is left out. Rows are
    added to, not reset, so windows of one channel fold one after another.
    """
    count = starts.shape[0]
    memory, rows = address_of(data), address_of(sums)
    i = 0
    while i < count:
        if lanes[i] < 0:
            i += 1
        elif (
            i + 1 < count and lanes[i + 1] >= 0 and min(ends[i] - starts[i], ends[i + 1] - starts[i + 1]) >= LONG_RECORD
        ):
            first, second, third, fourth = hash_two(memory, starts[i], ends[i], starts[i + 1], ends[i + 1])
            add_record(rows + ROW_BYTES * lanes[i], first, second, ends[i] - starts[i])
            add_record(rows + ROW_BYTES * lanes[i + 1], third, fourth, ends[i + 1] - starts[i + 1])
            i += 2
        else:
            first, second = hash_words(memory, starts[i], ends[i])
            add_record(rows + ROW_BYTES * lanes[i], first, second, ends[i] - starts[i])
            i += 1


@njit(cache=True, nogil=True)
def fold_fingerprints(
    fingerprints: npt.NDArray[np.uint8],
    lengths: npt.NDArray[np.int64],
    lanes: npt.NDArray[np.int64],
    sums: npt.NDArray[np.uint64],
) -> None:
    """Fold records of which only fingerprints and lengths are known, as :func:`fold_records`."""
    words, rows = address_of(fingerprints), address_of(sums)
    for i in range(lanes.shape[0]):
        first = load_be64(words, FINGERPRINT_BYTES * i)
        second = load_be64(words, FINGERPRINT_BYTES * i + 8)
        add_record(rows + ROW_BYTES * lanes[i], first, second, lengths[i])


@njit(cache=True, nogil=True)
def first_other(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], fingerprints: npt.NDArray[np.uint8]
) -> int:
    """Return the first record ``data[offsets[i]:offsets[i + 1]]`` that has another fingerprint; −1 = none has."""
    memory, words = address_of(data), address_of(fingerprints)
    for i in range(offsets.shape[0] - 1):
        first, second = hash_words(memory, offsets[i], offsets[i + 1])
        at = FINGERPRINT_BYTES * i
        if load_be64(words, at) != first or load_be64(words, at + 8) != second:
            return i
    return -1


@njit(cache=True, nogil=True)
def fold_elements(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    tags: npt.NDArray[np.int8],
    sums: npt.NDArray[np.uint64],
    kinds: npt.NDArray[np.int64],
) -> tuple[int, int]:
    """As :func:`fold_records` with every record in the only row of ``sums``; ``kinds`` counts all elements by tag.

    Returns the indices of the last watermark and of the last watermark status, −1 where there is none.
    """
    count = starts.shape[0]
    memory, rows = address_of(data), address_of(sums)
    watermark, status = -1, -1
    i = 0
    while i < count:
        tag = tags[i]
        if tag > TAG_RECORD:
            if tag == TAG_WATERMARK:
                watermark = i
            elif tag == TAG_WATERMARK_STATUS:
                status = i
            kinds[tag] += 1
            i += 1
        elif (
            i + 1 < count
            and tags[i + 1] <= TAG_RECORD
            and min(ends[i] - starts[i], ends[i + 1] - starts[i + 1]) >= LONG_RECORD
        ):
            first, second, third, fourth = hash_two(memory, starts[i], ends[i], starts[i + 1], ends[i + 1])
            add_record(rows, first, second, ends[i] - starts[i])
            add_record(rows, third, fourth, ends[i + 1] - starts[i + 1])
            kinds[tag] += 1
            kinds[tags[i + 1]] += 1
            i += 2
        else:
            first, second = hash_words(memory, starts[i], ends[i])
            add_record(rows, first, second, ends[i] - starts[i])
            kinds[tag] += 1
            i += 1
    return watermark, status


def join_chains(left: int, right: int, right_length: int) -> int:
    """Return the chain of two sequences in a row."""
    return (left * pow(CHAIN, right_length, 1 << 64) + right) & MASK
