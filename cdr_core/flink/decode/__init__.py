"""Values of records to Arrow columns, by compiled kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.flink.decode.batch import Assembly, Walked, as_input, mask_kinds, walk
from cdr_core.flink.decode.columns import Bytes, Positions
from cdr_core.flink.decode.failure import BadValue
from cdr_core.flink.decode.parts import Part
from cdr_core.flink.decode.program import Program, compile_program
from cdr_core.flink.types import RowData, Struct, StructKind, TypeDescription

__all__ = ["ROW_KINDS", "BadValue", "Decoded", "decode_values"]

ROW_KINDS = ("+I", "-U", "+U", "-D")
"""A row's kind by its code."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """``values``: a struct array of the description's ``arrow_type``, an entry a record.

    ``row_kind``: a string array of as many entries, each of ROW_KINDS or, where the type has no kinds, null.
    ``replaced``: how many times something that is no text became U+FFFD; always 0 unless replacement was asked for.
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
    replace_invalid_text: bool = False,
) -> Decoded:
    """Decode the values ``data[starts[i]:ends[i]]`` (what follows an element's tag and timestamp).

    Raises BadValue, a CorruptChannelState, for the first record whose bytes are not exactly one value: its index is
    ``record``. Never reads outside a record. Text that UTF-8 cannot hold (half of a surrogate pair, which Java allows;
    bytes of a SQL string that are no text) is such a fault too, unless it is to be replaced by U+FFFD and counted.
    """
    program = compile_program(description)
    data, starts, ends = as_input(data, starts, ends)
    failure: BadValue | None = None
    while True:
        outcome = _decode(program, description, data, starts, ends, replace_invalid_text)
        if isinstance(outcome, Decoded):
            if failure is not None:
                raise failure
            return outcome
        # A fault may hide others: the first bad record is known when everything before it decodes.
        failure = outcome
        starts, ends = starts[: failure.record], ends[: failure.record]


def _decode(
    program: Program, description: TypeDescription, data: Bytes, starts: Positions, ends: Positions, replace: bool
) -> Decoded | BadValue:
    walked = walk(program, data, starts, ends)
    if walked.failure is not None:
        return walked.failure
    assembly = Assembly(data, walked.slots, len(starts), replace)
    array = assembly.build(program.root)
    if assembly.rows.faults.first is not None:
        return assembly.rows.faults.first
    if not isinstance(program.root.description, Struct | RowData):
        array = pa.StructArray.from_arrays([array], fields=list(description.arrow_type))
    return Decoded(array, _row_kinds(program.root, data, walked, len(starts)), assembly.rows.replaced)


def _row_kinds(root: Part, data: Bytes, walked: Walked, count: int) -> Any:
    """Return the row kinds: the first bits of a ROW's mask (low bit first), or the first byte of a binary row."""
    is_row = isinstance(root.description, Struct) and root.description.kind is StructKind.ROW
    if not is_row and not isinstance(root.description, RowData):
        return pa.nulls(count, pa.string())
    positions = walked.slots[root.slot]
    codes = mask_kinds(data, positions) if is_row else data[np.maximum(positions, 0)]
    return pa.array(ROW_KINDS).take(pa.array(codes, mask=positions < 0))
