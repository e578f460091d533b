"""Checkpoints that are wrong in a way no reader can see: a record too few, a record too many."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cdr_core.flink.channel_state import ChannelId, read_chunk_extents
from cdr_core.flink.channel_writer import SubtaskSide
from cdr_core.flink.checkpoint import FileLocation, load_checkpoint
from cdr_core.flink.metadata import RelativeFile, Side, SubtaskState, write_metadata
from tests.support.channel_writer import ChannelStateFile, OwnedChannel, channel_handles

Edit = Callable[[bytes], bytes]
"""Of the bytes of a channel's input state, which begin with a whole element."""


def first_element(state: bytes) -> bytes:
    """The first element with its length in front."""
    (length,) = struct.unpack_from(">i", state)
    return state[: 4 + length]


def edit_input(checkpoint: Path, operator: str, channel: ChannelId, edit: Edit) -> None:
    """Changes the input state of one channel, in a new file beside the others; all other state stays as it is."""
    loaded = load_checkpoint(str(checkpoint), (checkpoint / "_metadata").read_bytes())
    state = loaded.operator(operator)
    name = "edited"
    with (checkpoint / name).open("wb") as stream:
        file = ChannelStateFile(stream)
        for at, piece in loaded.channels(state, Side.INPUT).items():
            if at.subtask != channel.subtask:
                continue
            location = loaded.resolve(piece.delegate)
            assert isinstance(location, FileLocation)
            data = Path(location.uri).read_bytes()
            starts, lengths = read_chunk_extents(data, piece.offsets)
            chunks = [data[start : start + length] for start, length in zip(starts, lengths, strict=True)]
            if at == channel:
                chunks = [edit(b"".join(chunks))]
            file.append(OwnedChannel(state.operator_id, Side.INPUT, at), chunks)
    written = file.written(RelativeFile(name, file.size))
    handles = channel_handles(written, loaded.metadata.version)
    mine = handles[SubtaskSide(state.operator_id, Side.INPUT, channel.subtask)]
    subtasks = tuple(
        replace(subtask, input_channels=mine)
        if isinstance(subtask, SubtaskState) and subtask.index == channel.subtask
        else subtask
        for subtask in state.subtasks
    )
    operators = tuple(replace(each, subtasks=subtasks) if each is state else each for each in loaded.metadata.operators)
    (checkpoint / "_metadata").write_bytes(write_metadata(replace(loaded.metadata, operators=operators)))
