"""What must hold of damaged bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import numpy as np

from cdr_core.channels.fetch_ranges import Extent, cells_of
from cdr_core.errors import CdrError, CorruptChannelState, CorruptMetadata, Where
from cdr_core.flink.channel_state import ChannelId, ChannelSlice, read_chunk_extents
from cdr_core.flink.checkpoint import Checkpoint, FileLocation, load_checkpoint
from cdr_core.flink.decode import decode_values
from cdr_core.flink.keys import key_groups
from cdr_core.flink.metadata import OperatorState, Side, channels
from cdr_core.flink.metadata.writer import encode_metadata
from cdr_core.flink.partial_stream import Spans
from cdr_core.flink.types import RowData, Struct, TypeDescription, parse_type
from cdr_core.flink.virtual_channel import ChannelBytes, Part, Window, windows
from cdr_core.kernels import frames
from tests.flink_formats.hostile.corpus import DIRECTORY, Item, uri_of
from tests.flink_formats.hostile.mutate import Damage
from tests.flink_formats.hostile.through import read_elements

WINDOW = 1024
KEY_GROUPS = 128


class Broken(Exception):
    """A rule does not hold."""


def check(item: Item, data: bytes, damage: Damage, wish: int | None = 0) -> None:
    """Raises :class:`Broken`, or whatever was raised and should not have been.

    ``wish`` varies the parallelism of the plan that elements are read by; without it none are.
    """
    if item.is_metadata:
        _check_metadata(item, data, damage)
    else:
        assert item.checkpoint is not None
        _check_channels(item.checkpoint, {uri_of(item.name): data}, damage, item.record)
    if item.spec and wish is not None:
        read_elements(item.spec, item.all_files(data), wish)


def _check_metadata(item: Item, data: bytes, damage: Damage) -> None:
    checkpoint, slowly = (_load(data, kernels_from) for kernels_from in (0, 1 << 20))
    same = type(checkpoint) is type(slowly) and (
        str(checkpoint) == str(slowly) if isinstance(checkpoint, CorruptMetadata) else checkpoint == slowly
    )
    if not same:
        raise Broken(f"kernels read {checkpoint} where Python reads {slowly}")
    if isinstance(checkpoint, CorruptMetadata):
        if checkpoint.where.offset is None or not 0 <= checkpoint.where.offset <= len(data):
            raise Broken(f"an error without a place: {checkpoint}")
        return
    if damage.cut is not None:
        raise Broken("a file that was cut short was read")
    if encode_metadata(checkpoint.metadata) != data:
        raise Broken("what was read is not written back to the same bytes")
    _check_columns(checkpoint)
    _check_channels(checkpoint, {uri_of(name): held for name, held in item.files}, Damage(None))


def _load(data: bytes, kernels_from: int) -> Checkpoint | CorruptMetadata:
    try:
        with patch.object(channels, "KERNELS_FROM", kernels_from):
            return load_checkpoint(DIRECTORY, data)
    except CorruptMetadata as error:
        return error


def _check_columns(checkpoint: Checkpoint) -> None:
    """Columns hold the same channels, or are refused in the same words."""
    for operator in checkpoint.metadata.operators:
        for side in Side:
            outcomes: list[object] = []
            for read in (_slices, _rows):
                try:
                    outcomes.append(read(checkpoint, operator, side))
                except CdrError as error:
                    outcomes.append(str(error))
            if outcomes[0] != outcomes[1]:
                raise Broken(f"columns give {outcomes[1]} where slices give {outcomes[0]}")


def _slices(checkpoint: Checkpoint, operator: OperatorState, side: Side) -> list[ChannelSlice]:
    return list(checkpoint.channels(operator, side).values())


def _rows(checkpoint: Checkpoint, operator: OperatorState, side: Side) -> list[ChannelSlice]:
    with patch.object(channels, "KERNELS_FROM", 0):
        columns = checkpoint.columns(operator, side)
    return [columns.slice(row) for row in range(len(columns))]


@dataclass(frozen=True)
class _Stream:
    piece: ChannelSlice
    source: np.ndarray[Any, np.dtype[np.uint8]]
    base: int
    limit: int | None
    uri: str


def _check_channels(checkpoint: Checkpoint, files: dict[str, bytes], damage: Damage, record: str = "OPAQUE") -> None:
    """Every channel of every side, and both sides together; ``files`` are those at hand."""
    failed = False
    sides: dict[Side, dict[ChannelId, tuple[Part, ...]]] = {Side.INPUT: {}, Side.OUTPUT: {}}
    needed = 0
    for stream in _streams(checkpoint, files):
        try:
            starts, lengths = _extents(stream)
        except CdrError:
            failed = True
            continue
        _check_chunks(stream, starts, lengths)
        _check_in_stretches(stream, starts, lengths)
        needed = max([needed, *(starts + lengths).tolist()])
        sides[stream.piece.side][stream.piece.channel] = (Part(stream.source, starts, lengths),)
    if not _frames(sides, record):
        failed = True
    if damage.cut is not None and not failed and damage.cut < needed:
        raise Broken("a channel-state file that was cut inside of a chunk was read")
    if damage.cut is not None and not failed:
        _require_nothing_missing(checkpoint, files, damage.cut)


def _streams(checkpoint: Checkpoint, files: dict[str, bytes]) -> Iterator[_Stream]:
    for operator in checkpoint.metadata.operators:
        for side in Side:
            try:
                pieces = list(checkpoint.channels(operator, side).values())
            except CdrError:
                continue
            for piece in pieces:
                location = checkpoint.resolve(piece.delegate)
                if isinstance(location, FileLocation):
                    if location.uri in files:
                        held = np.frombuffer(files[location.uri], np.uint8)
                        yield _Stream(piece, held, location.base, location.length, location.uri)
                else:
                    yield _Stream(piece, np.frombuffer(location.data, np.uint8), 0, None, "")


def _extents(stream: _Stream) -> tuple[Any, Any]:
    return read_chunk_extents(
        stream.source, stream.piece.offsets, base=stream.base, limit=stream.limit, where=stream.piece.where(DIRECTORY)
    )


def _check_chunks(stream: _Stream, starts: Any, lengths: Any) -> None:
    """Every chunk lies inside, and its length field says what was understood."""
    end = len(stream.source) if stream.limit is None else min(len(stream.source), stream.base + stream.limit)
    data = stream.source.tobytes()
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        if not stream.base + 8 <= start <= start + length <= end:
            raise Broken(f"a chunk at {start} of {length} bytes is not inside of {end}")
        if data[start - 4 : start] != struct.pack(">i", length):
            raise Broken("a chunk is not written back to the same bytes")


def _check_in_stretches(stream: _Stream, starts: Any, lengths: Any) -> None:
    """Read from stretches, a channel has the same bytes, or is refused because its chunks overlap others."""
    size = len(stream.source) - stream.base if stream.limit is None else stream.limit
    if stream.base + size > len(stream.source):
        return
    extent = Extent(stream.base, stream.base + size, stream.piece.offsets.numpy() + stream.base)
    cells = cells_of([extent])
    held = stream.source
    spans = Spans(cells.starts, cells.ends, lambda n: held[cells.starts[n] : cells.ends[n]], Where())
    try:
        found = read_chunk_extents(spans, stream.piece.offsets, base=stream.base, limit=size)
        parts = spans.parts(*found)
    except CdrError:
        return
    if _bytes(ChannelBytes(parts, (), Where())) != _bytes(ChannelBytes((Part(held, starts, lengths),), (), Where())):
        raise Broken("a channel has other bytes when it is read in stretches")


def _bytes(channel: ChannelBytes) -> bytes:
    data = np.empty(channel.size, np.uint8)
    channel.copy(0, channel.size, data)
    return data.tobytes()


def _frames(sides: dict[Side, dict[ChannelId, tuple[Part, ...]]], record: str) -> bool:
    """Frame both sides of every connection; ``False`` if some did not. What is framed gives the same bytes again."""
    good = True
    inputs = {(at.b, at.subtask): parts for at, parts in sides[Side.INPUT].items()}
    outputs = {(at.subtask, at.b): parts for at, parts in sides[Side.OUTPUT].items()}
    for connection in sorted({*inputs, *outputs}):
        channel = ChannelBytes(inputs.get(connection, ()), outputs.get(connection, ()), Where())
        again = bytearray()
        try:
            for window in windows(channel, 0, channel.size, 0, WINDOW):
                for start, end in zip(window.starts.tolist(), window.ends.tolist(), strict=True):
                    again += struct.pack(">i", end - start) + window.data[start:end].tobytes()
                _decode(window, _type(record))
        except CdrError:
            good = False
            continue
        if bytes(again) != _bytes(channel):
            raise Broken("elements do not frame back to the bytes of their channel")
    return good


@lru_cache(maxsize=16)
def _type(record: str) -> TypeDescription:
    return parse_type(record)


def _decode(window: Window, description: TypeDescription) -> None:
    """Every record has a value and a key group, or one is named in a clean error."""
    count = len(window.starts)
    times, values = np.empty(count, np.int64), np.empty(count, np.int64)
    frames.element_times(window.data, window.starts, window.tags, times, values)
    starts, ends = values[window.records], window.ends[window.records]
    with suppress(CorruptChannelState):
        decoded = decode_values(description, window.data, starts, ends)
        if len(decoded.values) != len(starts):
            raise Broken("there are not as many values as records")
        decoded.values.validate(full=True)
    if isinstance(description, Struct | RowData):
        with suppress(CorruptChannelState):
            key = description.arrow_type.field(0).name
            groups = key_groups(description, (key,), window.data, starts, ends, KEY_GROUPS)
            if len(groups) and not 0 <= groups.min() <= groups.max() < KEY_GROUPS:
                raise Broken(f"key groups from {groups.min()} to {groups.max()}")


def _require_nothing_missing(checkpoint: Checkpoint, files: dict[str, bytes], cut: int) -> None:
    """All was read of a file that was cut short: then no handle may reach beyond the cut."""
    for stream in _streams(checkpoint, files):
        beyond = stream.base + 4 + max(stream.piece.offsets, default=0)
        if stream.uri in files and beyond > cut:
            raise Broken(f"a chunk at {beyond} was read of a file of {cut} bytes")
