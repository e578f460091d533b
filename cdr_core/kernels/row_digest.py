"""A digest of rows by their values: the same for equal rows, however Arrow lays out their buffers.

A row has a state of 64 bits, which absorbs the columns in order; all arithmetic is modulo 2**64, words are read
little-endian::

    absorb(state, word): x = (state ^ word) * PRIME_A; x ^= x >> 29; x *= PRIME_B; x ^ (x >> 32)
    null:           absorb(state, NULL) + PRIME_C
    bool, integer:  the value, sign-extended to 64 bits; a date is its days, a time or timestamp its nanoseconds
    float:          the bits of the double, every NaN as 0x7ff8000000000000
    decimal:        the words of the unscaled value, lowest first
    text, bytes:    how many bytes; then, of up to 16 bytes, their words, the last one padded with zeros, and of more,
                    both hash words of the module ``fingerprint``
    struct:         the fields in order; nothing else, so that a null struct is one null
    list, map:      how many entries, then the state of each entry, which begins at SEED; a map's are key and value

A row begins at SEED. The digest of a file begins at SEED, absorbs the states of its rows in order, then their number.
The definition is written out here because the independent reader implements it a second time.
"""

# What is an int to mypy has a machine type for numba, so these would be wrong either way.
# mypy: disable-error-code="untyped-decorator, misc, assignment, no-any-return, operator"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from cdr_core.kernels.fingerprint import PRIME_A, PRIME_B, PRIME_C, SEED_A, hash_words
from cdr_core.kernels.raw_memory import load_byte, load_le16, load_le32, load_le64

States = npt.NDArray[np.uint64]

Word = Any
"""A 64-bit word inside a kernel."""

SEED = SEED_A
NULL = PRIME_C
NAN = 0x7FF8000000000000
NO_BITMAP = 0
"""Address that stands for a missing validity bitmap: no value is null."""

SHORT_TEXT = 16
"""Bytes up to which a text is absorbed word by word; longer ones take less time by two words side by side."""

BIT, FLOAT = 0, -8
"""Special widths: a bit a value, and a double whose NaN are all alike."""

_PRIME_A, _PRIME_B, _PRIME_C = uint64(PRIME_A), uint64(PRIME_B), uint64(PRIME_C)
_NULL, _NAN, _INFINITY, _SIGN = uint64(NULL), uint64(NAN), uint64(0x7FF << 52), uint64((1 << 63) - 1)


@njit(forceinline=True)
def _absorb(state: Word, word: Word) -> Word:
    state = (state ^ word) * _PRIME_A
    state ^= state >> uint64(29)
    state *= _PRIME_B
    return state ^ (state >> uint64(32))


@njit(forceinline=True)
def _absorb_null(state: Word) -> Word:
    return _absorb(state, _NULL) + _PRIME_C


@njit(forceinline=True)
def _is_set(bitmap: int, at: int) -> bool:
    return (load_byte(bitmap, at >> 3) >> (at & 7)) & 1 != 0


@njit(forceinline=True)
def _word_at(values: int, width: int, at: int) -> Word:
    """Return a value of ``width`` bytes as a word."""
    if width == 8:
        return load_le64(values, 8 * at)
    if width == 4:
        return uint64(np.int64(np.int32(load_le32(values, 4 * at))))
    if width == 2:
        return uint64(np.int64(np.int16(load_le16(values, 2 * at))))
    if width == 1:
        return uint64(np.int64(np.int8(load_byte(values, at))))
    if width == BIT:
        return uint64(1) if _is_set(values, at) else uint64(0)
    word = load_le64(values, 8 * at)
    return _NAN if word & _SIGN > _INFINITY else word


@njit(forceinline=True)
def _absorb_words(states: States, values: int, width: int, factor: int, bitmap: int, offset: int) -> None:
    for i in range(states.shape[0]):
        if bitmap == NO_BITMAP or _is_set(bitmap, offset + i):
            states[i] = _absorb(states[i], _word_at(values, width, offset + i) * uint64(factor))
        else:
            states[i] = _absorb_null(states[i])


@njit(cache=True, nogil=True)
def absorb_values(states: States, values: int, width: int, factor: int, bitmap: int, offset: int) -> None:
    """Absorb a column of values of ``width`` bytes, each times ``factor``; ``values`` and ``bitmap`` are addresses of
    buffers, of which the first ``offset`` values do not count.
    """
    # A constant width makes a loop of its own: one that asks for the width of every value takes three times as long.
    if bitmap == NO_BITMAP and factor == 1 and width == 8:
        _absorb_words(states, values, 8, 1, NO_BITMAP, offset)
    elif bitmap == NO_BITMAP and factor == 1 and width == 4:
        _absorb_words(states, values, 4, 1, NO_BITMAP, offset)
    else:
        _absorb_words(states, values, width, factor, bitmap, offset)


@njit(cache=True, nogil=True)
def absorb_null(states: States) -> None:
    """Absorb a column of nulls."""
    for i in range(states.shape[0]):
        states[i] = _absorb_null(states[i])


@njit(cache=True, nogil=True)
def absorb_wide(states: States, values: int, words: int, bitmap: int, offset: int) -> None:
    """Absorb a column of values of several words each."""
    for i in range(states.shape[0]):
        if bitmap != NO_BITMAP and not _is_set(bitmap, offset + i):
            states[i] = _absorb_null(states[i])
            continue
        state = states[i]
        for k in range(words):
            state = _absorb(state, load_le64(values, 8 * (words * (offset + i) + k)))
        states[i] = state


@njit(forceinline=True)
def _absorb_text(state: Word, data: int, start: int, end: int) -> Word:
    state = _absorb(state, uint64(end - start))
    if end - start > SHORT_TEXT:
        first, second = hash_words(data, start, end)
        return _absorb(_absorb(state, first), second)
    at = start
    while at + 8 <= end:
        state = _absorb(state, load_le64(data, at))
        at += 8
    if at == end:
        return state
    if end >= 8:  # one load that ends with the value; what is in front of it is shifted out
        return _absorb(state, load_le64(data, end - 8) >> uint64(8 * (8 - (end - at))))
    word = uint64(0)
    for k in range(at, end):
        word |= uint64(load_byte(data, k)) << uint64(8 * (k - at))
    return _absorb(state, word)


@njit(cache=True, nogil=True)
def absorb_texts(states: States, data: int, offsets: int, width: int, bitmap: int, offset: int) -> None:
    """Absorb a column of text or bytes, whose offsets have ``width`` bytes each."""
    for i in range(states.shape[0]):
        if bitmap != NO_BITMAP and not _is_set(bitmap, offset + i):
            states[i] = _absorb_null(states[i])
        else:
            start, end = _word_at(offsets, width, offset + i), _word_at(offsets, width, offset + i + 1)
            states[i] = _absorb_text(states[i], data, np.int64(start), np.int64(end))


@njit(cache=True, nogil=True)
def absorb_fixed(states: States, data: int, size: int, bitmap: int, offset: int) -> None:
    """Absorb a column of bytes, ``size`` each."""
    for i in range(states.shape[0]):
        if bitmap != NO_BITMAP and not _is_set(bitmap, offset + i):
            states[i] = _absorb_null(states[i])
        else:
            states[i] = _absorb_text(states[i], data, size * (offset + i), size * (offset + i + 1))


@njit(cache=True, nogil=True)
def absorb_lists(states: States, entries: States, offsets: int, width: int, bitmap: int, offset: int) -> None:
    """Absorb a column of lists; ``entries`` are the states of all entries, the first list's first."""
    base = _word_at(offsets, width, offset)
    for i in range(states.shape[0]):
        if bitmap != NO_BITMAP and not _is_set(bitmap, offset + i):
            states[i] = _absorb_null(states[i])
            continue
        start, end = _word_at(offsets, width, offset + i) - base, _word_at(offsets, width, offset + i + 1) - base
        state = _absorb(states[i], end - start)
        for k in range(np.int64(start), np.int64(end)):
            state = _absorb(state, entries[k])
        states[i] = state


@njit(cache=True, nogil=True)
def fold_states(digest: Word, states: States) -> Word:
    """Return the digest of rows behind those of ``digest``."""
    digest = uint64(digest)
    for i in range(states.shape[0]):
        digest = _absorb(digest, states[i])
    return digest
