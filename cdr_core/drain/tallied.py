"""Segments taken as bytes: framed and tallied like any others, and let go."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cdr_core.audit.ledger import Tally
from cdr_core.drain.rows import unlike_sealed
from cdr_core.kernels import fingerprint, frames, tallying
from cdr_core.rescale.other_elements import Last
from cdr_core.rescale.plan import Plan
from cdr_core.rescale.scanning import said_in
from cdr_core.spill.reader import SegmentBody


class Tallier:
    """Tallies the segments of one new subtask; no value is decoded, and nobody asks for the records' places.

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
        count, size = body.segment.records, len(body.body)
        sums, kinds = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64), np.zeros(frames.TAGS, np.int64)
        found, used, watermark, status = tallying.tally_frames(body.body, size, count, sums, kinds)
        if (found, used) != (count, size):
            raise unlike_sealed(self._plan, body)
        tally = Tally.of_fold(sums[0])
        number, place = body.segment.virtual_channel, (body.segment.gate, body.segment.channel)
        self.tallies[number] = self.tallies.get(number, Tally()).then(tally)
        if tally.records < count:
            self.said[place] = said_in(body.body, watermark, status, self.said.get(place, Last()))
        return tally.records
