"""Spill sets of format 2, as sets of the present format: a segment is one piece, and has a header in its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import Ledger
from cdr_core.errors import Corrupt, SpillLost, Where
from cdr_core.spill import segments
from cdr_core.spill.sets import SpillSet
from cdr_core.storage import storage_for

Longs = npt.NDArray[np.int64]


def set_of_version_2(
    value: Mapping[str, Any],
    line_of: Callable[[Longs], Longs],
    ledger_of: Callable[[tuple[Mapping[str, Any], ...]], Ledger],
) -> SpillSet:
    """From a manifest; ``line_of`` tells the lines of virtual channels, ``ledger_of`` reads its ledger.

    Positions that were changed are :class:`SpillLost`, as bytes are.
    """
    old = segments.SpillSet.from_json(value)
    rows = np.array(
        [(s.file, s.offset, s.length, s.crc32c, s.records, s.virtual_channel) for s in old.segments], np.int64
    ).reshape(-1, 6)
    file, offset, length, crc32c, records, channel = rows.T
    count = len(rows)
    columns = {
        "file": file,
        "offset": offset + segments.HEADER.size,
        "length": length,
        "crc32c": crc32c,
        "piece_first": np.arange(count + 1),
        "line": line_of(channel),
        "piece_length": length,
        "piece_elements": records,
        "run_first": np.append(0, np.cumsum(records)),
    }
    runs = _positions(old), np.ones(int(records.sum()), np.int64)
    return SpillSet(old.subtask, old.files, columns, ledger_of(old.ledger), runs)


def _positions(old: segments.SpillSet) -> Longs:
    where = Where(subtask=old.subtask)
    if old.positions is None:
        return np.zeros(0, np.int64)
    data = storage_for(old.positions).read(old.positions)
    at = 0
    for segment in old.segments:
        upto = at + segment.records * segments.POSITION_BYTES
        if segment.positions_crc32c not in (None, google_crc32c.value(data[at:upto])):
            raise SpillLost(f"spill file {old.positions} is damaged", where=where)
        at = upto
    if at != len(data):
        raise Corrupt(f"spill file {old.positions} has {len(data)} bytes where {at} belong to records", where=where)
    return np.frombuffer(data, "<i8").astype(np.int64)
