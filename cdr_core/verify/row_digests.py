"""The digest of a file's rows, implemented again from its definition in ``docs/receipt.md``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.verify.fingerprints import fingerprints

Words = npt.NDArray[np.uint64]

SHORT = 16
_SEED = 0x9E3779B97F4A7C15
_PRIMES = (0x9FB21C651E98DF25, 0xD6E8FEB86659FD93)
_NULL = 0xA0761D6478BD642F
_NAN = np.uint64(0x7FF8000000000000)
_MASK = (1 << 64) - 1
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class RowDigest:
    """Digest of rows that come in batches."""

    def __init__(self) -> None:
        self._state, self._rows = _SEED, 0

    def add(self, batch: pa.RecordBatch) -> None:
        states = np.full(batch.num_rows, _SEED, np.uint64)
        for column in batch.columns:
            states = _absorb_column(states, column)
        for word in states.tolist():
            self._state = _absorb_one(self._state, word)
        self._rows += batch.num_rows

    def hex(self) -> str:
        return f"{_absorb_one(self._state, self._rows):016x}"


def _absorb_one(state: int, word: int) -> int:
    state = (state ^ word) * _PRIMES[0] & _MASK
    state = (state ^ state >> 29) * _PRIMES[1] & _MASK
    return state ^ state >> 32


def _absorb(states: Words, words: Words | np.uint64) -> Words:
    mixed: Words = (states ^ words) * np.uint64(_PRIMES[0])
    mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(_PRIMES[1])
    return mixed ^ mixed >> np.uint64(32)


def _absorb_column(states: Words, array: pa.Array) -> Words:
    """Return the states after absorbing a value each."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        found = _absorb(states, np.uint64(_NULL)) + np.uint64(_NULL)
        found[valid] = _absorb_column(states[valid], array.filter(array.is_valid()))
        return found
    if pa.types.is_struct(array.type):
        for field in array.flatten():
            states = _absorb_column(states, field)
        return states
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_map(array.type):
        return _absorb_lists(states, array)
    if pa.types.is_decimal(array.type):
        width = array.type.byte_width // 8
        words = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, width)[array.offset :][: len(array)]
        for word in words.T:
            states = _absorb(states, word)
        return states
    if _is_bytes(array.type):
        return _absorb_bytes(states, array)
    return _absorb(states, _words(array))


def _words(array: pa.Array) -> Words:
    """Return values of up to 64 bits as words."""
    type_ = array.type
    if pa.types.is_floating(type_):
        doubles = array.cast(pa.float64()).to_numpy()
        return np.where(np.isnan(doubles), _NAN, doubles.view(np.uint64))
    factor = _NANOSECONDS[type_.unit] if pa.types.is_timestamp(type_) or pa.types.is_time(type_) else 1
    narrow = pa.types.is_date32(type_) or pa.types.is_time32(type_)
    numbers = array.cast(pa.int32()) if narrow else array
    longs = numbers.cast(pa.int64()).to_numpy(zero_copy_only=False)
    words: Words = longs.astype(np.int64).view(np.uint64)
    return words * np.uint64(factor)


def _is_bytes(type_: pa.DataType) -> bool:
    kinds = pa.types
    fixed, binary = kinds.is_fixed_size_binary(type_), kinds.is_binary(type_) or kinds.is_large_binary(type_)
    return bool(fixed or binary or kinds.is_string(type_) or kinds.is_large_string(type_))


def _absorb_bytes(states: Words, array: pa.Array) -> Words:
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    array = array.cast(pa.large_binary())
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset :][: len(array) + 1]
    data = array.buffers()[2]
    held = b"" if data is None else data.to_pybytes()
    starts, lengths = offsets[:-1], np.diff(offsets)
    states = _absorb(states, lengths.astype(np.uint64))
    padded = np.frombuffer(held + bytes(8), np.uint8)
    for number in range(SHORT // 8):
        here = (lengths <= SHORT) & (lengths > 8 * number)
        places = starts[here, None] + 8 * number + np.arange(8)
        inside = np.arange(8) < (lengths[here] - 8 * number)[:, None]
        word = np.where(inside, padded[np.minimum(places, len(padded) - 1)], 0).astype(np.uint8).view("<u8")[:, 0]
        states[here] = _absorb(states[here], word)
    longer = lengths > SHORT
    if longer.any():
        for word in fingerprints(held, starts[longer], offsets[1:][longer]).T:
            states[longer] = _absorb(states[longer], word)
    return states


def _absorb_lists(states: Words, array: pa.Array) -> Words:
    offsets = array.offsets.to_numpy().astype(np.int64)
    parts = (array.keys, array.items) if pa.types.is_map(array.type) else (array.values,)
    entries = np.full(int(offsets[-1] - offsets[0]), _SEED, np.uint64)
    for part in parts:
        entries = _absorb_column(entries, part.slice(int(offsets[0]), len(entries)))
    lengths, offsets = np.diff(offsets), offsets - offsets[0]
    states = _absorb(states, lengths.astype(np.uint64))
    for number in range(int(lengths.max(initial=0))):
        here = lengths > number
        states[here] = _absorb(states[here], entries[offsets[:-1][here] + number])
    return states
