"""Values of sampled records for display: a wrong type shows as garbage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cdr_core.errors import CdrError
from cdr_core.evidence.sampling import ChannelSample
from cdr_core.flink.decode import BadValue, decode_values
from cdr_core.flink.decode.render import json_fields
from cdr_core.planning.exchange_binding import PlannedExchange

SHOWN_ROWS: Final = 3
DECODED_RECORDS: Final = 4096
"""Records of an exchange whose values are decoded."""
LONGEST_TEXT: Final = 40


@dataclass(frozen=True, slots=True)
class Sample:
    """Displayed values of an exchange's records: the first rows, and the smallest and largest value of each field.

    ``misfit`` explains why no record fits its type; empty where some do.
    """

    records: int = 0
    rows: tuple[Mapping[str, Any], ...] = ()
    ranges: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    misfit: str = ""


def show_values(exchange: PlannedExchange, samples: Sequence[ChannelSample]) -> Sample:
    """Return the first rows, and the range of each field that has one."""
    records = sum(len(sample.starts) for sample in samples)
    share = max(DECODED_RECORDS // max(len(samples), 1), SHOWN_ROWS)
    decoded, complaints = [], []
    for sample in samples:
        values, complaint = _decoded(exchange, sample, share)
        decoded += [values] if values is not None else []
        complaints += [complaint] if values is None and complaint else []
    if not decoded:
        return Sample(records, misfit=_misfit(exchange, complaints))
    values = pa.concat_arrays(decoded)
    rows = tuple(_shortened(row) for row in json_fields(values.slice(0, SHOWN_ROWS)) if row is not None)
    ranges = {
        f.name: found for i, f in enumerate(values.type) if (found := _range(f.name, values.field(i))) is not None
    }
    return Sample(records, rows, ranges)


def _misfit(exchange: PlannedExchange, complaints: Sequence[str]) -> str:
    """Return why the type is wrong: damage hits few channels, here the first two records of all of several
    do not fit.
    """
    if len(complaints) < 2:
        return ""
    return (
        f"not even the first records of its {len(complaints)} sampled channels fit {exchange.record}: {complaints[0]}"
    )


def _decoded(exchange: PlannedExchange, sample: ChannelSample, limit: int) -> tuple[Any, str]:
    """Return the values up to the first that does not fit, ``None`` if there are none; and what is wrong with that one.

    If only the very first does not fit, it is damaged, and the type is right.
    """
    complaint = ""
    for first in (0, 1):
        starts, ends = sample.starts[first:limit], sample.ends[first:limit]
        while len(starts):
            try:
                found = decode_values(exchange.description, sample.data, starts, ends, replace_invalid_text=True)
                return found.values, complaint
            except BadValue as error:
                complaint = complaint or error.complaint
                starts, ends = starts[: error.record], ends[: error.record]
            except CdrError as error:
                return None, error.what
    return None, complaint


def _range(name: str, column: Any) -> tuple[Any, Any] | None:
    if pa.types.is_nested(column.type):
        return None
    found = pc.min_max(column)
    ends = pa.StructArray.from_arrays(
        [pa.array([found["min"].as_py(), found["max"].as_py()], column.type)], names=[name]
    )
    low, high = (_short(row[name]) for row in json_fields(ends) if row is not None)
    return low, high


def _shortened(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _short(value) for name, value in row.items()}


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else value[: LONGEST_TEXT - 1] + "…"
    if isinstance(value, dict):
        return _shortened(value)
    return [_short(each) for each in value[:SHOWN_ROWS]] if isinstance(value, list) else value
