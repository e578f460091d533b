"""Stores of generated chunks: files that subtasks share, or the metadata; and the handles of the chunks."""

from __future__ import annotations

import hashlib
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from cdr_core.flink.channel_state import HEADER_SIZE, LENGTH_SIZE, STREAM_VERSION
from cdr_core.flink.channel_writer import Stream, SubtaskSide
from cdr_core.flink.metadata import ChannelHandle, InlineBytes, RelativeFile, Side, StreamHandle
from cdr_core.flink.metadata.channel_packing import ChannelChunks, pack_handles
from cdr_core.kernels import frames
from cdr_core.kernels.generated_channels import Window
from cdr_core.kernels.generated_elements import Longs
from cdr_core.synthetic.layout import Lanes, share_files, subtasks_of
from cdr_core.synthetic.shape import Shape

_HEADER: Final = STREAM_VERSION.to_bytes(HEADER_SIZE, "big")

Handles = Mapping[SubtaskSide, Sequence[ChannelHandle]]


class FileStore:
    """The files of a checkpoint while they are being written. Holds 24 bytes a chunk and none of the payload."""

    def __init__(self, shape: Shape, lanes: Lanes, create: Callable[[str], Stream]) -> None:
        self._shape, self._lanes, self._create = shape, lanes, create
        self._sharing = share_files(shape)
        self._sizes = np.full(len(self._sharing), HEADER_SIZE)
        self._streams: dict[int, tuple[str, Stream]] = {}
        self._chunks: list[tuple[Longs, Longs, Longs]] = []

    @property
    def files(self) -> int:
        return len(self._streams)

    @property
    def buffers(self) -> int:
        """Return the number of chunks, empty ones included."""
        return sum(len(sizes) for _, _, sizes in self._chunks)

    def append(self, window: Window) -> None:
        """Write the chunks, each file's by one call of its stream."""
        sizes = window.lengths + LENGTH_SIZE
        files = self._sharing[self._lanes.subtask[window.lanes]]
        order = np.argsort(files, kind="stable")
        ends = np.cumsum(sizes)
        data = np.empty(len(window.data), np.uint8)
        frames.gather_runs(window.data, 0, (ends - sizes)[order], ends[order], data)
        begins = np.cumsum(sizes[order]) - sizes[order]
        numbers, seen, counts = np.unique(files, return_index=True, return_counts=True)
        bounds = np.append(begins[np.cumsum(counts) - counts], len(data))
        offsets = np.empty_like(sizes)
        offsets[order] = begins + np.repeat(self._sizes[numbers] - bounds[:-1], counts)
        for at in np.argsort(seen):  # files get their names in the order in which they are first written to
            self._stream(int(numbers[at])).write(data[bounds[at] : bounds[at + 1]].tobytes())
        self._sizes[numbers] += np.diff(bounds)
        self._chunks.append((window.lanes.copy(), offsets, sizes))

    def _stream(self, number: int) -> Stream:
        """Open a file when it is first written to: a file without a chunk does not exist."""
        if number not in self._streams:
            name = _file_name(self._shape.seed, len(self._streams))
            self._streams[number] = name, self._create(name)
            self._streams[number][1].write(_HEADER)
        return self._streams[number][1]

    def handles(self) -> Handles:
        """Return the handles of all channels, by subtask and side."""
        lanes, offsets, sizes = (np.concatenate(columns) for columns in zip(*self._chunks, strict=True))
        streams = self._sharing[self._lanes.subtask[lanes]]
        return _handles(self._shape, self._lanes, lanes, streams, offsets, sizes, self._delegates())

    def _delegates(self) -> list[RelativeFile]:
        """Return the handle of each file by its number; no handle refers to a file without chunks."""
        names = (self._streams.get(number, ("",))[0] for number in range(len(self._sizes)))
        return [RelativeFile(name, size) for name, size in zip(names, self._sizes.tolist(), strict=True)]


class InlineStore:
    """Channel state in the metadata, all of it in memory: the chunks of a channel become one, as Flink joins them."""

    files = 0

    def __init__(self, shape: Shape, lanes: Lanes) -> None:
        self._shape, self._lanes = shape, lanes
        self._payloads: defaultdict[int, bytearray] = defaultdict(bytearray)

    @property
    def buffers(self) -> int:
        """Return the number of chunks: one a channel."""
        return len(self._payloads)

    def append(self, window: Window) -> None:
        """Take the chunks."""
        ends = np.cumsum(window.lengths + LENGTH_SIZE)
        for lane, begin, end in zip(window.lanes.tolist(), ends - window.lengths, ends, strict=True):
            self._payloads[lane] += window.data[begin:end].data

    def handles(self) -> Handles:
        """Return the handles of all channels. Each channel is a stream of its own, and they are named in
        their order.
        """
        owners = subtasks_of(self._shape)

        def order(lane: int) -> tuple[str, Side, int, int, int]:
            owner = owners[self._lanes.subtask[lane]]
            return owner.operator, _side(lane), owner.index, int(self._lanes.a[lane]), int(self._lanes.b[lane])

        lanes = sorted(self._payloads, key=order)
        streams = []
        for number, lane in enumerate(lanes):
            payload = self._payloads[lane]
            data = _HEADER + len(payload).to_bytes(LENGTH_SIZE, "big") + payload
            streams.append(InlineBytes(_file_name(self._shape.seed, number), data))
        sizes = np.array([len(stream.data) for stream in streams], np.int64)
        offsets = np.full(len(lanes), HEADER_SIZE, np.int64)
        numbers = np.array(lanes, np.int64), np.arange(len(lanes))
        return _handles(self._shape, self._lanes, *numbers, offsets, sizes, streams)


def _handles(
    shape: Shape,
    lanes_of: Lanes,
    lanes: Longs,
    stream: Longs,
    offsets: Longs,
    sizes: Longs,
    streams: Sequence[StreamHandle],
) -> Handles:
    """Return the handles of chunks in these streams; ``lanes`` is the side of a channel that each belongs to."""
    subtask, a, b = (each[lanes] for each in (lanes_of.subtask, lanes_of.a, lanes_of.b))
    owners = subtasks_of(shape)
    names = list(dict.fromkeys(owner.operator for owner in owners))
    operator = np.array([names.index(owner.operator) for owner in owners])[subtask]
    index = np.array([owner.index for owner in owners])[subtask]
    chunks = ChannelChunks(index, a, b, stream, offsets, sizes)
    found: dict[SubtaskSide, Sequence[ChannelHandle]] = {}
    for number, name in enumerate(names):
        for side in Side:
            selected = np.flatnonzero((operator == number) & ((lanes % 2 == 1) == (side is Side.OUTPUT)))
            handles = pack_handles(chunks.taken(selected), side, streams, shape.version)
            found |= {SubtaskSide(name, side, at): each for at, each in handles.items()}
    return found


def _side(lane: int) -> Side:
    return Side.OUTPUT if lane % 2 else Side.INPUT


def _file_name(seed: int, number: int) -> str:
    """Return a name like those Flink gives, always the same for the same seed."""
    digest = hashlib.sha256(f"channel state {seed} {number}".encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))
