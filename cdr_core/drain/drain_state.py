"""Where the drain of a subtask is: what was delivered, its ledger, and the watermarks of its input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import NOTHING, Ledger
from cdr_core.drain.line_tally import LineTally
from cdr_core.drain.segment_elements import SegmentElements, elements_of
from cdr_core.drain.watermark_state import ChannelWatermarks, InputWatermark
from cdr_core.errors import Corrupt
from cdr_core.planning.plan import Plan
from cdr_core.spill.set_reader import Segment
from cdr_core.spill.spill_set import SpillSet

Longs = npt.NDArray[np.int64]
Columns = Mapping[str, npt.NDArray[Any]]


class DrainState:
    """Of one subtask. ``before`` are the columns of the cut that a task goes on from.

    A cut says, for every line of the set, how many of its elements were delivered: that is true of the set however it
    is cut into segments, so a set that was made again fits every cut.
    """

    def __init__(self, plan: Plan, spill_set: SpillSet, before: Columns | None = None) -> None:
        self.plan, self._set = plan, spill_set
        self._lines = np.unique(spill_set.columns["line"])
        self._delivered = np.zeros(len(self._lines), np.int64)
        ledger = NOTHING
        self._watermarks = ChannelWatermarks(plan, self._lines)
        if before is not None:
            if not np.isin(before["delivered_lines"], self._lines).all():
                raise Corrupt(f"a cut counts records that the spill set of subtask {spill_set.subtask} does not hold")
            self._delivered[np.searchsorted(self._lines, before["delivered_lines"])] = before["delivered"]
            ledger = Ledger.from_columns(before)
            self._watermarks.restore(before)
        self.tally = LineTally(plan, self._lines, ledger)
        self._skips = _skips(spill_set, np.searchsorted(self._lines, spill_set.columns["line"]), self._delivered)

    def still_to_come(self) -> list[int]:
        """The numbers of the segments of which not everything was delivered before."""
        first, whole = self._set.columns["piece_first"], self._skips == self._set.columns["piece_elements"]
        return [number for number in range(self._set.segments) if not whole[first[number] : first[number + 1]].all()]

    def skip(self, number: int) -> Longs:
        """How many elements at the head of each piece of a segment were delivered before this task began."""
        return self._skips[self._set.pieces(number)]

    def taken(self, segment: Segment, skip: Longs | None) -> SegmentElements:
        """The elements of a segment that are still to be delivered, with their fingerprints; they count as delivered
        from now on.
        """
        if skip is None or not skip.any():
            elements = self.tally.take_segment(segment)
        else:
            elements = elements_of(self.plan, segment, skip)
            elements = replace(elements, fingerprints=self.tally.take(elements))
        self._count(segment, skip)
        self._watermarks.take(elements)
        return elements

    def taken_as_bytes(self, segment: Segment, skip: Longs | None) -> int:
        """As :meth:`taken`, where nothing but the tally is wanted; how many records."""
        if skip is not None and skip.any():
            return int(np.count_nonzero(self.taken(segment, skip).records))
        found = self.tally.take_bytes(segment)
        if found < int(segment.elements.sum()):
            self._watermarks.take(elements_of(self.plan, segment))
        self._count(segment, skip)
        return found

    def _count(self, segment: Segment, skip: Longs | None) -> None:
        rows = np.searchsorted(self._lines, segment.lines)
        np.add.at(self._delivered, rows, segment.elements if skip is None else segment.elements - skip)

    @property
    def input_watermark(self) -> InputWatermark:
        return self._watermarks.of_input()

    def to_columns(self) -> dict[str, npt.NDArray[Any]]:
        """For a cut."""
        begun = self._delivered > 0
        return {
            "delivered_lines": self._lines[begun],
            "delivered": self._delivered[begun],
            **self.tally.ledger.to_columns(),
            **self._watermarks.to_columns(),
        }


def _skips(spill_set: SpillSet, rows: Longs, delivered: Longs) -> Longs:
    """For each piece of the set, which is of the line at ``rows``: how many of its elements were delivered."""
    elements = spill_set.columns["piece_elements"]
    order = np.argsort(rows, kind="stable")
    total = np.cumsum(elements[order]) - elements[order]
    starts = np.flatnonzero(np.append(True, np.diff(rows[order]) != 0)) if len(rows) else np.zeros(0, np.int64)
    before = np.empty(len(rows), np.int64)
    before[order] = total - np.repeat(total[starts], np.diff(np.append(starts, len(rows))))
    found: Longs = np.clip(delivered[rows] - before, 0, elements)
    return found
