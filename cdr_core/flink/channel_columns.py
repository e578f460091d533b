"""The channel-state handles of one side of an operator as columns, for jobs with a million channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdr_core.flink.channel_state import ChannelId, ChannelSlice, channel_slices
from cdr_core.flink.metadata import channels
from cdr_core.flink.metadata.channels import ChannelHandle, MergedChannelHandle, Side, SingleChannelHandle
from cdr_core.flink.metadata.cursor import Cursor
from cdr_core.flink.metadata.offsets import Offsets
from cdr_core.flink.metadata.packed import Packed
from cdr_core.flink.metadata.streams import StreamHandle, read_stream
from cdr_core.flink.metadata.values import OperatorState, SubtaskState
from cdr_core.kernels import handles as kernel

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

_NO_LIMIT = np.iinfo(np.int64).max
"""Bytes of memory: the reader of the file has bounded it already."""


@dataclass(frozen=True, slots=True, eq=False)
class ChannelColumns:
    """Every channel of one side that has state, ordered by ``(subtask, a, b)``, one row each.

    ``(a, b)`` is (gate, channel), or (partition, subpartition) on the output side. ``size`` is what the handle
    announces. Row i has its chunks in ``streams[stream[i]]`` at ``offsets[first[i]:first[i + 1]]``, which ascend
    strictly. ``streams`` holds each stream once.
    """

    operator: str
    side: Side
    subtask: Int32s
    a: Int32s
    b: Int32s
    size: Int64s
    stream: Int32s
    first: Int64s
    offsets: Int64s
    streams: tuple[StreamHandle, ...]

    def __len__(self) -> int:
        return len(self.size)

    @property
    def counts(self) -> Int64s:
        """Return the number of chunks of each row."""
        return np.diff(self.first)

    def find(self, subtask: npt.ArrayLike, a: npt.ArrayLike, b: npt.ArrayLike) -> Int64s:
        """Return the row of each asked channel, -1 where it has no state. Scalars are repeated; asking in order is
        faster.
        """
        asked = np.array(np.broadcast_arrays(subtask, a, b), np.int32, ndmin=2)
        rows = np.empty(asked.shape[1], np.int64)
        kernel.find_rows(self.subtask, self.a, self.b, asked, rows)
        return rows

    def by_stream(self) -> Iterator[tuple[StreamHandle, Int64s]]:
        """Yield each stream that a row has, and the offsets of all chunks in it."""
        owner = np.repeat(self.stream, self.counts)
        order = np.argsort(owner, kind="stable")
        bounds = np.searchsorted(owner, np.arange(len(self.streams) + 1), sorter=order)
        for number in np.unique(self.stream).tolist():
            yield self.streams[number], self.offsets[order[bounds[number] : bounds[number + 1]]]

    def slice(self, row: int) -> ChannelSlice:
        """Return one channel as a value."""
        channel = ChannelId(int(self.subtask[row]), int(self.a[row]), int(self.b[row]))
        offsets = Offsets.of(self.offsets[self.first[row] : self.first[row + 1]])
        delegate = self.streams[self.stream[row]]
        return ChannelSlice(self.operator, self.side, channel, delegate, offsets, int(self.size[row]))


def channel_columns(operator: OperatorState, side: Side, *, checkpoint: str | None = None) -> ChannelColumns:
    """Return the channels of :func:`channel_slices` as columns, with the same refusals."""
    size = sum(len(packed.encoded) for _, packed in _packed(operator, side))
    if 2 * size >= channels.KERNELS_FROM:  # the other side is in the same file
        found = scan_columns(operator, side)
        if found is not None:
            return found
    return _of_slices(operator.label, side, channel_slices(operator, side, checkpoint=checkpoint))


def _packed(operator: OperatorState, side: Side) -> Iterator[tuple[int, Packed[ChannelHandle]]]:
    """Yield the handles of each subtask, by its index."""
    for subtask in operator.subtasks:
        if isinstance(subtask, SubtaskState):
            handles = subtask.input_channels if side is Side.INPUT else subtask.output_channels
            assert isinstance(handles, Packed), "made so by SubtaskState"
            yield subtask.index, handles


def scan_columns(operator: OperatorState, side: Side) -> ChannelColumns | None:
    """Return the columns by kernels; ``None`` where something is wrong or unusual."""
    packed = list(_packed(operator, side))
    data = b"".join(each.encoded for _, each in packed)
    counts = np.array([len(each) for _, each in packed], np.int64)
    single, merged = SingleChannelHandle.TAGS[side], MergedChannelHandle.TAGS[side]
    raw, totals = np.frombuffer(data, np.uint8), np.zeros(2, np.int64)
    if kernel.end_of_handles(raw, 0, counts.sum(), single, merged, True, _NO_LIMIT, totals) != len(raw):
        return None
    rows, chunks = totals.tolist()
    filled = kernel.Filled(
        numbers=np.empty((4, rows), np.int32),
        sizes=np.empty(rows, np.int64),
        first=np.zeros(rows + 1, np.int64),
        offsets=np.empty(chunks, np.int64),
        unsorted=np.zeros(rows, np.bool_),
        streams=np.empty((2, counts.sum()), np.int64),
        totals=np.zeros(3, np.int64),
    )
    indexes = np.array([index for index, _ in packed], np.int32)
    if not kernel.fill_columns(raw, counts, indexes, merged, filled) or not _sort_offsets(filled):
        return None
    streams, stream = _distinct(data, filled.streams[:, : filled.totals[kernel.RUNS]])
    return _in_order(operator.label, side, filled, stream[filled.numbers[3]], streams)


def _sort_offsets(filled: kernel.Filled) -> bool:
    """Put offsets in the order in which Flink reads them; False where a channel lists one chunk twice."""
    for row in np.flatnonzero(filled.unsorted):
        offsets = filled.offsets[filled.first[row] : filled.first[row + 1]]
        offsets.sort()
        if (offsets[1:] == offsets[:-1]).any():
            return False
    return True


def _distinct(data: bytes, runs: Int64s) -> tuple[tuple[StreamHandle, ...], Int32s]:
    """Return every stream once, and which of them each run has."""
    numbers: dict[bytes, int] = {}
    of_run = [numbers.setdefault(data[begin:end], len(numbers)) for begin, end in zip(*runs.tolist(), strict=True)]
    streams = tuple(stream for encoded in numbers if (stream := read_stream(Cursor(encoded))) is not None)
    return streams, np.array(of_run, np.int32)


def _in_order(
    operator: str, side: Side, filled: kernel.Filled, stream: Int32s, streams: tuple[StreamHandle, ...]
) -> ChannelColumns | None:
    """Return the rows by (subtask, a, b); ``None`` where two are of one channel."""
    subtask, a, b = filled.numbers[:3]
    sizes, first, offsets = filled.sizes, filled.first, filled.offsets
    if not kernel.ascends(subtask, a, b):
        order = np.lexsort((b, a, subtask))
        subtask, a, b, stream, sizes = subtask[order], a[order], b[order], stream[order], sizes[order]
        if not kernel.ascends(subtask, a, b):
            return None
        counts, starts = np.diff(first)[order], first[:-1][order]
        first = np.append(0, np.cumsum(counts))
        offsets = offsets[np.repeat(starts - first[:-1], counts) + np.arange(len(offsets))]
    return ChannelColumns(operator, side, subtask, a, b, sizes, stream, first, offsets, streams)


def _of_slices(operator: str, side: Side, slices: Mapping[ChannelId, ChannelSlice]) -> ChannelColumns:
    pieces: Sequence[ChannelSlice] = list(slices.values())
    numbers: dict[StreamHandle, int] = {}
    stream = [numbers.setdefault(piece.delegate, len(numbers)) for piece in pieces]
    subtask, a, b = np.array([*slices], np.int32).reshape(-1, 3).T.copy()
    lists = [piece.offsets.numpy() for piece in pieces]
    return ChannelColumns(
        operator,
        side,
        subtask,
        a,
        b,
        np.array([piece.size for piece in pieces], np.int64),
        np.array(stream, np.int32),
        np.append(0, np.cumsum([len(each) for each in lists])).astype(np.int64),
        np.concatenate([np.zeros(0, np.int64), *lists]),
        tuple(numbers),
    )
