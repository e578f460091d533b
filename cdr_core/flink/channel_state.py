"""Locates the bytes of channel-state handles.

A channel-state stream is ``i32 0`` and then chunks of ``i32 length`` and payload, one per network buffer. A handle
lists the offsets of its channel's length fields. Chunks of many channels, subtasks and operators share a file, so only
the listed offsets tell which chunk belongs to which channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from cdr_core.errors import NOWHERE, CorruptChannelState, Where
from cdr_core.flink.metadata.channels import MergedChannelHandle, Side
from cdr_core.flink.metadata.offsets import Offsets
from cdr_core.flink.metadata.streams import StreamHandle
from cdr_core.flink.metadata.values import OperatorState, SubtaskState
from cdr_core.kernels import chunks

HEADER_SIZE: Final = 4
LENGTH_SIZE: Final = 4
STREAM_VERSION: Final = 0

Int64s = npt.NDArray[np.int64]
ReadRange = Callable[[int, int], bytes]
"""Reads ``length`` bytes from ``offset``, exactly."""


class Fields(Protocol):
    """Bytes that lie in pieces, and can still give the big-endian i32 at each of some positions."""

    def fields(self, positions: Int64s) -> Int64s: ...


Source = bytes | memoryview | npt.NDArray[np.uint8] | ReadRange | Fields

_LONGEST_GAP: Final = 1 << 20
"""Bytes. Below it, one request over unwanted bytes is cheaper than two requests."""
_LONGEST_READ: Final = 8 << 20
"""Bytes held at a time while length fields are fetched by range."""

DAMAGED: Final = "use another checkpoint, or recover what is sound with --on-corrupt quarantine"
"""Hint for damaged channel state."""


class ChannelId(NamedTuple):
    """A channel of one side of an operator: ``(a, b)`` is (gate, channel), or (partition, subpartition) on output."""

    subtask: int
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class ChannelSlice:
    """The in-flight bytes of one channel: chunks of ``delegate`` at ``offsets``, which ascend strictly.

    ``offsets`` count from the start of the delegate (of the segment, where it is one). ``size`` is Flink's own figure,
    good for estimates only.
    """

    operator: str
    side: Side
    channel: ChannelId
    delegate: StreamHandle
    offsets: Offsets
    size: int

    def where(self, checkpoint: str | None = None) -> Where:
        """Return the channel's place, for errors."""
        subtask, a, b = self.channel
        return Where(checkpoint=checkpoint, operator=self.operator, subtask=subtask, gate=a, channel=b)


def channel_slices(
    operator: OperatorState, side: Side, *, checkpoint: str | None = None
) -> Mapping[ChannelId, ChannelSlice]:
    """Return every channel of one side that has state, ordered by subtask, a, b.

    Refuses two handles for one channel, a handle that names another subtask than the one it is stored under, a handle
    without a stream, and offsets that repeat. Offsets that do not ascend are put in order, as Flink reads them.
    """
    found: dict[ChannelId, ChannelSlice] = {}
    for subtask in operator.subtasks:
        if not isinstance(subtask, SubtaskState):
            continue
        for piece in _slices(operator.label, subtask, side, checkpoint):
            _check_slice(piece, subtask.index, checkpoint)
            if piece.channel in found:
                raise _wrong(piece, checkpoint, f"two handles describe one {side} channel")
            found[piece.channel] = _ascending(piece, checkpoint)
    return {channel: found[channel] for channel in sorted(found)}


def read_chunk_extents(
    source: Source,
    offsets: Offsets | Int64s,
    *,
    base: int = 0,
    limit: int | None = None,
    where: Where = NOWHERE,
) -> tuple[Int64s, Int64s]:
    """Return the payload of the chunks at ``offsets``: positions in ``source``, and lengths.

    ``source`` is the whole object (bytes, a memory map), or something that reads parts of it; the stream starts at
    ``base`` and has ``limit`` bytes (``None``: up to the end, only where the whole object is given). Zero-length chunks
    are normal. Refuses a stream that is not version 0, offsets that do not ascend, negative lengths, chunks beyond the
    end and chunks that overlap.
    """
    positions = offsets.numpy() if isinstance(offsets, Offsets) else np.asarray(offsets, dtype=np.int64)
    size = _stream_size(source, base, limit)
    if isinstance(source, np.ndarray):
        starts, lengths = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        if chunks.read_extents(source, positions, base, size, STREAM_VERSION, starts, lengths):
            return starts, lengths
    _check_positions(positions, size, base, where)
    fields = np.concatenate([np.zeros(1, dtype=np.int64), positions]) + base
    values = _fields_of(source, fields)
    if values[0] != STREAM_VERSION:
        raise _corrupt(f"a channel-state stream has version {values[0]}, not {STREAM_VERSION}", where, base)
    lengths = values[1:]
    _check_lengths(positions, lengths, size, base, where)
    return positions + (base + LENGTH_SIZE), lengths


def _slices(operator: str, subtask: SubtaskState, side: Side, checkpoint: str | None) -> Iterator[ChannelSlice]:
    """Yield one slice per channel of single and merged handles; nothing is checked yet."""
    for handle in subtask.input_channels if side is Side.INPUT else subtask.output_channels:
        delegate = handle.delegate
        if delegate is None:
            where = Where(checkpoint=checkpoint, operator=operator, subtask=subtask.index)
            raise CorruptChannelState(f"an {side} channel handle names no stream", where=where, hint=DAMAGED)
        if isinstance(handle, MergedChannelHandle):
            for part in handle.channels:
                channel = ChannelId(handle.subtask, part.a, part.b)
                yield ChannelSlice(operator, side, channel, delegate, part.offsets, part.size)
        else:
            channel = ChannelId(handle.subtask, handle.a, handle.b)
            yield ChannelSlice(operator, side, channel, delegate, handle.offsets, handle.size)


def _check_slice(piece: ChannelSlice, index: int, checkpoint: str | None) -> None:
    subtask, a, b = piece.channel
    if subtask != index:
        raise _wrong(piece, checkpoint, f"an {piece.side} channel handle of this subtask is stored under {index}")
    if a < 0 or b < 0:
        raise _wrong(piece, checkpoint, f"an {piece.side} channel has a negative index")


def _ascending(piece: ChannelSlice, checkpoint: str | None) -> ChannelSlice:
    """Return the slice with its offsets in order; refuses one that lists a chunk twice."""
    if len(piece.offsets) < 2:
        return piece
    values = piece.offsets.numpy()
    if np.all(values[1:] > values[:-1]):
        return piece
    values.sort()
    if np.any(values[1:] == values[:-1]):
        raise _wrong(piece, checkpoint, f"an {piece.side} channel lists one chunk twice")
    return replace(piece, offsets=Offsets.of(values))


def _wrong(piece: ChannelSlice, checkpoint: str | None, what: str) -> CorruptChannelState:
    return CorruptChannelState(what, where=piece.where(checkpoint), hint=DAMAGED)


def _corrupt(what: str, where: Where, offset: int) -> CorruptChannelState:
    return CorruptChannelState(what, where=replace(where, offset=offset), hint=DAMAGED)


def _fields_of(source: Source, fields: Int64s) -> Int64s:
    if isinstance(source, bytes | memoryview | np.ndarray):
        return gather_fields(_as_array(source), fields)
    return _read_fields(source, fields) if callable(source) else source.fields(fields)


def _as_array(source: bytes | memoryview | npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return source if isinstance(source, np.ndarray) else np.frombuffer(source, dtype=np.uint8)


def _stream_size(source: Source, base: int, limit: int | None) -> int:
    """Return the number of bytes from ``base`` that may be read."""
    if not isinstance(source, bytes | memoryview | np.ndarray):
        if limit is None:
            raise ValueError("a source that is read in parts needs a limit")
        return limit
    there = max(len(source) - base, 0)
    return there if limit is None else min(there, limit)


def _check_positions(positions: Int64s, size: int, base: int, where: Where) -> None:
    """Refuse offsets outside of the stream, before anything is added to them: a hostile one would overflow."""
    if size < HEADER_SIZE:
        raise _corrupt(f"a channel-state stream has only {size} bytes", where, base)
    wrong = np.flatnonzero((positions < HEADER_SIZE) | (positions > size - LENGTH_SIZE))
    if wrong.size:
        offset = int(positions[wrong[0]])
        raise _corrupt(
            f"a chunk at {offset} is not inside its channel-state stream of {size} bytes", where, base + offset
        )
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


def gather_fields(buffer: npt.NDArray[np.uint8], fields: Int64s) -> Int64s:
    """Return the big-endian i32 at each position."""
    four = buffer[fields[:, np.newaxis] + np.arange(LENGTH_SIZE)]
    return np.ascontiguousarray(four).view(">i4").reshape(-1).astype(np.int64)


def _read_fields(read: ReadRange, fields: Int64s) -> Int64s:
    """Return the same as :func:`gather_fields`, by few reads of bounded size."""
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
        values[start:stop] = gather_fields(np.frombuffer(window, dtype=np.uint8), fields[start:stop] - first)
        start = stop
    return values
