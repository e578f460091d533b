"""The ledger of a subtask while it is drained: one row per line of its spill set."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import BYTES, RECORDS, Ledger
from cdr_core.drain.segment_elements import SegmentElements, unlike_sealed
from cdr_core.kernels import channel_batches, fingerprint, frames
from cdr_core.planning.plan import Plan
from cdr_core.spill.set_reader import Segment

Longs = npt.NDArray[np.int64]


class LineTally:
    """Adds up what was delivered, from its own bytes. ``before`` is what an earlier task delivered."""

    def __init__(self, plan: Plan, lines: Longs, before: Ledger) -> None:
        self._plan, self._lines = plan, lines
        self._sums = np.zeros((len(lines), fingerprint.FOLD_COLUMNS), np.uint64)
        self._sums[np.searchsorted(lines, before.lines)] = before.sums
        self._kinds = np.zeros((len(lines), frames.TAGS), np.int64)

    def take_segment(self, segment: Segment) -> SegmentElements:
        """Add a whole segment in one pass over its bytes; its elements, with their fingerprints."""
        count, pieces = int(segment.elements.sum()), len(segment.lines)
        starts, ends, tags = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int8)
        first, fingerprints = np.zeros(pieces + 1, np.int64), np.empty(fingerprint.FINGERPRINT_BYTES * count, np.uint8)
        rows = np.searchsorted(self._lines, segment.lines)
        columns = (starts, ends, tags, first, self._sums, self._kinds, fingerprints)
        bad = channel_batches.scan_lines(segment.body, segment.ends, rows, *columns)
        self._require_sealed(segment, bad, np.diff(first))
        return SegmentElements(segment.body, starts, ends, tags, segment.positions, segment.lines, first, fingerprints)

    def take(self, elements: SegmentElements) -> npt.NDArray[np.uint8]:
        """Add the records among the elements; their fingerprints, with 16 bytes for every element."""
        fingerprints = np.empty(fingerprint.FINGERPRINT_BYTES * len(elements.starts), np.uint8)
        rows = np.searchsorted(self._lines, elements.lines)
        channel_batches.fold_lines(
            elements.data,
            elements.starts,
            elements.ends,
            elements.tags,
            elements.first,
            rows,
            self._sums,
            self._kinds,
            fingerprints,
        )
        return fingerprints

    def take_bytes(self, segment: Segment) -> int:
        """Add a whole segment in one pass over its bytes; how many records it has."""
        rows, found = np.searchsorted(self._lines, segment.lines), np.zeros(len(segment.lines), np.int64)
        before = self.records
        begins = np.append(0, segment.ends[:-1])
        bad = channel_batches.tally_pieces(segment.body, begins, segment.ends, rows, self._sums, self._kinds, found)
        self._require_sealed(segment, bad, found)
        return self.records - before

    def _require_sealed(self, segment: Segment, bad: int, found: Longs) -> None:
        """Raise if a piece (``bad``) is not made of whole frames, or has not as many as it was sealed with."""
        wrong = np.flatnonzero(found != segment.elements) if bad < 0 else np.array([bad])
        if len(wrong):
            raise unlike_sealed(self._plan, int(segment.lines[wrong[0]]))

    @property
    def records(self) -> int:
        return int(self._sums[:, RECORDS].sum())

    @property
    def bytes(self) -> int:
        return int(self._sums[:, BYTES].sum())

    @property
    def ledger(self) -> Ledger:
        """Records only: what becomes of other elements is the output's own affair."""
        return Ledger.of(self._lines, self._sums.copy())
