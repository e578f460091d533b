"""Segments to chunks of channel state: every element, a segment at a time, on the side where it belongs."""

from __future__ import annotations

import numpy as np

from cdr_core.channels.state_border import Borders
from cdr_core.drain.segment_elements import SegmentElements
from cdr_core.flink.channel_writer import ChunkBatch
from cdr_core.kernels import frames
from cdr_core.planning.plan import Plan


class ChunkBuilder:
    """Turns segments into chunks: one of each piece, or two where it reaches from input into output state.

    Without ``borders`` everything becomes input state.
    """

    def __init__(self, plan: Plan, borders: Borders | None) -> None:
        self._plan, self._borders = plan, borders

    def build(self, elements: SegmentElements) -> ChunkBatch:
        piece, count = elements.piece, len(elements.starts)
        output = np.zeros(count, bool)
        if self._borders is not None:
            output = self._borders.is_output(elements.lines[piece], elements.positions)
        keys = 2 * piece + output
        assert (np.diff(keys) >= 0).all(), "input comes before output"
        begins = np.flatnonzero(np.append(True, np.diff(keys) > 0)) if count else np.zeros(0, np.int64)
        ends = np.append(begins[1:], count)
        return ChunkBatch(
            elements.data,
            elements.starts[begins] - frames.LENGTH_BYTES,
            elements.ends[ends - 1],
            self._plan.channels.of_lines(elements.lines[piece[begins]]),
            output[begins],
            int(np.count_nonzero(elements.records)),
        )
