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

from cdr_core.kernels.memory import load_le64

Word = Any
"""A 64-bit word inside a kernel; numba knows its type, mypy has no name for it."""

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


@njit(inline="always")
def _rotate(value: Word, bits: int) -> Word:
    return uint64(value << uint64(bits)) | uint64(value >> uint64(64 - bits))


@njit(inline="always")
def _mix(value: Word) -> Word:
    value ^= value >> uint64(33)
    value *= _MIX_A
    value ^= value >> uint64(29)
    value *= _MIX_B
    return value ^ (value >> uint64(32))


@njit(cache=True, nogil=True)
def _tail_word(data: npt.NDArray[np.uint8], start: int, end: int) -> Word:
    word = uint64(0)
    for i in range(start, end):
        word |= uint64(data[i]) << uint64(8 * (i - start))
    return word


@njit(cache=True, nogil=True)
def record_hash(data: npt.NDArray[np.uint8], start: int, end: int) -> tuple[Word, Word]:
    """Both hash words of ``data[start:end]``; the caller has checked the bounds."""
    length = uint64(end - start)
    a: Word = _SEED_A + length
    b: Word = _SEED_B ^ (length * _PRIME_C)
    at = start
    while at + 16 <= end:
        a = _rotate((a ^ load_le64(data, at)) * _PRIME_A, 31)
        b = _rotate((b ^ load_le64(data, at + 8)) * _PRIME_B, 29)
        at += 16
    if at + 8 <= end:
        a = _rotate((a ^ load_le64(data, at)) * _PRIME_A, 31)
        at += 8
        if at < end:
            b = _rotate((b ^ _tail_word(data, at, end)) * _PRIME_B, 29)
    elif at < end:
        a = _rotate((a ^ _tail_word(data, at, end)) * _PRIME_A, 31)
    return _mix(a + _rotate(b, 17)), _mix(b ^ (a * _PRIME_C))


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
    for i in range(starts.shape[0]):
        lane = lanes[i]
        if lane < 0:
            continue
        first, second = record_hash(data, starts[i], ends[i])
        sums[lane, 0] += first
        sums[lane, 1] += second
        sums[lane, 2] = sums[lane, 2] * _CHAIN + first
        sums[lane, 3] += uint64(1)
        sums[lane, 4] += uint64(ends[i] - starts[i])


FOLD_COLUMNS = 5


def join_chains(left: int, right: int, right_length: int) -> int:
    """The chain of two sequences in a row."""
    return (left * pow(CHAIN, right_length, 1 << 64) + right) & MASK
