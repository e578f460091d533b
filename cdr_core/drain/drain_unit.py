"""A unit of the drain and its result: what the driver hands to a task, and what the row of a drained subtask says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from cdr_core.commit.committable import PreparedFile
from cdr_core.drain.snapshots import CutEntry
from cdr_core.drain.watermark_state import UNKNOWN, InputWatermark
from cdr_core.metadata import Phase
from cdr_core.runtime.unit_results import PhaseResult
from cdr_core.runtime.units import SpillUnit, StoredColumns
from cdr_core.spill.router import Routing


class DrainUnit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A new subtask. ``manifest``: its spill set; ``spill``: what it takes to make that again. ``base``: where the
    drain goes on, ``None`` = at the start. ``sides``: where input state ends, for a target that has two sides.
    """

    subtask: int
    manifest: str
    spill: SpillUnit
    base: CutEntry | None = None
    sides: StoredColumns | None = None


class DrainResult(PhaseResult, frozen=True, omit_defaults=True, kw_only=True):
    """``snapshot`` is the final one, ``snapshot_number`` its place in the chain; ``said``: the watermark of the
    subtask's input. ``ledger``: of earlier versions, which had no snapshots.
    """

    PHASE: ClassVar[Phase] = Phase.DRAIN

    subtask: int
    manifest: str
    files: tuple[PreparedFile, ...]
    snapshot: CutEntry | None = None
    snapshot_number: int = 0
    resumed_from: str = ""
    records_here: int = 0
    said: InputWatermark = UNKNOWN
    routing: Routing | None = None
    ledger: tuple[Mapping[str, Any], ...] = ()
