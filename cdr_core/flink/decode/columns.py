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
from cdr_core.kernels import values

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
    """An Arrow array; or where its first impossible value is; and how many halves of surrogate pairs were replaced."""

    array: Any
    problem: Problem | None = None
    replaced: int = 0


def validity(positions: Positions) -> tuple[Any, int]:
    """Arrow's bitmap and the number of nulls; no bitmap where there are none."""
    valid = positions >= 0
    nulls = len(valid) - int(np.count_nonzero(valid))
    return (pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None), nulls


def fixed_column(arrow_type: pa.DataType, positions: Positions, words: npt.NDArray[Any]) -> Column:
    """Words that a kernel has gathered, seen as the type."""
    bitmap, nulls = validity(positions)
    return Column(pa.Array.from_buffers(arrow_type, len(positions), [bitmap, pa.py_buffer(words)], nulls))


def _gathered(
    arrow_type: pa.DataType, word: npt.DTypeLike, kernel: Callable[..., None]
) -> Callable[[Bytes, Positions], Column]:
    def convert(data: Bytes, positions: Positions) -> Column:
        words = np.empty(len(positions), dtype=word)
        kernel(data, positions, words)
        return fixed_column(arrow_type, positions, words)

    return convert


def boolean_column(data: Bytes, positions: Positions) -> Column:
    """Bytes of 0 and 1 as bits."""
    bits = np.zeros((len(positions) + 7) // 8, dtype=np.uint8)
    bad = values.gather_bits(data, positions, bits)
    column = fixed_column(pa.bool_(), positions, bits)
    return column if bad < 0 else Column(None, Problem(bad, values.BAD_BOOLEAN))


FIXED: dict[Kind, Callable[[Bytes, Positions], Column]] = {
    Kind.BOOLEAN: boolean_column,
    Kind.BYTE: _gathered(pa.int8(), np.uint8, values.gather_8),
    Kind.SHORT: _gathered(pa.int16(), np.uint16, values.gather_be16),
    Kind.INT: _gathered(pa.int32(), np.uint32, values.gather_be32),
    Kind.LONG: _gathered(pa.int64(), np.uint64, values.gather_be64),
    Kind.FLOAT: _gathered(pa.float32(), np.uint32, values.gather_be32),
    Kind.DOUBLE: _gathered(pa.float64(), np.uint64, values.gather_be64),
}


def refuse_oversize(count: int) -> None:
    """More than Arrow's offsets can count is the caller's batch, not the data's fault."""
    if count > MAX_COLUMN_BYTES:
        raise Refused(f"one column of the batch takes {count} bytes", hint="decode fewer records at a time")


def _total(sizes: Positions) -> int:
    return int(np.sum(sizes, where=sizes > 0))


def bytes_column(data: Bytes, positions: Positions, sizes: Positions, arrow_type: pa.DataType) -> Column:
    """Byte strings, copied."""
    total = _total(sizes)
    refuse_oversize(total)
    offsets = np.zeros(len(positions) + 1, dtype=np.int32)
    out = np.empty(total + values.SLACK, dtype=np.uint8)
    values.gather_bytes(data, positions, sizes, offsets, out)
    return Column(variable_array(arrow_type, positions, offsets, out))


def variable_array(arrow_type: pa.DataType, positions: Positions, offsets: npt.NDArray[np.int32], out: Bytes) -> Any:
    """An Arrow string or binary array over offsets and bytes."""
    bitmap, nulls = validity(positions)
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(arrow_type, len(positions), buffers, nulls)


def string_column(data: Bytes, positions: Positions, sizes: Positions, replace: bool) -> Column:
    """Flink's strings as UTF-8."""
    bound = _total(sizes) * 3 // 2
    refuse_oversize(bound)
    offsets = np.zeros(len(positions) + 1, dtype=np.int32)
    out = np.empty(bound + values.SLACK, dtype=np.uint8)
    used, bad, reason, replaced = values.gather_strings(data, positions, sizes, replace, offsets, out)
    if bad >= 0:
        return Column(None, Problem(bad, reason))
    return Column(variable_array(pa.string(), positions, offsets, out[:used]), None, replaced)
