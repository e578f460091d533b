"""Arrow columns from the positions a walker found: one small kernel a column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.errors import Refused
from cdr_core.flink.types import Kind
from cdr_core.kernels import decode_big, decode_text, values

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

MAX_COLUMN_BYTES = 2**31 - 1
"""Arrow's strings, bytes and lists count with 32 bits."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The first entry of a column that is no value."""

    index: int
    reason: int


@dataclass(frozen=True, slots=True)
class Column:
    """An Arrow array, or its first invalid entry; and how many unpaired surrogates were replaced."""

    array: Any
    problem: Problem | None = None
    replaced: int = 0


@dataclass(frozen=True, slots=True)
class Level:
    """Leads from an entry back to its record: entries of an array's elements lie between the offsets of the array's own
    level; without offsets an entry is a record."""

    parent: Level | None = None
    offsets: npt.NDArray[np.int32] | None = None

    def record(self, index: int) -> int:
        """Return the record that the entry belongs to."""
        if self.parent is None or self.offsets is None:
            return index
        return self.parent.record(int(np.searchsorted(self.offsets, index, side="right")) - 1)


def validity(positions: Positions) -> tuple[Any, int]:
    """Return Arrow's bitmap and the number of nulls; no bitmap where there are none."""
    valid = positions >= 0
    nulls = len(valid) - int(np.count_nonzero(valid))
    return (pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None), nulls


def fixed_column(arrow_type: pa.DataType, positions: Positions, words: npt.NDArray[Any]) -> Column:
    """Return gathered words as an array of the type."""
    bitmap, nulls = validity(positions)
    return Column(pa.Array.from_buffers(arrow_type, len(positions), [bitmap, pa.py_buffer(words)], nulls))


def gathered(
    arrow_type: pa.DataType, word: npt.DTypeLike, kernel: Callable[..., None]
) -> Callable[[Bytes, Positions], Column]:
    """Return a column of the type from a kernel that gathers words of the width."""

    def convert(data: Bytes, positions: Positions) -> Column:
        words = np.empty(len(positions), dtype=word)
        kernel(data, positions, words)
        return fixed_column(arrow_type, positions, words)

    return convert


def boolean_column(data: Bytes, positions: Positions) -> Column:
    """Return bytes of 0 and 1 as bits."""
    bits = np.zeros((len(positions) + 7) // 8, dtype=np.uint8)
    bad = values.gather_bits(data, positions, bits)
    column = fixed_column(pa.bool_(), positions, bits)
    return column if bad < 0 else Column(None, Problem(bad, values.BAD_BOOLEAN))


FIXED: dict[Kind, Callable[[Bytes, Positions], Column]] = {
    Kind.BOOLEAN: boolean_column,
    Kind.BYTE: gathered(pa.int8(), np.uint8, values.gather_8),
    Kind.SHORT: gathered(pa.int16(), np.uint16, values.gather_be16),
    Kind.INT: gathered(pa.int32(), np.uint32, values.gather_be32),
    Kind.LONG: gathered(pa.int64(), np.uint64, values.gather_be64),
    Kind.FLOAT: gathered(pa.float32(), np.uint32, values.gather_be32),
    Kind.DOUBLE: gathered(pa.float64(), np.uint64, values.gather_be64),
}


def refuse_oversize(count: int) -> None:
    """Refuse more bytes than Arrow's offsets can count: the caller's batch is too large, the data is not at fault."""
    if count > MAX_COLUMN_BYTES:
        raise Refused(f"one column of the batch takes {count} bytes", hint="decode fewer records at a time")


def list_offsets(counts: Positions) -> npt.NDArray[np.int32]:
    """Return Arrow's offsets from the number of elements of each list; −1 is a null list."""
    refuse_oversize(total(counts))
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(np.maximum(counts, 0), out=offsets[1:])
    return offsets


def total(sizes: Positions) -> int:
    """Return the sum, without the −1 of nulls."""
    return int(np.sum(sizes, where=sizes > 0))


def bytes_column(data: Bytes, positions: Positions, sizes: Positions, arrow_type: pa.DataType) -> Column:
    """Return the byte strings, copied."""
    count = total(sizes)
    refuse_oversize(count)
    offsets = np.zeros(len(positions) + 1, dtype=np.int32)
    out = np.empty(count + values.SLACK, dtype=np.uint8)
    values.gather_bytes(data, positions, sizes, offsets, out)
    return Column(variable_array(arrow_type, positions, offsets, out))


def variable_array(arrow_type: pa.DataType, positions: Positions, offsets: npt.NDArray[np.int32], out: Bytes) -> Any:
    """Return an Arrow string or binary array over offsets and bytes."""
    bitmap, nulls = validity(positions)
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(arrow_type, len(positions), buffers, nulls)


def string_column(data: Bytes, positions: Positions, sizes: Positions, replace: bool) -> Column:
    """Return Flink's strings as UTF-8."""
    bound = total(sizes) * 3 // 2
    refuse_oversize(bound)
    offsets = np.zeros(len(positions) + 1, dtype=np.int32)
    out = np.empty(bound + values.SLACK, dtype=np.uint8)
    used, bad, reason, replaced = values.gather_strings(data, positions, sizes, replace, offsets, out)
    if bad >= 0:
        return Column(None, Problem(bad, reason))
    return Column(variable_array(pa.string(), positions, offsets, out[:used]), None, replaced)


def character_column(data: Bytes, positions: Positions, replace: bool) -> Column:
    """Return Java chars as strings of one character."""
    offsets = np.zeros(len(positions) + 1, dtype=np.int32)
    refuse_oversize(3 * len(positions))
    out = np.empty(3 * len(positions), dtype=np.uint8)
    used, bad, reason, replaced = decode_text.gather_characters(data, positions, replace, offsets, out)
    if bad >= 0:
        return Column(None, Problem(bad, reason))
    return Column(variable_array(pa.string(), positions, offsets, out[:used]), None, replaced)


LAYOUTS = {
    Kind.INSTANT: decode_text.INSTANT,
    Kind.DATE: decode_text.MILLIS,
    Kind.TIME: decode_text.MILLIS,
    Kind.TIMESTAMP: decode_text.TIMESTAMP,
    Kind.LOCALDATE: decode_text.LOCALDATE,
    Kind.LOCALTIME: decode_text.LOCALTIME,
    Kind.LOCALDATETIME: decode_text.LOCALDATETIME,
}


def time_column(data: Bytes, positions: Positions, layout: int) -> Column:
    """Return dates and times as text; their null is a value, so ``positions`` gets its −1 here."""
    bound = decode_text.MAX_TIME_TEXT * len(positions)
    refuse_oversize(bound)
    offsets = np.zeros(len(positions) + 1, dtype=np.int32)
    out = np.empty(bound, dtype=np.uint8)
    used, bad = decode_text.gather_times(data, positions, layout, offsets, out)
    if bad >= 0:
        return Column(None, Problem(bad, values.BAD_TIME))
    return Column(variable_array(pa.string(), positions, offsets, out[:used]))


def big_column(data: Bytes, positions: Positions, sizes: Positions, with_scale: bool) -> Column:
    """Return BigInteger or BigDecimal values as text."""
    bound = total(sizes) * 5 // 2 + decode_big.EXTRA_TEXT * len(positions)
    refuse_oversize(bound)
    offsets = np.zeros(len(positions) + 1, dtype=np.int32)
    out = np.empty(bound, dtype=np.uint8)
    used, bad = decode_big.gather_bigs(data, positions, sizes, with_scale, offsets, out)
    if bad >= 0:
        return Column(None, Problem(bad, values.TOO_LARGE))
    return Column(variable_array(pa.string(), positions, offsets, out[:used]))
