"""The pipeline's fingerprint and order chain, implemented again from their definition in ``docs/receipt.md``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

FEW = 32
"""Number of records below which Python integers are faster than arrays."""

_MASK = (1 << 64) - 1
_SEEDS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
_PRIMES = (0x9FB21C651E98DF25, 0xD6E8FEB86659FD93)
_TURNS = (31, 29)
_LENGTH_PRIME = 0xA0761D6478BD642F
_MIXES = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
_CHAIN = 0xE7037ED1A0B428DB


def fingerprints(data: bytes, starts: Longs, ends: Longs) -> Words:
    """Return both words of each record ``data[starts[i]:ends[i]]``."""
    lengths = ends - starts
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    state = np.empty((2, len(order)), np.uint64)
    state[0] = np.uint64(_SEEDS[0]) + lengths.astype(np.uint64)
    state[1] = np.uint64(_SEEDS[1]) ^ lengths.astype(np.uint64) * np.uint64(_LENGTH_PRIME)
    _absorb(np.frombuffer(data, np.uint8), data, starts, lengths, state)
    first = _mixed(state[0] + _rotated(state[1], 17))
    second = _mixed(state[1] ^ state[0] * np.uint64(_LENGTH_PRIME))
    found = np.empty((len(order), 2), np.uint64)
    found[order, 0], found[order, 1] = first, second
    return found


def _absorb(view: npt.NDArray[np.uint8], data: bytes, starts: Longs, lengths: Longs, state: Words) -> None:
    """Absorb all words of all records, longest first: a record takes one word at a time, alternately into each half."""
    words = -(-lengths // 8)
    number, place = 0, np.arange(8)
    while (active := int(np.searchsorted(-words, -number, side="left"))) > FEW:
        places = (starts[:active] + 8 * number)[:, None] + place
        left = (lengths[:active] - 8 * number)[:, None]
        taken = view[np.minimum(places, len(view) - 1)]
        word = np.where(place < left, taken, 0).astype(np.uint8).view("<u8")[:, 0]
        half = number % 2
        mixed = (state[half, :active] ^ word) * np.uint64(_PRIMES[half])
        state[half, :active] = _rotated(mixed, _TURNS[half])
        number += 1
    for record in range(active):
        begin, end = int(starts[record]) + 8 * number, int(starts[record] + lengths[record])
        values = [int(state[0, record]), int(state[1, record])]
        for step, at in enumerate(range(begin, end, 8), number):
            half, turn = step % 2, _TURNS[step % 2]
            value = (values[half] ^ int.from_bytes(data[at : min(at + 8, end)], "little")) * _PRIMES[half] & _MASK
            values[half] = (value << turn | value >> (64 - turn)) & _MASK
        state[:, record] = values


def _rotated(value: Words, bits: int) -> Words:
    return value << np.uint64(bits) | value >> np.uint64(64 - bits)


def _mixed(value: Words) -> Words:
    value = (value ^ value >> np.uint64(33)) * np.uint64(_MIXES[0])
    value = (value ^ value >> np.uint64(29)) * np.uint64(_MIXES[1])
    return value ^ value >> np.uint64(32)


def chains(first_words: Words, begins: Longs) -> Words:
    """Return the order chain of each sequence of records; sequence i begins at record ``begins[i]``, none is empty."""
    if not len(begins):
        return np.zeros(0, np.uint64)
    lengths = np.diff(np.append(begins, len(first_words)))
    powers = np.full(int(lengths.max()), _CHAIN, np.uint64)
    powers[0] = 1
    behind = np.repeat(begins + lengths - 1, lengths) - np.arange(len(first_words))
    return np.add.reduceat(first_words * np.multiply.accumulate(powers)[behind], begins)
