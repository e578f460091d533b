"""The owner function of a custom exchange: the user's own code, named in the job spec as ``module:function``.

It takes over the part of the job's custom partitioner, for many records at a time::

    def owner(values: pa.StructArray, parallelism: int, max_parallelism: int) -> pa.Array | np.ndarray

``values`` has a field per field of the record (``f0`` alone where the record is no structure). The answer is one
integer a record, from 0 to ``parallelism - 1``. The module has to be installed, or on PYTHONPATH, where the plan is
made and on every executor; nothing here changes the path.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.errors import NOWHERE, SpecRefused, Where

OwnerFunction = Callable[[Any, int, int], Any]

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_function_name(text: str) -> bool:
    """Return whether the text has the form ``module:function``; both may have dots."""
    return _NAME.fullmatch(text) is not None


def load_owner(exchange: str, name: str, where: Where = NOWHERE) -> OwnerFunction:
    """Return the function, or a refusal that names the exchange, the function and the reason."""
    try:
        return _load(name)
    # The user's module may raise anything while it is imported, and may even try to end the process.
    except (Exception, SystemExit) as error:
        raise SpecRefused(
            f"exchange {exchange}: owner function {name} cannot be loaded: {_reason(error)}",
            where=where,
            hint="its module must be installed, or on PYTHONPATH, here and on every Spark executor",
        ) from error


def call_owner(
    exchange: str, name: str, values: pa.Array, parallelism: int, max_parallelism: int, where: Where
) -> npt.NDArray[np.int64]:
    """Return the owners of the values, checked; every fault of the function is a refusal that names the channel."""
    function = load_owner(exchange, name, where)
    try:
        answer = function(values, parallelism, max_parallelism)
    except (Exception, SystemExit) as error:
        raise _wrong(exchange, name, f"failed with {_reason(error)}", where) from error
    owners = _as_integers(answer)
    if isinstance(owners, str):
        raise _wrong(exchange, name, owners, where)
    if owners.shape != (len(values),):
        raise _wrong(exchange, name, f"gave {_shape(owners)} owners for {len(values)} records", where)
    outside = np.flatnonzero((owners < 0) | (owners >= parallelism))
    if outside.size:
        record = int(outside[0])
        what = f"gave owner {owners[record]} for record {record} of its batch, not one from 0 to {parallelism - 1}"
        raise _wrong(exchange, name, what, where)
    return owners.astype(np.int64)


def _as_integers(answer: Any) -> npt.NDArray[Any] | str:
    """Return the answer as a numpy array of integers, or what is wrong with it."""
    if isinstance(answer, pa.ChunkedArray):
        answer = answer.combine_chunks()
    if isinstance(answer, pa.Array):
        if not pa.types.is_integer(answer.type):
            return f"gave an Arrow array of {answer.type}, not of integers"
        if answer.null_count:
            record = int(np.argmax(answer.is_null().to_numpy(zero_copy_only=False)))
            return f"gave no owner (null) for record {record} of its batch"
        return np.asarray(answer.to_numpy(zero_copy_only=False))
    if not isinstance(answer, np.ndarray):
        return f"gave {type(answer).__name__}, not an integer Arrow or numpy array"
    if not np.issubdtype(answer.dtype, np.integer):
        return f"gave a numpy array of {answer.dtype}, not of integers"
    masked = np.ma.getmaskarray(answer)  # a mask is numpy's null, and the masked value is undefined
    if masked.any():
        return f"gave no owner (masked) for record {int(np.argmax(masked))} of its batch"
    return np.asarray(answer)


@lru_cache(maxsize=64)
def _load(name: str) -> OwnerFunction:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{path} is no function")
    function: OwnerFunction = found
    return function


def _shape(owners: npt.NDArray[Any]) -> str:
    return str(len(owners)) if owners.ndim == 1 else f"an array of shape {owners.shape} as"


def _reason(error: BaseException) -> str:
    """Return the error as one line: a user's message may have many."""
    lines = str(error).split("\n")
    return f"{type(error).__name__}: {lines[0]}" if lines[0] else type(error).__name__


def _wrong(exchange: str, name: str, what: str, where: Where) -> SpecRefused:
    return SpecRefused(
        f"exchange {exchange}: owner function {name} {what}", where=where, hint="correct the function and start again"
    )
