"""Many virtual channels opened at once: the memory addresses of their bytes, as columns.

Files are mapped, remote stretches fetched, once per object; per channel there are only rows of arrays. A channel that
is damaged, or that the kernel doubts, is opened alone, which raises what is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.channels.channel_source import Stream, open_planned, place, stream_of
from cdr_core.channels.salvage import open_again
from cdr_core.errors import CdrError
from cdr_core.flink.channel_columns import ChannelColumns
from cdr_core.flink.channel_state import HEADER_SIZE, LENGTH_SIZE, STREAM_VERSION
from cdr_core.flink.checkpoint import InlineLocation
from cdr_core.flink.metadata import Side
from cdr_core.flink.partial_stream import Spans
from cdr_core.flink.virtual_channel import ChannelBytes
from cdr_core.kernels import channel_batches
from cdr_core.planning.exchange_binding import PlannedExchange
from cdr_core.planning.plan import Plan

ANY_SIZE, NO_SIZE = -1, -2
"""In place of an announced payload: any size is accepted; or only the reader of single channels can decide."""

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ChannelBatch:
    """Chunks ``first[c]`` to ``first[c + 1]`` are the bytes of channel ``numbers[c]``, in order; see `gather_runs` for
    ``logical``. ``memory`` keeps what the addresses point to.
    """

    numbers: Longs
    first: Longs
    address: Longs
    length: Longs
    sizes: Longs
    input_sizes: Longs
    memory: tuple[Any, ...] = field(repr=False)

    def pack(self, begin: int, end: int, target: Bytes) -> Bytes:
        """Return the bytes of channels ``begin`` to ``end``, one behind another, at the head of ``target``."""
        chunks = slice(int(self.first[begin]), int(self.first[end]))
        return target[: channel_batches.pack_chunks(self.address[chunks], self.length[chunks], target)]

    @property
    def logical(self) -> Longs:
        """Return where each chunk begins in its channel, and behind the chunks of each channel its size."""
        starts = np.append(0, np.cumsum(self.length))
        channel = np.repeat(np.arange(len(self.numbers)), np.diff(self.first))
        found = np.empty(len(self.length) + len(self.numbers), np.int64)
        found[np.arange(len(self.length)) + channel] = starts[:-1] - starts[self.first[channel]]
        found[self.first[1:] + np.arange(len(self.numbers))] = self.sizes
        return found


class BatchSource:
    """Opens channels of one plan. It keeps what it mapped until it is released."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._checkpoint = open_planned(plan.checkpoint, plan.metadata_sha256)
        self._memory: dict[tuple[str, Side, int], _StreamMemory] = {}

    def open(self, numbers: Longs, damaged: npt.NDArray[np.bool_] | None = None) -> ChannelBatch:
        """Return the channels with these numbers; ``damaged`` ones as `read` opened them."""
        known = np.zeros(len(numbers), bool) if damaged is None else damaged
        careful = known.copy()
        sides, kept = [], []
        for side in (Side.INPUT, Side.OUTPUT):
            found = _Located(numbers)
            for number in np.unique(self._plan.channels.exchange[numbers]).tolist():
                members = np.flatnonzero(self._plan.channels.exchange[numbers] == number)
                kept += self._locate(self._plan.exchanges[number], side, numbers[members], members, found)
            careful |= found.totals < 0
            sides.append(found)
        opened = {
            at: open_again(self._plan, int(numbers[at]), bool(known[at])) for at in np.flatnonzero(careful).tolist()
        }
        return self._joined(numbers, sides, opened, kept)

    def _joined(
        self, numbers: Longs, sides: list[_Located], opened: Mapping[int, ChannelBytes], kept: list[Any]
    ) -> ChannelBatch:
        counts = sides[0].counts + sides[1].counts
        for which, channel in opened.items():
            counts[which] = sum(len(part.chunk_lengths) for part in channel.parts)
        first = np.append(0, np.cumsum(counts))
        address, length = np.zeros(first[-1], np.int64), np.zeros(first[-1], np.int64)
        at = first[:-1].copy()
        at[list(opened)] = -1
        for side in sides:
            for rows, starts, addresses, lengths, members in side.pieces:
                places = at[members]
                channel_batches.place_side(rows, starts, addresses, lengths, places, address, length)
                at[members] = places
        sizes, inputs = sides[0].totals + sides[1].totals, sides[0].totals.copy()
        for which, channel in opened.items():
            _fill_alone(channel, address[first[which] :], length[first[which] :])
            sizes[which], inputs[which] = channel.size, channel.input_size
            kept.append(channel)
        return ChannelBatch(numbers, first, address, length, sizes, inputs, tuple(kept))

    def _locate(
        self, exchange: PlannedExchange, side: Side, numbers: Longs, members: Longs, found: _Located
    ) -> list[Any]:
        """Find the chunks of one side of channels of one exchange."""
        operator = exchange.end(side)[0]
        columns = self._checkpoint.columns(operator, side)
        rows = exchange.rows_of(columns, self._plan.channels.up[numbers], self._plan.channels.down[numbers])
        asked = rows[rows >= 0]
        counts = columns.first[asked + 1] - columns.first[asked]
        found.counts[members[rows >= 0]] += counts
        if not len(asked):
            return []
        streams = self._streams(columns, asked, int(numbers[0]))
        addresses, lengths = np.zeros(counts.sum(), np.int64), np.zeros(counts.sum(), np.int64)
        totals = np.zeros(len(rows), np.int64)
        channel_batches.locate_chunks(
            rows, columns.stream, columns.first, columns.offsets, *streams.arguments, addresses, lengths, totals
        )
        found.totals[members] = totals
        found.pieces.append((rows, columns.first, addresses, lengths, members))
        return [streams]

    def _streams(self, columns: ChannelColumns, rows: Longs, number: int) -> _Streams:
        """Return the streams that the rows need, in memory."""
        needed = np.unique(columns.stream[rows])
        opened: dict[int, _StreamMemory] = {}
        for stream in needed.tolist():
            key = (columns.operator, columns.side, stream)
            if key not in self._memory:
                members = rows[columns.stream[rows] == stream]
                memory = self._open_stream(columns, stream, members, number)
                if memory.whole:
                    self._memory[key] = memory
                opened[stream] = memory
            else:
                opened[stream] = self._memory[key]
        return _Streams(columns, rows, opened)

    def _open_stream(self, columns: ChannelColumns, stream: int, rows: Longs, number: int) -> _StreamMemory:
        """Return one stream; of a remote one the stretches that the rows lie in. A stream that cannot be read is left
        to the reader of single channels.
        """
        location = self._checkpoint.resolve(columns.streams[stream])
        offsets = np.concatenate([columns.offsets[columns.first[row] : columns.first[row + 1]] for row in rows])
        try:
            found = stream_of(self._plan, offsets, location, place(self._plan, number))
            return _StreamMemory.of(found, np.unique(offsets), inline=isinstance(location, InlineLocation))
        except CdrError:
            return _StreamMemory()


_kept: dict[tuple[str, str, int], BatchSource] = {}


def batch_source(plan: Plan, phase: str) -> BatchSource:
    """Return this process's source for a phase of a recovery: its mapped files serve all units of a task."""
    key = (plan.sha256, phase, os.getpid())
    if key not in _kept:
        let_go()
        _kept[key] = BatchSource(plan)
    return _kept[key]


def let_go() -> None:
    """Unmap the kept files: a deleted file occupies its disk space until no worker maps it."""
    _kept.clear()


def _fill_alone(channel: ChannelBytes, address: Longs, length: Longs) -> None:
    at = 0
    for part in channel.parts:
        count = len(part.chunk_lengths)
        address[at : at + count] = _address(part.source) + part.chunk_starts
        length[at : at + count] = part.chunk_lengths
        at += count


class _Located:
    """Chunks of one side of the wanted channels: how many each has, their bytes together, and the pieces found."""

    def __init__(self, numbers: Longs) -> None:
        self.counts, self.totals = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64)
        self.pieces: list[tuple[Longs, Longs, Longs, Longs, Longs]] = []


@dataclass(frozen=True, slots=True, eq=False)
class _StreamMemory:
    """The stretches of a stream's object that are in memory; ``size`` −1 = left to the reader of single channels.

    ``whole``: nothing more of it has to be fetched later.
    """

    base: int = 0
    size: int = -1
    starts: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    ends: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    addresses: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    memory: tuple[Any, ...] = ()
    whole: bool = False
    inline: bool = False
    expected: int | None = None

    @classmethod
    def of(cls, stream: Stream, offsets: Longs, *, inline: bool) -> _StreamMemory:
        if isinstance(stream.source, Spans):
            return cls._of_spans(stream, stream.source, offsets)
        source = stream.source
        ends = np.array([len(source)], np.int64)
        starts, address = np.zeros(1, np.int64), np.array([_address(source)], np.int64)
        size = stream.there if _version_is_known(source[stream.base : stream.base + HEADER_SIZE]) else -1
        return cls(stream.base, size, starts, ends, address, (source,), True, inline, stream.expected)

    @classmethod
    def _of_spans(cls, stream: Stream, spans: Spans, offsets: Longs) -> _StreamMemory:
        places = np.append(0, offsets) + stream.base
        owners = np.unique(np.searchsorted(spans.starts, places, side="right") - 1)
        owners = owners[owners >= 0]
        opened = tuple(np.asarray(spans.open(owner)) for owner in owners.tolist())
        known = bool(np.all(spans.fields(np.array([stream.base])) == STREAM_VERSION))
        addresses = np.array([_address(each) for each in opened], np.int64)
        size = stream.there if known else -1
        return cls(
            stream.base, size, spans.starts[owners], spans.ends[owners], addresses, opened, expected=stream.expected
        )


class _Streams:
    """Streams of a side as the kernel takes them; those that were not requested have size −1."""

    def __init__(self, columns: ChannelColumns, rows: Longs, opened: Mapping[int, _StreamMemory]) -> None:
        self.opened = opened
        count = len(columns.streams)
        bases, sizes = np.zeros(count, np.int64), np.full(count, -1, np.int64)
        spans = np.zeros(count + 1, np.int64)
        most, inline = np.full(count, np.iinfo(np.int64).max), np.zeros(count, bool)
        for number, memory in opened.items():
            bases[number], sizes[number], spans[number + 1] = memory.base, memory.size, len(memory.starts)
            inline[number] = memory.inline
            most[number] = memory.expected if memory.expected is not None else most[number]
        stream, size = columns.stream[rows], columns.size[rows]
        payload = size - LENGTH_SIZE * (columns.first[rows + 1] - columns.first[rows])
        # As for single channels: an impossible size proves nothing, and then chunks may overlap.
        impossible = (payload < 0) | (size > most[stream] - HEADER_SIZE)
        announced = np.where(inline[stream], ANY_SIZE, np.where(impossible, NO_SIZE, payload))
        ordered = [opened[number] for number in sorted(opened)]
        starts, ends, addresses = (
            np.concatenate([np.zeros(0, np.int64), *(getattr(each, name) for each in ordered)])
            for name in ("starts", "ends", "addresses")
        )
        self.arguments = (announced, bases, sizes, np.cumsum(spans), starts, ends, addresses)


def _address(data: npt.NDArray[Any]) -> int:
    return int(data.__array_interface__["data"][0])


def _version_is_known(header: Bytes) -> bool:
    return len(header) == HEADER_SIZE and int.from_bytes(header.tobytes(), "big") == STREAM_VERSION
