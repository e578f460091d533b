"""Segments taken as bytes: framed and tallied like any others, and let go."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cdr_core.audit.ledger import Tally
from cdr_core.drain.rows import elements_of
from cdr_core.kernels import fingerprint, frames
from cdr_core.rescale.other_elements import Last
from cdr_core.rescale.plan import Plan
from cdr_core.rescale.scanning import said_at
from cdr_core.spill.reader import SegmentBody


class Tallier:
    """Tallies the segments of one new subtask; no value is decoded.

    ``tallies`` and ``said`` are those of whoever began with the subtask and did not finish it.
    """

    def __init__(
        self,
        plan: Plan,
        tallies: Mapping[int, Tally] | None = None,
        said: Mapping[tuple[int, int], Last] | None = None,
    ) -> None:
        self._plan = plan
        self.tallies: dict[int, Tally] = dict(tallies or {})
        self.said: dict[tuple[int, int], Last] = dict(said or {})

    def take(self, body: SegmentBody) -> int:
        """Tally a segment; how many records it has."""
        elements = elements_of(self._plan, body)
        sums, kinds = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64), np.zeros(frames.TAGS, np.int64)
        spoke = fingerprint.fold_elements(elements.data, elements.starts, elements.ends, elements.tags, sums, kinds)
        tally = Tally.of_fold(sums[0])
        number, place = body.segment.virtual_channel, (body.segment.gate, body.segment.channel)
        self.tallies[number] = self.tallies.get(number, Tally()).then(tally)
        if tally.records < len(elements.tags):
            self.said[place] = said_at(elements, *spoke, self.said.get(place, Last()))
        return tally.records
