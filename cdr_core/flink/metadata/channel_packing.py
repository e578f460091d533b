"""Channel handles from columns: a subtask may have many thousands of channels, too many for an object each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cdr_core.errors import Refused
from cdr_core.flink.metadata.channels import (
    FIRST_TAGGED_VERSION,
    ChannelHandle,
    MergedChannelHandle,
    Side,
    SingleChannelHandle,
    packed_handles,
)
from cdr_core.flink.metadata.sink import Sink
from cdr_core.flink.metadata.streams import StreamHandle, write_stream
from cdr_core.kernels import frames

_SINGLE: Final = np.dtype([("tag", "i1"), ("subtask", ">i4"), ("a", ">i4"), ("b", ">i4"), ("count", ">i4")])
_MERGED: Final = np.dtype([("tag", "i1"), ("subtask", ">i4"), ("size", ">i8")])
_PARTS: Final = np.dtype([("bytes", ">i4"), ("count", ">i4")])
_PART: Final = np.dtype([("a", ">i4"), ("b", ">i4"), ("size", ">i8"), ("count", ">i4")])
_SIZE: Final = np.dtype([("size", ">i8")])
LARGEST_I32: Final = 2**31 - 1

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ChannelChunks:
    """Chunks of one side of an operator, a row each, in any order; fields as in :class:`SingleChannelHandle`.

    ``stream`` numbers the stream that holds the chunk, ``offset`` is that of its length field, which ``size`` includes.
    """

    subtask: Longs
    a: Longs
    b: Longs
    stream: Longs
    offset: Longs
    size: Longs

    def __post_init__(self) -> None:
        for column in (self.subtask, self.a, self.b):
            if len(column) and not 0 <= column.min() <= column.max() <= LARGEST_I32:
                raise Refused(f"{column.max()} does not fit its 4-byte field of _metadata")

    def taken(self, rows: Longs) -> ChannelChunks:
        return ChannelChunks(*(getattr(self, each.name)[rows] for each in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[ChannelChunks]) -> ChannelChunks:
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))


@dataclass(frozen=True, slots=True, eq=False)
class _Channels:
    """The channels of each stream in the order of the handles: a row for each, and one for each of its offsets."""

    subtask: Longs
    a: Longs
    b: Longs
    stream: Longs
    size: Longs
    first: Longs
    offsets: Longs

    @property
    def count(self) -> Longs:
        return np.diff(self.first)


def pack_handles(
    chunks: ChannelChunks, side: Side, streams: Sequence[StreamHandle], version: int
) -> dict[int, Sequence[ChannelHandle]]:
    """Return the handles for a ``_metadata`` of this version, by subtask: one per channel and stream before 6, one per
    stream since. Those of a subtask follow the numbers of the streams.
    """
    if not len(chunks.offset):
        return {}
    channels = _channels(chunks)
    if version < FIRST_TAGGED_VERSION:
        begins, pieces = np.arange(len(channels.a)), _single_pieces(channels, side, streams)
    else:
        begins = _changes(channels.subtask, channels.stream)
        pieces = _merged_pieces(channels, begins, side, streams)
    raw, ends = _interleaved(pieces)
    found = {}
    firsts = _changes(channels.subtask)
    counts = np.diff(np.append(np.searchsorted(begins, firsts), len(begins)))
    bounds = np.append(np.append(0, ends)[firsts], len(raw))
    for number, subtask in enumerate(channels.subtask[firsts].tolist()):
        encoded = raw[bounds[number] : bounds[number + 1]].tobytes()
        found[subtask] = packed_handles(side, int(counts[number]), encoded)
    return found


def _channels(chunks: ChannelChunks) -> _Channels:
    ordered = chunks.taken(np.lexsort((chunks.offset, chunks.b, chunks.a, chunks.stream, chunks.subtask)))
    first = _changes(ordered.subtask, ordered.stream, ordered.a, ordered.b)
    return _Channels(
        ordered.subtask[first],
        ordered.a[first],
        ordered.b[first],
        ordered.stream[first],
        np.add.reduceat(ordered.size, first),
        np.append(first, len(ordered.offset)),
        ordered.offset,
    )


def _changes(*columns: Longs) -> Longs:
    """Return the rows that differ from the row before."""
    changed = np.ones(len(columns[0]), bool)
    changed[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return np.flatnonzero(changed)


class _Pieces(NamedTuple):
    """Bytes ``data[begins[i]:ends[i]]`` of channel i."""

    data: Bytes
    begins: Longs
    ends: Longs


def _single_pieces(channels: _Channels, side: Side, streams: Sequence[StreamHandle]) -> list[_Pieces]:
    tag = SingleChannelHandle.TAGS[side]
    head = _rows(_SINGLE, tag=tag, subtask=channels.subtask, a=channels.a, b=channels.b, count=channels.count)
    return [head, _offsets(channels), _rows(_SIZE, size=channels.size), _streams(channels, streams)]


def _merged_pieces(channels: _Channels, begins: Longs, side: Side, streams: Sequence[StreamHandle]) -> list[_Pieces]:
    """Return the pieces of each merged handle: its own fields precede its first channel."""
    counts = np.diff(np.append(begins, len(channels.a)))
    lengths = np.add.reduceat(_PART.itemsize + 8 * channels.count, begins) + 4
    if lengths.max() > LARGEST_I32:
        raise Refused(f"handles of {lengths.max()} bytes do not fit a 4-byte field of _metadata")
    tag, sizes = MergedChannelHandle.TAGS[side], np.add.reduceat(channels.size, begins)
    head = _rows(_MERGED, tag=tag, subtask=channels.subtask[begins], size=sizes)
    count = _rows(_PARTS, bytes=lengths, count=counts)
    part = _rows(_PART, a=channels.a, b=channels.b, size=channels.size, count=channels.count)
    stream = _streams(channels, streams)
    stream = stream._replace(begins=stream.begins[begins], ends=stream.ends[begins])
    total = len(channels.a)
    heads = [_spread(each, begins, total) for each in (head, stream, count)]
    return [*heads, part, _offsets(channels)]


def _rows(dtype: np.dtype[Any], **values: Any) -> _Pieces:
    rows = np.empty(max(np.size(value) for value in values.values()), dtype)
    for name, value in values.items():
        rows[name] = value
    ends = np.arange(1, len(rows) + 1) * dtype.itemsize
    return _Pieces(rows.view(np.uint8).reshape(-1), ends - dtype.itemsize, ends)


def _offsets(channels: _Channels) -> _Pieces:
    data = channels.offsets.astype(">i8").view(np.uint8)
    return _Pieces(data, 8 * channels.first[:-1], 8 * channels.first[1:])


def _streams(channels: _Channels, streams: Sequence[StreamHandle]) -> _Pieces:
    encoded = []
    for stream in streams:
        sink = Sink()
        write_stream(sink, stream)
        encoded.append(sink.getvalue())
    ends = np.cumsum([len(each) for each in encoded])
    begins = np.append(0, ends[:-1])
    return _Pieces(np.frombuffer(b"".join(encoded), np.uint8), begins[channels.stream], ends[channels.stream])


def _spread(pieces: _Pieces, rows: Longs, count: int) -> _Pieces:
    """Return pieces of the channels ``rows``, as pieces of all ``count`` channels: the others have none."""
    begins, ends = np.zeros((2, count), np.int64)
    begins[rows], ends[rows] = pieces.begins, pieces.ends
    return _Pieces(pieces.data, begins, ends)


def _interleaved(pieces: Sequence[_Pieces]) -> tuple[Bytes, Longs]:
    """Return the pieces of the first channel, those of the second, and so on; and where each channel ends."""
    bases = np.append(0, np.cumsum([len(piece.data) for piece in pieces]))[:-1]
    begins = np.stack([piece.begins + base for piece, base in zip(pieces, bases, strict=True)], axis=1)
    ends = np.stack([piece.ends + base for piece, base in zip(pieces, bases, strict=True)], axis=1)
    stops = np.cumsum((ends - begins).sum(axis=1))
    target = np.empty(int(stops[-1]), np.uint8)
    source = np.concatenate([piece.data for piece in pieces])
    frames.gather_runs(source, 0, begins.reshape(-1), ends.reshape(-1), target)
    return target, stops
