"""Owner functions as a user would write them, and some as a user should not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

CALLS: list[tuple[Any, int, int]] = []


def by_key(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    """The key modulo the parallelism, as an Arrow array."""
    key = values.field("f0")
    quotient = pc.floor(pc.divide(pc.cast(key, pa.float64()), float(parallelism)))
    return pc.subtract(key, pc.multiply(pc.cast(quotient, pa.int64()), parallelism))


def by_key_numpy(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    """The same as a numpy array of another width."""
    return (values.field("f0").to_numpy() % parallelism).astype(np.uint16)


def noted(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    CALLS.append((values, parallelism, max_parallelism))
    return np.zeros(len(values), np.int64)


def chunked(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    return pa.chunked_array([by_key(values, parallelism, max_parallelism)])


def too_few(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    return np.zeros(len(values) - 1, np.int64)


def square(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    return np.zeros((len(values), 1), np.int64)


def too_large(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    return np.full(len(values), parallelism, np.uint64)


def negative(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    return pa.array([-1] * len(values))


def null(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    return pa.array([0] * (len(values) - 1) + [None], pa.int32())


def real(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    return np.zeros(len(values))


def truth(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    return pa.array([False] * len(values))


def a_list(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    return [0] * len(values)


def nothing(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    return None


def broken(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    raise LookupError("no such tenant\nand a second line")


def leaving(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    raise SystemExit(7)


NO_FUNCTION = 3


class Tenants:
    """A function may be a method."""

    owner = staticmethod(by_key)
