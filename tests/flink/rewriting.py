"""A checkpoint at another parallelism, re-written in the simplest way that shows whether its state is right.

State goes through the library under test. In-flight records are sorted in plain Python, all of them as input state,
in the order of their virtual channels; elements that are not records are left out (their jobs end with the last
watermark of all, so only time is lost). The real re-writing, with phases and a sink, is tested elsewhere.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from cdr_core.flink.channel_state import ChannelId, ChannelSlice, read_chunk_extents
from cdr_core.flink.channel_writer import ChannelStateFile, OwnedChannel, SubtaskSide, channel_handles
from cdr_core.flink.checkpoint import Checkpoint, FileLocation, InlineLocation, load_checkpoint
from cdr_core.flink.keys import key_groups, owner
from cdr_core.flink.metadata import (
    InlineBytes,
    OperatorState,
    RelativeFile,
    Side,
    StreamHandle,
    SubtaskState,
    write_metadata,
)
from cdr_core.flink.rewrite import Handles
from cdr_core.flink.state import StateFile, files_behind, redistribute
from cdr_core.rescale.spec import Exchange, parse_spec

RECORD_TAGS = (0, 1)


class Folder:
    """Reads the state of a checkpoint on disk, and writes state beside a new ``_metadata``, small pieces inline."""

    def __init__(self, source: Checkpoint, target: Path, inline: int = 0) -> None:
        self._source = source
        self._target = target
        self._inline = inline

    def read(self, handle: StateFile, offset: int, length: int) -> bytes:
        location = self._source.resolve(handle)
        assert isinstance(location, FileLocation)
        with Path(location.uri.removeprefix("file://")).open("rb") as file:
            file.seek(location.base + offset)
            return file.read(length if location.length is None else max(0, min(length, location.length - offset)))

    def write(self, name: str, chunks: Iterable[bytes]) -> StreamHandle:
        data = b"".join(chunks)
        if len(data) <= self._inline:
            return InlineBytes(name, data)
        with (self._target / name).open("xb") as file:
            file.write(data)
        return RelativeFile(name, len(data))


def rewrite(checkpoint: Path, spec: Path, parallelism: int, to: Path, *, inline: int = 0) -> Path:
    """Every operator at this parallelism, in a new folder that needs nothing of the old one but its absolute files."""
    to.mkdir()
    source = load_checkpoint(str(checkpoint), (checkpoint / "_metadata").read_bytes())
    folder, meta = Folder(source, to, inline), source.metadata
    operators = []
    for each in meta.operators:
        states = redistribute(
            each, parallelism, folder.read, folder.write, version=meta.version, checkpoint_id=meta.checkpoint_id
        )
        operators.append(replace(each, parallelism=parallelism, subtasks=states))
    for file in {file.path for each in operators for file in files_behind(each) if isinstance(file, RelativeFile)}:
        if not (to / file).exists():
            (to / file).write_bytes((checkpoint / file).read_bytes())
    with (to / "in-flight").open("wb") as stream:
        channels = ChannelStateFile(stream)
        for exchange in parse_spec(spec.read_text()).exchanges:
            for channel, frames in _routed(source, exchange, parallelism).items():
                owned = OwnedChannel(source.operator(exchange.downstream).operator_id, Side.INPUT, channel)
                channels.append(owned, [b"".join(frames)])
    handles = channel_handles(channels.written(RelativeFile("in-flight", channels.size)), meta.version)
    placed = tuple(_with_channels(each, handles) for each in operators)
    (to / "_metadata").write_bytes(write_metadata(replace(meta, operators=placed)))
    return to


def _with_channels(operator: OperatorState, handles: Handles) -> OperatorState:
    def placed(subtask: SubtaskState) -> SubtaskState:
        mine = handles.get(SubtaskSide(operator.operator_id, Side.INPUT, subtask.index), ())
        return replace(subtask, input_channels=mine)

    return replace(
        operator, subtasks=tuple(placed(each) for each in operator.subtasks if isinstance(each, SubtaskState))
    )


def _routed(source: Checkpoint, exchange: Exchange, parallelism: int) -> dict[ChannelId, list[bytes]]:
    """Frames by new channel."""
    upstream, downstream = source.operator(exchange.upstream), source.operator(exchange.downstream)
    inputs, outputs = source.channels(downstream, Side.INPUT), source.channels(upstream, Side.OUTPUT)
    routed: dict[ChannelId, list[bytes]] = defaultdict(list)
    for up in range(upstream.parallelism):
        for down in range(downstream.parallelism):
            ours = [
                inputs.get(ChannelId(down, exchange.gate, up)),
                outputs.get(ChannelId(up, exchange.partition, down)),
            ]
            state = b"".join(_bytes(source, piece) for piece in ours if piece)
            for group, frame in _keyed(state, exchange, downstream.max_parallelism):
                new = owner(group, parallelism, downstream.max_parallelism)
                routed[ChannelId(new, exchange.gate, up * parallelism // upstream.parallelism)].append(frame)
    return routed


def _keyed(state: bytes, exchange: Exchange, max_parallelism: int) -> Iterator[tuple[int, bytes]]:
    starts, frames, at = [], [], 0
    while at < len(state):
        (length,) = struct.unpack_from(">i", state, at)
        tag = state[at + 4]
        if tag in RECORD_TAGS:
            starts.append(at + (13 if tag == 0 else 5))
            frames.append(state[at : at + 4 + length])
        at += 4 + length
    assert at == len(state)
    data = np.frombuffer(state, np.uint8)
    begins = np.array(starts, np.int64)
    ends = np.full(len(starts), len(state), np.int64)
    if starts:
        groups = key_groups(exchange.record, exchange.key, data, begins, ends, max_parallelism)
        yield from zip(map(int, groups), frames, strict=True)


def _bytes(source: Checkpoint, piece: ChannelSlice) -> bytes:
    location = source.resolve(piece.delegate)
    if isinstance(location, InlineLocation):
        data, base, limit = location.data, 0, len(location.data)
    else:
        data = Path(location.uri.removeprefix("file://")).read_bytes()
        base, limit = location.base, location.length if location.length is not None else len(data)
    starts, lengths = read_chunk_extents(data, piece.offsets, base=base, limit=limit)
    return b"".join(data[start : start + length] for start, length in zip(starts, lengths, strict=True))
