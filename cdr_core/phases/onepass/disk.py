"""The disk side of one pass: parcels in, segments out in the same order, while the set is still being written."""

from __future__ import annotations

from collections.abc import Callable

from cdr_core.phases.onepass.parcels import Parcel
from cdr_core.rescale.plan import Plan
from cdr_core.spill.reader import read_positions, read_segment
from cdr_core.spill.segments import SpillSet
from cdr_core.spill.writer import SpillWriter


class DiskQueue:
    """A spill set that is read from its head while it grows at its end. Nothing is made before the first parcel."""

    def __init__(self, plan: Plan, subtask: int, open_writer: Callable[[], SpillWriter]) -> None:
        self._plan, self._subtask = plan, subtask
        self._open_writer = open_writer
        self._writer: SpillWriter | None = None
        self._next = self._records = 0
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Bytes that were appended and not taken."""
        return self._waiting

    @property
    def files(self) -> int:
        """Files of segments so far."""
        segments = self._writer.segments if self._writer is not None else ()
        return segments[-1].file + 1 if segments else 0

    def append(self, parcel: Parcel) -> None:
        """Behind everything that was appended before."""
        if self._writer is None:
            self._writer = self._open_writer()
        channel = self._plan.channels[parcel.number]
        gate = self._plan.exchanges[channel.exchange].gate
        room = self._writer.room((parcel.number, gate, channel.new_up), len(parcel.body))
        room[:] = parcel.body
        self._writer.added(len(parcel.body), parcel.positions)
        self._waiting += len(parcel.body)

    def take(self) -> Parcel:
        """The segment at the head, verified; what is still being filled is ended when nothing else is left."""
        assert self._writer is not None
        assert self._waiting, "who takes has seen that something waits"
        if self._next == len(self._writer.segments):
            self._writer.flush()
        segment = self._writer.segments[self._next]
        body = read_segment(self._writer.path_of(segment.file), segment, self._subtask)
        there = SpillSet(self._subtask, (), (), self._writer.positions, ())
        positions = read_positions(there, segment, self._records)
        self._next += 1
        self._records += segment.records
        self._waiting -= segment.length
        return Parcel(segment.virtual_channel, body, positions)

    def discard(self) -> None:
        """Everything was delivered: remove the files."""
        assert not self._waiting, "what waits on disk is not thrown away"
        if self._writer is not None:
            self._writer.discard()
