"""Segments to chunks of channel state: every element, a segment at a time, on the side where it belongs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from cdr_core.audit.ledger import Tally
from cdr_core.drain.rows import elements_of, tally_of
from cdr_core.flink.channel_state import ChannelId
from cdr_core.flink.metadata import Side
from cdr_core.kernels import frames
from cdr_core.rescale.other_elements import Last
from cdr_core.rescale.plan import Plan
from cdr_core.rescale.scanning import said
from cdr_core.rescale.sides import Border
from cdr_core.spill.reader import SegmentBody


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Whole elements of one virtual channel for one new channel; ``operator`` is whose state it is, by id."""

    virtual_channel: int
    operator: str
    side: Side
    channel: ChannelId
    data: memoryview
    records: int


class ChunkBuilder:
    """Turns the segments of one new subtask into chunks, and tallies what it saw.

    ``borders`` by virtual channel; without them everything becomes input state. ``tallies`` and ``said`` are those of
    whoever began with the subtask and did not finish it.
    """

    def __init__(
        self,
        plan: Plan,
        subtask: int,
        borders: Mapping[int, Border] | None,
        tallies: Mapping[int, Tally] | None = None,
        said: Mapping[tuple[int, int], Last] | None = None,
    ) -> None:
        self._plan, self._subtask, self._borders = plan, plan.subtasks[subtask], borders
        self._tallies: dict[int, Tally] = dict(tallies or {})
        self._said: dict[tuple[int, int], Last] = dict(said or {})

    @property
    def said(self) -> dict[tuple[int, int], Last]:
        """By (gate, new channel), what it said last; one that said nothing yet is not in it."""
        return dict(self._said)

    @property
    def tallies(self) -> dict[int, Tally]:
        """What was built so far, by virtual channel number."""
        return dict(self._tallies)

    def build(self, body: SegmentBody) -> Iterator[Chunk]:
        """One chunk, or two where a segment reaches from input into output state."""
        number = body.segment.virtual_channel
        elements = elements_of(self._plan, body)
        records = elements.tags <= frames.TAG_RECORD
        self._tallies[number] = self._tallies.get(number, Tally()).then(tally_of(elements))
        if not records.all():
            place = (body.segment.gate, body.segment.channel)
            self._said[place] = said(elements, self._said.get(place, Last()))
        inputs = len(records) if self._borders is None else self._borders[number].input_elements(body.positions)
        border = int(elements.ends[inputs - 1]) if inputs else 0
        data = np.ascontiguousarray(body.body).data
        if inputs:
            yield self._chunk(number, Side.INPUT, data[:border], int(np.count_nonzero(records[:inputs])))
        if inputs < len(records):
            yield self._chunk(number, Side.OUTPUT, data[border:], int(np.count_nonzero(records[inputs:])))

    def _chunk(self, number: int, side: Side, data: memoryview, records: int) -> Chunk:
        channel = place_of(self._plan, number, self._subtask.index, side)
        return Chunk(number, *channel, data, records)


def place_of(plan: Plan, number: int, new_down: int, side: Side) -> tuple[str, Side, ChannelId]:
    """Whose state the elements of a virtual channel are on their way to a new subtask: operator, side and channel."""
    channel = plan.channels[number]
    exchange = plan.exchanges[channel.exchange]
    if side is Side.INPUT:
        return exchange.downstream, side, exchange.input_at(channel.new_up, new_down)
    return exchange.upstream, side, exchange.output_at(channel.new_up, new_down)
