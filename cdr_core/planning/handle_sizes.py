"""Sizes of in-flight data that the handles of a checkpoint state; no payload is read."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from cdr_core.errors import CorruptChannelState
from cdr_core.flink.channel_columns import ChannelColumns
from cdr_core.flink.channel_state import HEADER_SIZE, LENGTH_SIZE, ChannelSlice, read_chunk_extents
from cdr_core.flink.checkpoint import Checkpoint, InlineLocation, Location

UNKNOWN: Final = -1
"""In place of a size that cannot be true."""
LARGEST_STREAM: Final = 1 << 40
"""Bytes. No stream of channel state is longer, so that sizes of a million channels add up in 64 bits."""

Longs = npt.NDArray[np.int64]


def payload_size(checkpoint: Checkpoint, piece: ChannelSlice) -> int | None:
    """Return the bytes in flight on one side of a channel, without length fields, from the handle; no payload is read.

    Flink itself never reads a handle's size: ``None`` if it is impossible for these chunks.
    """
    location = checkpoint.resolve(piece.delegate)
    if isinstance(location, InlineLocation):
        _, lengths = read_chunk_extents(location.data, piece.offsets, where=piece.where(checkpoint.directory))
        return int(lengths.sum())
    announced = piece.size - LENGTH_SIZE * len(piece.offsets)
    return None if announced < 0 or piece.size > _limit(location) - HEADER_SIZE else announced


def payload_sizes(
    checkpoint: Checkpoint, columns: ChannelColumns, rows: Longs | None = None, *, damage_is_fine: bool = False
) -> Longs:
    """Return :func:`payload_size` of these rows, else of all; ``UNKNOWN`` where that is ``None``.

    ``damage_is_fine``: also where inline state is damaged, which is otherwise an error.
    """
    chosen = np.arange(len(columns)) if rows is None else rows
    stream = columns.stream[chosen]
    limits, inline = _streams(checkpoint, columns, stream)
    announced = np.maximum(columns.size[chosen], UNKNOWN)
    found: Longs = announced - LENGTH_SIZE * columns.counts[chosen]
    found[(found < 0) | (announced > limits[stream] - HEADER_SIZE)] = UNKNOWN
    for place in np.flatnonzero(inline[stream]):
        found[place] = UNKNOWN
        try:
            found[place] = payload_size(checkpoint, columns.slice(int(chosen[place]))) or 0
        except CorruptChannelState:
            if not damage_is_fine:
                raise
    return found


def believable_sizes(checkpoint: Checkpoint, columns: ChannelColumns, rows: Longs) -> Longs:
    """Return plausible sizes, length fields included: no channel has more bytes than the stream it lies in."""
    stream = columns.stream[rows]
    limits, _ = _streams(checkpoint, columns, stream)
    return np.clip(columns.size[rows], 0, limits[stream])


def _streams(
    checkpoint: Checkpoint, columns: ChannelColumns, used: npt.NDArray[np.int32]
) -> tuple[Longs, npt.NDArray[np.bool_]]:
    """Return, by number of a used stream, the bytes that it has at most, and whether it is inline."""
    limits, inline = np.zeros(len(columns.streams), np.int64), np.zeros(len(columns.streams), np.bool_)
    for number in np.unique(used).tolist():
        location = checkpoint.resolve(columns.streams[number])
        limits[number], inline[number] = _limit(location), isinstance(location, InlineLocation)
    return limits, inline


def _limit(location: Location) -> int:
    length = len(location.data) if isinstance(location, InlineLocation) else location.length
    return LARGEST_STREAM if length is None else min(length, LARGEST_STREAM)
