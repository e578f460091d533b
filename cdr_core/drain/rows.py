"""Segments to the rows of a committed table: records only, a segment at a time, tallied on the way.

What the other elements said last of each channel's watermark is kept: it is the watermark of what was prepared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cdr_core.audit.ledger import Tally
from cdr_core.errors import CorruptChannelState, Where
from cdr_core.flink.decode import BadValue
from cdr_core.kernels import fingerprint, frames
from cdr_core.rescale.columns import CONTENT, PLACE, RAW, Elements, element_columns, to_batch, value_fields
from cdr_core.rescale.other_elements import Last, kinds
from cdr_core.rescale.plan import Plan
from cdr_core.rescale.scanning import element_place, said
from cdr_core.spill.reader import SegmentBody

NEW_PLACE = (
    pa.field("new_up", pa.int32(), nullable=False),
    pa.field("new_down", pa.int32(), nullable=False),
)
"""Where a record belongs at the new parallelism."""


def table_schema(plan: Plan, *, raw: bool = True) -> pa.Schema:
    """The columns of a committed table, those that hold the records' bytes among them or not."""
    content = CONTENT if raw else [field for field in CONTENT if field.name != RAW]
    return pa.schema([*PLACE, *NEW_PLACE, *content, *value_fields(plan)])


class RowBuilder:
    """Turns the segments of one new subtask into record batches of one schema, and tallies what it saw."""

    def __init__(
        self,
        plan: Plan,
        subtask: int,
        tallies: Mapping[int, Tally] | None = None,
        said: Mapping[tuple[int, int], Last] | None = None,
        *,
        raw: bool = True,
    ) -> None:
        """``tallies`` and ``said`` are those of whoever began with the subtask and did not finish it."""
        self._plan, self._subtask = plan, plan.subtasks[subtask]
        self.schema = table_schema(plan, raw=raw)
        # Whoever wants any column of the value gets all of them.
        self._wanted = frozenset({"row_kind", RAW} if raw else {"row_kind"})
        self._tallies: dict[int, Tally] = dict(tallies or {})
        self._left_out = np.zeros(frames.TAGS, np.int64)
        self._said: dict[tuple[int, int], Last] = dict(said or {})

    @property
    def said(self) -> dict[tuple[int, int], Last]:
        """By (gate, new channel), what it said last; one that said nothing yet is not in it."""
        return dict(self._said)

    @property
    def tallies(self) -> dict[int, Tally]:
        """What was built so far, by virtual channel number."""
        return dict(self._tallies)

    @property
    def left_out(self) -> dict[str, int]:
        """Elements by kind that this builder met and made no row of: a table holds records only."""
        return kinds(self._left_out.tolist())

    def build(self, body: SegmentBody) -> pa.RecordBatch:
        """The rows of a segment, in order; a record that does not decode is an error naming its channel."""
        number = body.segment.virtual_channel
        elements = self._records(elements_of(self._plan, body), (body.segment.gate, body.segment.channel))
        count = len(elements.starts)
        self._tallies[number] = self._tallies.get(number, Tally()).then(tally_of(elements))
        try:
            columns = element_columns(self._plan, number, elements, self._wanted)
        except BadValue as error:
            position = int(elements.positions[error.record])
            raise error.at(element_place(self._plan, number, position) or error.where, position) from None
        columns["new_up"] = pa.array(np.full(count, self._plan.channels[number].new_up, np.int32))
        columns["new_down"] = pa.array(np.full(count, self._subtask.index, np.int32))
        return to_batch(self.schema, columns, count)

    def _records(self, elements: Elements, channel: tuple[int, int]) -> Elements:
        """The records among the elements; the others are counted, and listened to."""
        records = elements.tags <= frames.TAG_RECORD
        if records.all():
            return elements
        self._left_out += np.bincount(elements.tags[~records], minlength=frames.TAGS)
        self._said[channel] = said(elements, self._said.get(channel, Last()))
        return replace(
            elements,
            starts=elements.starts[records],
            ends=elements.ends[records],
            tags=elements.tags[records],
            positions=elements.positions[records],
        )


def elements_of(plan: Plan, body: SegmentBody) -> Elements:
    """The elements of a segment, which holds exactly those that it was sealed with, or is damaged."""
    count, size = body.segment.records, len(body.body)
    starts, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    tags = np.empty(count, np.int8)
    found, used, outcome = frames.scan_frames(body.body, size, starts, ends, tags, size)
    if (found, used, outcome) != (count, size, frames.OK):
        raise unlike_sealed(plan, body)
    return Elements(body.body, starts, ends, tags, body.positions)


def unlike_sealed(plan: Plan, body: SegmentBody) -> CorruptChannelState:
    """The error for a segment with other elements than those that it was sealed with."""
    channel = plan.channels[body.segment.virtual_channel]
    exchange = plan.exchanges[channel.exchange]
    return CorruptChannelState(
        "a spill segment does not hold the elements it was sealed with",
        where=Where(exchange=exchange.name, subtask=channel.down, gate=exchange.gate, channel=channel.up),
    )


def tally_of(elements: Elements) -> Tally:
    """Of the records among the elements, in order."""
    sums, kinds = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64), np.zeros(frames.TAGS, np.int64)
    fingerprint.fold_elements(elements.data, elements.starts, elements.ends, elements.tags, sums, kinds)
    return Tally.of_fold(sums[0])
