"""Watermark and idleness of a subtask's input: the last watermark and status of every new channel.

A channel counts if the spill set holds anything of it. As a task's own input does it: the minimum over the active
channels, or over all where none is active; no watermark as long as one of them has none. A subtask without any data is
idle: it delays no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.channels.control_elements import IDLE
from cdr_core.drain.segment_elements import SegmentElements
from cdr_core.kernels import channel_batches
from cdr_core.planning.plan import Plan

Longs = npt.NDArray[np.int64]

UNKNOWN_STATUS = 1
"""Instead of a status: none was seen."""


@dataclass(frozen=True, slots=True)
class InputWatermark:
    """Of a whole subtask: its watermark in ms, ``None`` = not known everywhere yet; and whether it is idle."""

    watermark: int | None = None
    idle: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"watermark": self.watermark, "idle": self.idle}


UNKNOWN = InputWatermark()
"""Of a subtask that has not begun: every other one waits for its watermark."""


class ChannelWatermarks:
    """By new channel of a subtask: (exchange, new upstream subtask), in this order."""

    def __init__(self, plan: Plan, lines: Longs) -> None:
        """``lines`` are those that the spill set holds."""
        self._plan = plan
        self._first = np.cumsum([0, *(exchange.new_up for exchange in plan.exchanges)], dtype=np.int64)
        count = int(self._first[-1])
        self.watermark, self.has_watermark = np.zeros(count, np.int64), np.zeros(count, np.int8)
        self.status = np.full(count, UNKNOWN_STATUS, np.int64)
        self._counting = np.unique(self._places(lines))

    def _places(self, lines: Longs) -> Longs:
        channels = self._plan.channels.of_lines(lines)
        found: Longs = self._first[self._plan.channels.exchange[channels]] + self._plan.channels.new_up[channels]
        return found

    def take(self, elements: SegmentElements) -> None:
        """What the other elements among these say."""
        if elements.records.all():
            return
        places = self._places(elements.lines)
        has = np.zeros(len(places), np.int8)
        watermark, status = np.zeros(len(places), np.int64), np.full(len(places), UNKNOWN_STATUS)
        channel_batches.last_words(
            elements.data, elements.starts, elements.tags, elements.first, watermark, has, status
        )
        # Of one new channel the last piece counts: assignment keeps the order.
        told, spoke = np.flatnonzero(has), np.flatnonzero(status != UNKNOWN_STATUS)
        self.watermark[places[told]], self.has_watermark[places[told]] = watermark[told], 1
        self.status[places[spoke]] = status[spoke]

    def of_input(self) -> InputWatermark:
        """What they say together."""
        counting = self._counting
        active = counting[self.status[counting] != IDLE]
        asked = active if len(active) else counting
        known = len(asked) > 0 and self.has_watermark[asked].all()
        return InputWatermark(int(self.watermark[asked].min()) if known else None, len(active) == 0)

    def put(self, channels: Sequence[Sequence[Any]], subtask: int) -> None:
        """From a cut of an earlier version: gate, new channel, watermark and idleness of each."""
        operator = self._plan.subtasks[subtask].operator
        firsts = {e.gate: self._first[n] for n, e in enumerate(self._plan.exchanges) if e.downstream == operator}
        for gate, channel, watermark, idle in channels:
            place = int(firsts[gate]) + channel
            if watermark is not None:
                self.watermark[place], self.has_watermark[place] = watermark, 1
            if idle is not None:
                self.status[place] = IDLE if idle else 0

    def to_columns(self) -> dict[str, npt.NDArray[Any]]:
        return {"watermark": self.watermark, "has_watermark": self.has_watermark, "status": self.status}

    def restore(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from a cut."""
        self.watermark[:], self.has_watermark[:] = columns["watermark"], columns["has_watermark"]
        self.status[:] = columns["status"]
