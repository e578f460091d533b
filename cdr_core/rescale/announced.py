"""What the handles of a checkpoint say of the bytes in flight; no payload is read."""

from __future__ import annotations

from cdr_core.errors import CorruptChannelState
from cdr_core.flink.channel_state import HEADER_SIZE, LENGTH_SIZE, ChannelSlice, read_chunk_extents
from cdr_core.flink.checkpoint import Checkpoint, InlineLocation


def payload_size(checkpoint: Checkpoint, piece: ChannelSlice) -> int | None:
    """Bytes in flight on one side of a channel, without length fields; told by the handle, no payload is read.

    Flink itself never looks at what a handle says of its size: ``None`` where it cannot be true of these chunks.
    """
    location = checkpoint.resolve(piece.delegate)
    if isinstance(location, InlineLocation):
        _, lengths = read_chunk_extents(location.data, piece.offsets, where=piece.where(checkpoint.directory))
        return int(lengths.sum())
    announced = piece.size - LENGTH_SIZE * len(piece.offsets)
    beyond = location.length is not None and piece.size > location.length - HEADER_SIZE
    return None if announced < 0 or beyond else announced


def is_empty(checkpoint: Checkpoint, piece: ChannelSlice) -> bool:
    """Whether a channel has chunks of length zero only: buffers that were open, and drained, when the barrier came."""
    try:
        return payload_size(checkpoint, piece) == 0
    except CorruptChannelState:
        return False  # whoever reads it says what is wrong


def believable_size(checkpoint: Checkpoint, piece: ChannelSlice) -> int:
    """Length fields included. A size is only a note, but no channel has more bytes than the stream it lies in."""
    location = checkpoint.resolve(piece.delegate)
    length = len(location.data) if isinstance(location, InlineLocation) else location.length
    return max(piece.size if length is None else min(piece.size, length), 0)
