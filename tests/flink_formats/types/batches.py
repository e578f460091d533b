"""Batches of values as the kernels take them: one array of bytes, and where each value begins and ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.flink.decode import Decoded, decode_values
from cdr_core.flink.keys import key_groups
from cdr_core.flink.types import parse_type

Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]


def batch(values: Sequence[bytes], gap: bytes = b"\xa5\x5a\xff") -> Batch:
    """The values with something foreign before, between and behind them."""
    data, starts, ends = bytearray(gap), [], []
    for value in values:
        starts.append(len(data))
        data += value
        ends.append(len(data))
        data += gap
    return np.frombuffer(bytes(data), np.uint8), np.array(starts, np.int64), np.array(ends, np.int64)


def decode(text: str, *values: bytes, replace: bool = False) -> Decoded:
    """Decode values of the type, and have Arrow check every byte of the result."""
    decoded = decode_values(parse_type(text), *batch(values), replace_invalid_text=replace)
    decoded.values.validate(full=True)
    assert decoded.values.type == parse_type(text).arrow_type
    assert len(decoded.values) == len(decoded.row_kind) == len(values)
    return decoded


def fields(text: str, *values: bytes) -> list[Any]:
    """The decoded records as Python values."""
    result: list[Any] = decode(text, *values).values.to_pylist()
    return result


def groups(text: str, key: str, *values: bytes, max_parallelism: int = 128) -> list[int]:
    """Key groups by a comma-separated key."""
    found = key_groups(parse_type(text), key.split(","), *batch(values), max_parallelism)
    assert found.dtype == np.int32
    result: list[int] = found.tolist()
    return result


def same(one: Any, other: Any) -> bool:
    """Equal, with NaN equal to NaN and 0.0 different from −0.0."""
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
