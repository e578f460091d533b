"""The hash of a SQL key: its columns projected to a binary row of their own, as Flink's generated code writes it."""

# What is an int to mypy has a machine type for numba, so these would be wrong either way.
# mypy: disable-error-code="untyped-decorator, misc, no-any-return, assignment, return-value, arg-type, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, uint32, uint64

from cdr_core.kernels.hashes import murmur_finish, murmur_mix
from cdr_core.kernels.raw_memory import load_le32, load_le64, store_64
from cdr_core.kernels.rowdata import KIND_BITS, SLOT

FIXED, BYTES, DECIMAL, TIMESTAMP = 0, 1, 2, 3
"""Encodings of a key column: in its slot; as bytes, inline up to seven; 16 or 8 bytes of the variable part."""

SEED = 42
INLINE = 7
DECIMAL_BYTES, TIMESTAMP_BYTES = 16, 8

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

_INLINE = uint64(1 << 63)
_ALL_BITS = uint64(0xFFFFFFFFFFFFFFFF)


@njit(cache=True, nogil=True)
def put_bytes(data: Bytes, start: int, length: int, key: Bytes, slot: int, end: int) -> int:
    """Put a string or byte string: up to seven bytes in the slot, else in whole words at the end; return
    the new end.
    """
    if length <= INLINE:
        word = uint64(0x80 | length) << uint64(56)
        for k in range(length):
            word |= uint64(data[start + k]) << uint64(8 * k)
        store_64(key, slot, word)
        return end
    store_64(key, slot, (uint64(end) << uint64(32)) | uint64(length))
    padded = (length + 7) // 8 * 8
    store_64(key, end + padded - 8, uint64(0))
    k = 0
    while k + 8 <= length:
        store_64(key, end + k, load_le64(data, start + k))
        k += 8
    while k < length:
        key[end + k] = data[start + k]
        k += 1
    return end + padded


@njit(cache=True, nogil=True)
def put_reserved(data: Bytes, start: int, length: int, low: int, room: int, key: Bytes, slot: int, end: int) -> int:
    """Put up to ``room`` bytes at the end, the rest of it zero; ``low`` is the slot's lower half. Return
    the new end.
    """
    store_64(key, slot, (uint64(end) << uint64(32)) | uint64(low))
    for k in range(room):
        key[end + k] = data[start + k] if k < length else 0
    return end + room


@njit(cache=True, nogil=True)
def put_column(
    data: Bytes, row: int, size: int, cell: int, null: bool, how: int, width: int, key: Bytes, slot: int, end: int
) -> int:
    """Write one column of the key; the new end of the key row, or −1 if the column lies outside its row."""
    if how == FIXED:
        mask = _ALL_BITS >> uint64(64 - 8 * width)
        store_64(key, slot, uint64(0) if null else load_le64(data, cell) & mask)
        return end
    word = uint64(0) if null else load_le64(data, cell)
    offset, low = np.int64(word >> uint64(32)), np.int64(word & uint64(0xFFFFFFFF))
    if how == BYTES:
        if null:
            store_64(key, slot, uint64(0))
            return end
        if word & _INLINE:
            length = np.int64((word >> uint64(56)) & uint64(0x7F))
            return put_bytes(data, cell, length, key, slot, end) if length <= INLINE else -1
        return put_bytes(data, row + offset, low, key, slot, end) if offset + low <= size else -1
    # A null of these types still reserves its room, unlike one that a serializer writes.
    if how == DECIMAL:
        length = np.int64(0) if null else low
        if length > DECIMAL_BYTES or offset + length > size:
            return -1
        return put_reserved(data, row + offset, length, length, DECIMAL_BYTES, key, slot, end)
    length = np.int64(0 if null else TIMESTAMP_BYTES)
    if offset + length > size:
        return -1
    return put_reserved(data, row + offset, length, low, TIMESTAMP_BYTES, key, slot, end)


@njit(cache=True, nogil=True)
def hash_projection(
    data: Bytes,
    rows: Positions,
    sizes: Positions,
    row_header: int,
    columns: npt.NDArray[np.int64],
    key_header: int,
    key: Bytes,
    out: npt.NDArray[np.uint32],
) -> tuple[int, int]:
    """Return the hash of each row's key: (index of the first row with a column outside of it or −1, that column).

    ``columns`` has (field, how, width) a row. ``key`` is room for the longest key row: the header, and per column a
    slot, its bytes in whole words and one more word. The rows have been checked to hold their fixed part.
    """
    for i in range(rows.shape[0]):
        row = rows[i]
        end = np.int64(key_header + SLOT * columns.shape[0])
        for at in range(0, key_header, SLOT):
            store_64(key, at, uint64(0))
        for c in range(columns.shape[0]):
            field = columns[c, 0]
            null = (data[row + ((field + KIND_BITS) >> 3)] >> ((field + KIND_BITS) & 7)) & 1 == 1
            if null:
                key[(c + KIND_BITS) >> 3] |= 1 << ((c + KIND_BITS) & 7)
            slot = key_header + SLOT * c
            cell = row + row_header + SLOT * field
            end = put_column(data, row, sizes[i], cell, null, columns[c, 1], columns[c, 2], key, slot, end)
            if end < 0:
                return i, c
        h = uint32(SEED)
        for at in range(0, end, 4):
            h = murmur_mix(h, load_le32(key, at))
        out[i] = murmur_finish(h, end)
    return -1, 0
