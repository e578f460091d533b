"""From channel-state handles to the places of their bytes.

A channel-state stream is ``i32 0`` and then chunks of ``i32 length`` and payload, one per network buffer. A handle
lists the offsets of its channel's length fields. Chunks of many channels, subtasks and operators share a file, so only
the listed offsets say what belongs to whom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from cdr_core.errors import NOWHERE, CorruptChannelState, Where
from cdr_core.flink.metadata.channels import MergedChannelHandle, Side
from cdr_core.flink.metadata.offsets import Offsets
from cdr_core.flink.metadata.streams import StreamHandle
from cdr_core.flink.metadata.values import OperatorState, SubtaskState

HEADER_SIZE: Final = 4
LENGTH_SIZE: Final = 4
STREAM_VERSION: Final = 0

Int64s = npt.NDArray[np.int64]
ReadRange = Callable[[int, int], bytes]
"""Reads ``length`` bytes from ``offset``, exactly."""

_LONGEST_GAP: Final = 1 << 20
"""Bytes. Below it, one request over unwanted bytes is cheaper than two requests."""
_LONGEST_READ: Final = 8 << 20
"""Bytes held at a time while length fields are fetched by range."""

_HINT: Final = "the checkpoint is damaged, use another one"


@dataclass(frozen=True, slots=True, order=True)
class ChannelId:
    """A channel of one side of an operator: ``(a, b)`` is (gate, channel), or (partition, subpartition) on output."""

    subtask: int
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class ChannelSlice:
    """The in-flight bytes of one channel: chunks of ``delegate`` at ``offsets``, which ascend strictly.

    ``offsets`` count from the start of the delegate (of the segment, where it is one). ``size`` is what Flink noted,
    good for estimates only.
    """

    operator: str
    side: Side
    channel: ChannelId
    delegate: StreamHandle
    offsets: Offsets
    size: int

    def where(self, checkpoint: str | None = None) -> Where:
        """Its place, for errors."""
        return _place(checkpoint, self.operator, self.channel)


def channel_slices(
    operator: OperatorState, side: Side, *, checkpoint: str | None = None
) -> Mapping[ChannelId, ChannelSlice]:
    """Every channel of one side that has state, ordered by subtask, a, b.

    Refuses two handles for one channel, a handle that names another subtask than the one it is stored under, a handle
    without a stream, and offsets that repeat. Offsets that do not ascend are put in order, as Flink reads them.
    """
    found: dict[ChannelId, ChannelSlice] = {}
    for subtask in operator.subtasks:
        if not isinstance(subtask, SubtaskState):
            continue
        for piece in _pieces(subtask, side):
            where = _place(checkpoint, operator.label, piece.channel)
            if piece.channel.subtask != subtask.index:
                what = f"an {side} channel handle of subtask {piece.channel.subtask} is stored under {subtask.index}"
                raise CorruptChannelState(what, where=where, hint=_HINT)
            if piece.channel in found:
                raise CorruptChannelState(f"two handles describe one {side} channel", where=where, hint=_HINT)
            found[piece.channel] = _slice(operator.label, side, piece, where)
    return {channel: found[channel] for channel in sorted(found)}


def read_chunk_extents(
    source: bytes | memoryview | npt.NDArray[np.uint8] | ReadRange,
    offsets: Offsets | Int64s,
    *,
    base: int = 0,
    limit: int | None = None,
    where: Where = NOWHERE,
) -> tuple[Int64s, Int64s]:
    """Where the chunks at ``offsets`` have their payload: positions in ``source``, and lengths.

    ``source`` is the whole object (bytes, a memory map), or a function that reads a range of it; the stream starts at
    ``base`` and has ``limit`` bytes (``None``: up to the end, not for a function). Zero-length chunks are normal.
    Refuses a stream that is not version 0, offsets that do not ascend, negative lengths, chunks beyond the end and
    chunks that overlap.
    """
    positions = offsets.numpy() if isinstance(offsets, Offsets) else np.asarray(offsets, dtype=np.int64)
    size = _stream_size(source, base, limit)
    _check_positions(positions, size, base, where)
    fields = np.concatenate([np.zeros(1, dtype=np.int64), positions]) + base
    values = _read_fields(source, fields) if callable(source) else _gather(_as_array(source), fields)
    if values[0] != STREAM_VERSION:
        raise _corrupt(f"a channel-state stream has version {values[0]}, not {STREAM_VERSION}", where, base)
    lengths = values[1:]
    _check_lengths(positions, lengths, size, base, where)
    return positions + (base + LENGTH_SIZE), lengths


def refuse_overlaps(extents: Iterable[tuple[Where, Int64s, Int64s]]) -> None:
    """Refuse chunks of different channels that share bytes of one file; each item is a channel's place and extents."""
    parts = list(extents)
    if not parts:
        return
    owners = np.repeat(np.arange(len(parts)), [len(starts) for _, starts, _ in parts])
    starts = np.concatenate([starts for _, starts, _ in parts])
    ends = starts + np.concatenate([lengths for _, _, lengths in parts])
    order = np.argsort(starts, kind="stable")
    wrong = np.flatnonzero(starts[order][1:] - LENGTH_SIZE < ends[order][:-1])
    if wrong.size:
        later, earlier = order[wrong[0] + 1], order[wrong[0]]
        what = f"a chunk overlaps one of another channel ({parts[owners[earlier]][0]})"
        raise _corrupt(what, parts[owners[later]][0], int(starts[later]) - LENGTH_SIZE)


@dataclass(frozen=True, slots=True)
class _Piece:
    channel: ChannelId
    offsets: Offsets
    size: int
    delegate: StreamHandle | None


def _pieces(subtask: SubtaskState, side: Side) -> Iterator[_Piece]:
    """Single and merged handles alike, as one piece per channel."""
    for handle in subtask.input_channels if side is Side.INPUT else subtask.output_channels:
        if isinstance(handle, MergedChannelHandle):
            for part in handle.channels:
                yield _Piece(ChannelId(handle.subtask, part.a, part.b), part.offsets, part.size, handle.delegate)
        else:
            yield _Piece(ChannelId(handle.subtask, handle.a, handle.b), handle.offsets, handle.size, handle.delegate)


def _slice(operator: str, side: Side, piece: _Piece, where: Where) -> ChannelSlice:
    if piece.channel.a < 0 or piece.channel.b < 0:
        raise CorruptChannelState(f"an {side} channel has a negative index", where=where, hint=_HINT)
    if piece.delegate is None:
        raise CorruptChannelState(f"an {side} channel handle names no stream", where=where, hint=_HINT)
    offsets = piece.offsets
    values = offsets.numpy()
    if np.any(values[1:] <= values[:-1]):
        values.sort()
        offsets = Offsets.of(values)
    repeated = np.flatnonzero(values[1:] == values[:-1])
    if repeated.size:
        raise _corrupt(f"an {side} channel lists one chunk twice", where, int(values[repeated[0]]))
    return ChannelSlice(operator, side, piece.channel, piece.delegate, offsets, piece.size)


def _place(checkpoint: str | None, operator: str, channel: ChannelId) -> Where:
    return Where(checkpoint=checkpoint, operator=operator, subtask=channel.subtask, gate=channel.a, channel=channel.b)


def _corrupt(what: str, where: Where, offset: int) -> CorruptChannelState:
    return CorruptChannelState(what, where=replace(where, offset=offset), hint=_HINT)


def _as_array(source: bytes | memoryview | npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return source if isinstance(source, np.ndarray) else np.frombuffer(source, dtype=np.uint8)


def _stream_size(source: bytes | memoryview | npt.NDArray[np.uint8] | ReadRange, base: int, limit: int | None) -> int:
    """Bytes from ``base`` that may be read."""
    if callable(source):
        if limit is None:
            raise ValueError("a source that is read by range needs a limit")
        return limit
    there = max(len(source) - base, 0)
    return there if limit is None else min(there, limit)


def _check_positions(positions: Int64s, size: int, base: int, where: Where) -> None:
    """Done before anything is added to the offsets: a hostile one would wrap around."""
    if size < HEADER_SIZE:
        raise _corrupt(f"a channel-state stream has only {size} bytes", where, base)
    wrong = np.flatnonzero((positions < HEADER_SIZE) | (positions > size - LENGTH_SIZE))
    if wrong.size:
        offset = int(positions[wrong[0]])
        raise _corrupt(f"a chunk at {offset} is not inside its channel-state stream of {size} bytes", where, offset)
    wrong = np.flatnonzero(positions[1:] <= positions[:-1])
    if wrong.size:
        offset = int(positions[wrong[0] + 1])
        raise _corrupt("chunk offsets do not ascend", where, base + offset)


def _check_lengths(positions: Int64s, lengths: Int64s, size: int, base: int, where: Where) -> None:
    wrong = np.flatnonzero(lengths < 0)
    if wrong.size:
        raise _corrupt(f"a chunk has length {lengths[wrong[0]]}", where, base + int(positions[wrong[0]]))
    ends = positions + LENGTH_SIZE + lengths
    wrong = np.flatnonzero(ends > size)
    if wrong.size:
        what = f"a chunk of {lengths[wrong[0]]} bytes reaches beyond the end of its stream of {size} bytes"
        raise _corrupt(what, where, base + int(positions[wrong[0]]))
    wrong = np.flatnonzero(ends[:-1] > positions[1:])
    if wrong.size:
        raise _corrupt("a chunk overlaps the next one of its channel", where, base + int(positions[wrong[0]]))


def _gather(buffer: npt.NDArray[np.uint8], fields: Int64s) -> Int64s:
    """The big-endian i32 at each position."""
    four = buffer[fields[:, np.newaxis] + np.arange(LENGTH_SIZE)]
    return np.ascontiguousarray(four).view(">i4").reshape(-1).astype(np.int64)


def _read_fields(read: ReadRange, fields: Int64s) -> Int64s:
    """As :func:`_gather`, by few reads of bounded size."""
    values = np.empty(len(fields), dtype=np.int64)
    gaps = np.flatnonzero(np.diff(fields) > _LONGEST_GAP) + 1
    breaks = np.append(gaps, len(fields))
    start = 0
    while start < len(fields):
        stop = min(
            int(breaks[np.searchsorted(breaks, start, side="right")]),
            int(np.searchsorted(fields, fields[start] + _LONGEST_READ)),
        )
        first = int(fields[start])
        window = read(first, int(fields[stop - 1]) + LENGTH_SIZE - first)
        values[start:stop] = _gather(np.frombuffer(window, dtype=np.uint8), fields[start:stop] - first)
        start = stop
    return values
