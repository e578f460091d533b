"""Flink's binary rows and arrays (little-endian): where each field lies.

A *cell* is a field's slot: eight bytes in a row, the element's width in an array; its position is −1 for a null. A
variable field's slot leads to a *span* of the row or array around it, its base. Nothing is trusted that does not lie
inside the base.
"""

# What is an int to mypy has a machine type for numba, so these would be wrong either way.
# mypy: disable-error-code="untyped-decorator, misc, no-any-return, assignment, return-value, arg-type, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from cdr_core.kernels.decode_walk import BAD_FLAG, BAD_LENGTH, OK
from cdr_core.kernels.raw_memory import load_le32, load_le64

MAX_KIND = 3
KIND_BITS = 8
"""Bits of a row's header in front of the null bits."""
SLOT = 8

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

_INLINE = uint64(1 << 63)


def header_bytes(fields: int) -> int:
    """Return the bytes of row kind and null bits, in whole words."""
    return (fields + 63 + KIND_BITS) // 64 * 8


@njit(cache=True, nogil=True)
def check_rows(data: Bytes, rows: Positions, sizes: Positions, fixed: int) -> tuple[int, int]:
    """Return (index of the first invalid row or −1, why): whole words, at least the fixed part, a known kind."""
    for i in range(rows.shape[0]):
        if rows[i] >= 0:
            if sizes[i] < fixed or sizes[i] & 7:
                return i, BAD_LENGTH
            if data[rows[i]] > MAX_KIND:
                return i, BAD_FLAG
    return -1, OK


@njit(cache=True, nogil=True)
def row_cells(data: Bytes, rows: Positions, field: int, header: int, cells: Positions) -> None:
    """Store the cell of one field in each row."""
    bit = field + KIND_BITS
    for i in range(rows.shape[0]):
        at = rows[i]
        if at < 0 or (data[at + (bit >> 3)] >> (bit & 7)) & 1:
            cells[i] = -1
        else:
            cells[i] = at + header + SLOT * field


@njit(cache=True, nogil=True)
def find_spans(
    data: Bytes,
    cells: Positions,
    bases: Positions,
    sizes: Positions,
    inline: bool,
    starts: Positions,
    lengths: Positions,
) -> int:
    """Return where each variable field's bytes are; the index of the first outside its base, or −1.

    With ``inline`` up to seven bytes may lie in the slot itself, as strings and byte strings do. Spans of one array do
    not overlap: together they are no longer than it, or a small array could claim any amount of memory.
    """
    base, claimed = np.int64(-1), np.int64(0)
    for i in range(cells.shape[0]):
        at = cells[i]
        starts[i] = -1
        lengths[i] = 0
        if at < 0:
            continue
        word = load_le64(data, at)
        if inline and word & _INLINE:
            starts[i] = at
            lengths[i] = np.int64((word >> uint64(56)) & uint64(0x7F))
            if lengths[i] > 7:
                return i
            continue
        offset, length = np.int64(word >> uint64(32)), np.int64(word & uint64(0xFFFFFFFF))
        claimed = length if bases[i] != base else claimed + length
        base = bases[i]
        if offset + length > sizes[i] or claimed > sizes[i]:
            return i
        starts[i] = bases[i] + offset
        lengths[i] = length
    return -1


@njit(cache=True, nogil=True)
def count_elements(data: Bytes, arrays: Positions, sizes: Positions, width: int, counts: Positions) -> int:
    """Store the elements of each array (−1 for a null one); return the index of the first whose elements do not fit it,
    or −1.
    """
    for i in range(arrays.shape[0]):
        counts[i] = -1
        if arrays[i] < 0:
            continue
        if sizes[i] < 4:
            return i
        count = np.int64(np.int32(load_le32(data, arrays[i])))
        if count < 0 or 4 + (count + 31) // 32 * 4 + count * width > sizes[i]:
            return i
        counts[i] = count
    return -1


@njit(cache=True, nogil=True)
def array_cells(data: Bytes, arrays: Positions, counts: Positions, width: int, cells: Positions) -> None:
    """Store the cells of all elements, array after array."""
    k = 0
    for i in range(arrays.shape[0]):
        elements = arrays[i] + 4 + (counts[i] + 31) // 32 * 4
        for j in range(counts[i]):
            null = (data[arrays[i] + 4 + (j >> 3)] >> (j & 7)) & 1
            cells[k] = -1 if null else elements + j * width
            k += 1


@njit(cache=True, nogil=True)
def split_maps(
    data: Bytes, maps: Positions, sizes: Positions, key_sizes: Positions, values: Positions, value_sizes: Positions
) -> int:
    """A map is the size of its key array, that array, the array of values; the first that is none, or −1.

    ``maps`` is moved to the key arrays.
    """
    for i in range(maps.shape[0]):
        values[i] = -1
        key_sizes[i] = value_sizes[i] = 0
        if maps[i] < 0:
            continue
        if sizes[i] < 4:
            return i
        size = np.int64(np.int32(load_le32(data, maps[i])))
        if size < 0 or size > sizes[i] - 4:
            return i
        maps[i] += 4
        key_sizes[i] = size
        values[i] = maps[i] + size
        value_sizes[i] = sizes[i] - 4 - size
    return -1


@njit(cache=True, nogil=True)
def check_pairs(key_counts: Positions, value_counts: Positions) -> int:
    """Return the index of the first map with another number of values than keys, or −1."""
    for i in range(key_counts.shape[0]):
        if key_counts[i] != value_counts[i]:
            return i
    return -1


@njit(cache=True, nogil=True)
def find_timestamps(
    data: Bytes, cells: Positions, bases: Positions, sizes: Positions, millis: Positions, nanos: Positions
) -> int:
    """Timestamps finer than milliseconds: the slot has the nanos of the millisecond and leads to the milliseconds.

    Returns the index of the first whose eight bytes are outside its base, or −1.
    """
    for i in range(cells.shape[0]):
        millis[i] = 0
        nanos[i] = 0
        if cells[i] < 0:
            continue
        word = load_le64(data, cells[i])
        offset = np.int64(word >> uint64(32))
        if offset + 8 > sizes[i]:
            return i
        millis[i] = np.int64(load_le64(data, bases[i] + offset))
        nanos[i] = np.int64(word & uint64(0xFFFFFFFF))
    return -1
