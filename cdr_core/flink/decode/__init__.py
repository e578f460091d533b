"""Values of records to Arrow columns, by compiled kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.flink.decode.batch import Assembly, walk
from cdr_core.flink.decode.failure import BadValue
from cdr_core.flink.decode.program import Part, compile_program
from cdr_core.flink.types import RowData, Struct, TypeDescription

__all__ = ["ROW_KINDS", "BadValue", "Decoded", "decode_values"]

ROW_KINDS = ("+I", "-U", "+U", "-D")
"""A row's kind by its code."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """``values``: a struct array of the description's ``arrow_type``, an entry a record.

    ``row_kind``: a string array of as many entries, each of ROW_KINDS or, where the type has no kinds, null.
    ``replaced``: how many halves of surrogate pairs became U+FFFD; never more than 0 unless replacement was asked for.
    """

    values: Any
    row_kind: Any
    replaced: int


def decode_values(
    description: TypeDescription,
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    *,
    replace_lone_surrogates: bool = False,
) -> Decoded:
    """Decode the values ``data[starts[i]:ends[i]]`` (what follows an element's tag and timestamp).

    Raises BadValue, a CorruptChannelState, for the first record whose bytes are not exactly one value: its index is
    ``record``. Never reads outside a record. Half of a surrogate pair, which Java allows and UTF-8 does not, is such a
    fault too, unless it is to be replaced by U+FFFD, which is counted.
    """
    program = compile_program(description)
    walked = walk(program, data, starts, ends)
    if walked.failure is not None:
        # An earlier record may have a value that the walker does not judge: the first bad one is reported.
        before = walked.failure.record
        decode_values(
            description, data, starts[:before], ends[:before], replace_lone_surrogates=replace_lone_surrogates
        )
        raise walked.failure
    assembly = Assembly(data, walked.slots, replace_lone_surrogates)
    array = assembly.build(program.root)
    if assembly.failure is not None:
        raise assembly.failure
    if not isinstance(program.root.description, Struct | RowData):
        array = pa.StructArray.from_arrays([array], fields=list(description.arrow_type))
    return Decoded(array, _row_kinds(program.root, len(starts)), assembly.replaced)


def _row_kinds(root: Part, count: int) -> Any:
    return pa.nulls(count, pa.string())
