"""Which key group a record belongs to, and which subtask owns a key group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.errors import SpecRefused
from cdr_core.flink.decode.batch import walk
from cdr_core.flink.decode.failure import bad_value
from cdr_core.flink.decode.program import compile_program
from cdr_core.flink.types import Kind, Scalar, Struct, TypeDescription
from cdr_core.kernels import hashes, values

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]

_FIXED: dict[Kind, Callable[[Bytes, Positions, Hashes], Any]] = {
    Kind.BOOLEAN: hashes.hash_booleans,
    Kind.BYTE: hashes.hash_8,
    Kind.SHORT: hashes.hash_16,
    Kind.CHAR: hashes.hash_characters,
    Kind.INT: hashes.hash_32,
    Kind.LONG: hashes.hash_64,
    Kind.FLOAT: hashes.hash_floats,
    Kind.DOUBLE: hashes.hash_doubles,
}


def owner(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns the key group."""
    return key_group * parallelism // max_parallelism


def key_group_range(index: int, parallelism: int, max_parallelism: int) -> tuple[int, int]:
    """First and last key group of a subtask, both inclusive; last < first when it owns none."""
    first = (index * max_parallelism + parallelism - 1) // parallelism
    return first, ((index + 1) * max_parallelism - 1) // parallelism


def key_groups(
    description: TypeDescription,
    key: Sequence[str],
    data: Bytes,
    starts: Positions,
    ends: Positions,
    max_parallelism: int,
) -> npt.NDArray[np.int32]:
    """The key group of each record ``data[starts[i]:ends[i]]``."""
    if not key:
        raise SpecRefused("the exchange has no key", hint="name the key fields in the job spec")
    program = compile_program(description, frozenset(key))
    walked = walk(program, data, starts, ends)
    if walked.failure is not None:
        raise walked.failure
    total = np.zeros(len(starts), dtype=np.uint32)
    parts = {part.path: part for part in _leaves(program.root)}
    for number, name in enumerate(key):
        if name not in parts or parts[name].slot < 0:
            raise SpecRefused(f"the record has no field {name!r} that can be a key")
        part = parts[name]
        assert isinstance(part.description, Scalar)
        kind = part.description.kind
        codes = np.empty(len(starts), dtype=np.uint32)
        if kind in _FIXED:
            _FIXED[kind](data, walked.slots[part.slot], codes)
        elif kind is Kind.STRING:
            bad = hashes.hash_strings(data, walked.slots[part.slot], walked.slots[part.slot + 1], codes)
            if bad >= 0:
                raise bad_value(values.BAD_CHARACTER, bad, int(walked.slots[part.slot][bad]), name)
        else:
            raise SpecRefused(f"field {name!r} of type {kind} cannot be a key")
        total = total * np.uint32(31) + codes if number else codes
    groups = np.empty(len(starts), dtype=np.int32)
    hashes.to_key_groups(total, max_parallelism, groups)
    return groups


def _leaves(part: Any) -> list[Any]:
    if isinstance(part.description, Struct):
        return [leaf for child in part.children for leaf in _leaves(child)]
    return [part]
