"""Cuts of version 1, converted to the present form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from cdr_core.commit.committable import PreparedFile
from cdr_core.drain.drain_unit import DrainResult
from cdr_core.drain.snapshots import Cut
from cdr_core.drain.watermark_state import UNKNOWN, ChannelWatermarks, InputWatermark
from cdr_core.errors import CdrError, Refused
from cdr_core.runtime.earlier_versions import ledger_of_entries, lines_of_segments
from cdr_core.spill.earlier_formats import EarlierSet
from cdr_core.storage import storage_for

if TYPE_CHECKING:
    from cdr_core.planning.plan import Plan

Longs = npt.NDArray[np.int64]


def cut_of_version_1(plan: Plan, subtask: int, position: str, body: Mapping[str, Any]) -> Cut:
    """A cut, with the files that were prepared for it alone; one whose spill set is gone cannot be understood any
    more.
    """
    columns = None
    if body["remaining"] is None or not body["remaining"].get("whole"):
        lines, delivered = _delivered(plan, subtask, body)
        ledger = ledger_of_entries(plan, body["ledger"])
        watermarks = ChannelWatermarks(plan, np.zeros(0, np.int64))
        watermarks.put(body.get("said", {"channels": ()})["channels"], subtask)
        found = {"delivered_lines": lines, "delivered": delivered}
        columns = {**found, **ledger.to_columns(), **watermarks.to_columns()}
    files = msgspec.convert(body["files"], tuple[PreparedFile, ...])
    watermark = msgspec.convert(body["said"], InputWatermark) if "said" in body else UNKNOWN
    return Cut(position, body["manifest"], files, watermark, columns)


def finished_cut_of_version_1(plan: Plan, result: DrainResult) -> Cut:
    """The cut of a subtask that an earlier version drained to the end, without its files: rows have those."""
    ledger = ledger_of_entries(plan, result.ledger)
    return Cut("finished", result.manifest, (), result.said, ledger.to_columns(), final=True)


def _delivered(plan: Plan, subtask: int, body: Mapping[str, Any]) -> tuple[Longs, Longs]:
    """Lines of which elements had been delivered, ascending, and how many of each."""
    try:
        spill_set = EarlierSet.from_json(json.loads(storage_for(body["manifest"]).read(body["manifest"])))
    except CdrError as error:
        raise Refused(
            f"a recovery checkpoint of an earlier version refers to a spill set that is gone ({error.what})",
            hint="finish the recovery with that version, or start over: run the same command with --replace",
        ) from error
    of_segment = spill_set.delivered_at(body["remaining"], body["frames_done"])
    begun = np.flatnonzero(of_segment)
    lines, place = np.unique(lines_of_segments(plan, subtask, spill_set)[begun], return_inverse=True)
    delivered = np.zeros(len(lines), np.int64)
    np.add.at(delivered, place, of_segment[begun])
    return lines, delivered
