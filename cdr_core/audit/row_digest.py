"""The digest of a file's rows, from Arrow arrays: of rows given to a writer, and of rows read back from a file.

It covers the values of every column, in order. It does not prove that a value was decoded correctly: only a comparison
with the source does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.errors import IllegalState
from cdr_core.kernels import row_digest as kernels

States = npt.NDArray[np.uint64]

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class RowDigest:
    """The digest of rows that come in batches; how they are cut into batches does not matter."""

    def __init__(self) -> None:
        self._digest, self._rows = kernels.SEED, 0

    def add(self, batch: pa.RecordBatch) -> None:
        states = _fresh(batch.num_rows)
        for column in batch.columns:
            _absorb(states, column)
        self._digest = int(kernels.fold_states(np.uint64(self._digest), states))
        self._rows += batch.num_rows

    @property
    def hex(self) -> str:
        end = kernels.fold_states(np.uint64(self._digest), np.array([self._rows], np.uint64))
        return f"{int(end):016x}"


def _fresh(count: int) -> States:
    return np.full(count, kernels.SEED, np.uint64)


def _absorb(states: States, array: pa.Array) -> None:
    """Absorb a value per state; which kernel does it depends on the type alone."""
    type_ = array.type
    if not len(array):
        return
    if array.null_count == len(array):
        kernels.absorb_null(states)
    elif pa.types.is_dictionary(type_):
        _absorb(states, array.dictionary_decode())
    elif pa.types.is_struct(type_):
        _absorb_struct(states, array)
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_map(type_):
        _absorb_list(states, array)
    elif pa.types.is_fixed_size_binary(type_):
        kernels.absorb_fixed(states, array.buffers()[1].address, type_.byte_width, _bitmap(array), array.offset)
    elif width := _offset_width(type_):
        _, offsets, data = array.buffers()
        address = 0 if data is None else data.address
        kernels.absorb_texts(states, address, offsets.address, width, _bitmap(array), array.offset)
    elif pa.types.is_decimal128(type_) or pa.types.is_decimal256(type_):
        words = type_.byte_width // 8
        kernels.absorb_wide(states, array.buffers()[1].address, words, _bitmap(array), array.offset)
    else:
        _absorb_number(states, array)


def _absorb_struct(states: States, array: pa.StructArray) -> None:
    if not array.null_count:
        for number in range(array.type.num_fields):
            _absorb(states, array.field(number))
        return
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    inside, outside = states[valid], states[~valid]
    _absorb_struct(inside, array.filter(array.is_valid()))
    kernels.absorb_null(outside)
    states[valid], states[~valid] = inside, outside


def _absorb_list(states: States, array: pa.Array) -> None:
    """Absorb lists and maps. Entries before or behind the array's own range are skipped."""
    offsets = array.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    entries = _fresh(last - first)
    parts = (array.keys, array.items) if pa.types.is_map(array.type) else (array.values,)
    for part in parts:
        _absorb(entries, part.slice(first, last - first))
    width = 8 if pa.types.is_large_list(array.type) else 4
    kernels.absorb_lists(states, entries, array.buffers()[1].address, width, _bitmap(array), array.offset)


def _absorb_number(states: States, array: pa.Array) -> None:
    """Absorb values of up to 64 bits."""
    type_, factor = array.type, 1
    if pa.types.is_float32(type_) or pa.types.is_float16(type_):
        array, type_ = array.cast(pa.float64()), pa.float64()
    if pa.types.is_timestamp(type_) or pa.types.is_time(type_):
        factor = _NANOSECONDS[type_.unit]
    elif pa.types.is_boolean(type_):
        _absorb_words(states, array, kernels.BIT)
        return
    elif pa.types.is_float64(type_):
        _absorb_words(states, array, kernels.FLOAT)
        return
    elif not (pa.types.is_signed_integer(type_) or pa.types.is_date32(type_)):
        raise IllegalState(f"there is no digest of values of type {type_}")
    _absorb_words(states, array, type_.bit_width // 8, factor)


def _absorb_words(states: States, array: pa.Array, width: int, factor: int = 1) -> None:
    kernels.absorb_values(states, array.buffers()[1].address, width, factor, _bitmap(array), array.offset)


def _bitmap(array: pa.Array) -> int:
    """Return the address of the validity bitmap; that of no bitmap where nothing is null, even if Arrow keeps one."""
    return array.buffers()[0].address if array.null_count else kernels.NO_BITMAP


def _offset_width(type_: pa.DataType) -> int:
    """Return the offset width of text and bytes; 0 for other types."""
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return 4
    return 8 if pa.types.is_large_string(type_) or pa.types.is_large_binary(type_) else 0
