"""Decoded records as JSON can hold them: nothing rounded, nothing that a JSON reader refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from cdr_core.kernels import decode_text, rowdata_values

_EPOCH_DAY_SECONDS = 86_400


def json_fields(values: pa.StructArray) -> list[dict[str, Any] | None]:
    """Return one object a record, None for a null one.

    Bytes are hex; decimals, dates and timestamps are text; a map is a list of key and value; numbers that JSON has not
    are "NaN", "Infinity" and "-Infinity".
    """
    return _render(values)


def _render(array: Any) -> list[Any]:
    type_ = array.type
    if pa.types.is_struct(type_):
        return _structs(array)
    if pa.types.is_map(type_):
        entries = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
        return _lists(array, _render(entries))
    if pa.types.is_list(type_):
        return _lists(array, _render(array.values))
    if pa.types.is_timestamp(type_) or pa.types.is_date32(type_):
        return _moments(array)
    if pa.types.is_floating(type_):
        return [number if number is None or math.isfinite(number) else _name(number) for number in array.to_pylist()]
    if pa.types.is_binary(type_):
        return [None if value is None else value.hex() for value in array.to_pylist()]
    if pa.types.is_decimal(type_):
        return [None if value is None else format(value, "f") for value in array.to_pylist()]
    result: list[Any] = array.to_pylist()
    return result


def _name(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _structs(array: Any) -> list[Any]:
    names = [field.name for field in array.type]
    columns = [_render(array.field(i)) for i in range(len(names))]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def _lists(array: Any, entries: list[Any]) -> list[Any]:
    offsets = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [entries[offsets[i] : offsets[i + 1]] if valid[i] else None for i in range(len(array))]


def _moments(array: Any) -> list[Any]:
    """Return moments as text, by the kernels: Python's dates end at the year 9999."""
    count = len(array)
    filled = array.fill_null(0) if array.null_count else array
    is_date = pa.types.is_date32(array.type)
    numbers = filled.cast(pa.int32() if is_date else pa.int64()).to_numpy(zero_copy_only=False).astype(np.int64)
    millis, nanos = np.divmod(numbers, 1000)
    if is_date:
        millis, nanos = numbers * _EPOCH_DAY_SECONDS * 1000, np.zeros_like(numbers)
    cells = np.where(array.is_valid().to_numpy(zero_copy_only=False), 0, -1)
    offsets, out = np.zeros(count + 1, np.int32), np.empty(decode_text.MAX_TIME_TEXT * count, np.uint8)
    zone = not is_date and array.type.tz is not None
    used, _ = rowdata_values.gather_moments(cells, millis, nanos * 1000, zone, offsets, out)
    text = out[:used].tobytes().decode()
    texts = [text[offsets[i] : offsets[i + 1]] if cells[i] >= 0 else None for i in range(count)]
    return [value.partition("T")[0] if is_date and value else value for value in texts]
