"""Opening the source: a checkpoint's `_metadata`, and the bytes of its virtual channels where they lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cdr_core import settings
from cdr_core.errors import CorruptChannelState, Refused, Unreadable, Where
from cdr_core.flink.channel_state import (
    DAMAGED,
    HEADER_SIZE,
    LENGTH_SIZE,
    ChannelId,
    ChannelSlice,
    read_chunk_extents,
)
from cdr_core.flink.checkpoint import METADATA_FILE, Checkpoint, FileLocation, InlineLocation, Location
from cdr_core.flink.metadata import Side
from cdr_core.flink.virtual_channel import ChannelBytes, Part
from cdr_core.rescale.finding import open_checkpoint, parse_checkpoint
from cdr_core.rescale.plan import Plan
from cdr_core.rescale.remote import FetchedObjects, RemoteState, is_remote, unit_fetches
from cdr_core.rescale.staged import close_staged, staged_objects
from cdr_core.storage import join
from cdr_core.storage.access import SCHEMES
from cdr_core.storage.local import map_file

__all__ = [
    "announced_payload",
    "announced_size",
    "bytes_at",
    "chunks_of",
    "open_channel",
    "open_checkpoint",
    "open_planned",
    "open_side",
    "payload_size",
    "place",
    "sides",
    "unlike",
]


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


@lru_cache(maxsize=4)
def open_planned(directory: str, metadata_sha256: str) -> Checkpoint:
    """The checkpoint a plan was made for; another `_metadata` at its address is an error, not another result."""
    staged, uri = staged_objects(metadata_sha256), join(directory, METADATA_FILE)
    if staged is not None and staged.has(uri):
        checkpoint = parse_checkpoint(directory, staged.read(uri))
    else:
        checkpoint = open_checkpoint(directory)
    if checkpoint.sha256 != metadata_sha256:
        raise Unreadable(
            f"{directory} holds another checkpoint than the plan was made for", hint="start a new recovery"
        )
    return checkpoint


def open_channel(plan: Plan, number: int) -> ChannelBytes:
    """The bytes of a virtual channel of the plan, bounds checked."""
    inputs, outputs = sides(plan, number)
    return ChannelBytes(open_side(plan, inputs), open_side(plan, outputs), place(plan, number))


def sides(plan: Plan, number: int) -> tuple[ChannelSlice | None, ChannelSlice | None]:
    """Input and output state of a virtual channel; ``None`` where that side has none."""
    channel = plan.channels[number]
    exchange = plan.exchanges[channel.exchange]
    inputs = _slices(plan.checkpoint, plan.metadata_sha256, exchange.downstream, Side.INPUT)
    outputs = _slices(plan.checkpoint, plan.metadata_sha256, exchange.upstream, Side.OUTPUT)
    return (
        inputs.get(ChannelId(channel.down, exchange.gate, channel.up)),
        outputs.get(ChannelId(channel.up, exchange.partition, channel.down)),
    )


def announced_size(plan: Plan, number: int) -> int:
    """What the handles of a virtual channel say of its size; nothing is read."""
    return sum(piece.size for piece in sides(plan, number) if piece is not None)


def place(plan: Plan, number: int) -> Where:
    """A virtual channel, for errors: by its downstream end, whose operator is called what people call it."""
    channel = plan.channels[number]
    exchange = plan.exchanges[channel.exchange]
    operator = _label(plan.checkpoint, plan.metadata_sha256, exchange.downstream)
    return Where(plan.checkpoint, exchange.name, operator, channel.down, exchange.gate, channel.up)


@lru_cache(maxsize=64)
def _label(directory: str, sha256: str, operator: str) -> str:
    return open_planned(directory, sha256).operator(operator).label


@lru_cache(maxsize=64)
def _slices(directory: str, sha256: str, operator: str, side: Side) -> Mapping[ChannelId, ChannelSlice]:
    return open_planned(directory, sha256).channels(operator, side)


def open_side(plan: Plan, piece: ChannelSlice | None) -> tuple[Part, ...]:
    """The chunks of one side; none where that side has no state.

    Chunks that are shorter than their handle says are refused: one whose length field shrank to a record's border still
    frames, and what is behind it would be lost without a trace. More bytes than announced lose nothing.
    """
    if piece is None:
        return ()
    parts = chunks_of(plan, piece)
    announced, found = announced_payload(plan, piece), sum(part.size for part in parts)
    if announced is not None and found < announced:
        raise CorruptChannelState(unlike(found, announced), where=piece.where(plan.checkpoint), hint=DAMAGED)
    return parts


def announced_payload(plan: Plan, piece: ChannelSlice) -> int | None:
    """What a handle says of the payload in its file; ``None`` where that cannot be true, and for inline state, whose
    handle counts its own array.
    """
    checkpoint = open_planned(plan.checkpoint, plan.metadata_sha256)
    is_file = isinstance(checkpoint.resolve(piece.delegate), FileLocation)
    return payload_size(checkpoint, piece) if is_file else None


def unlike(found: int, announced: int) -> str:
    """The sentence for chunks that do not add up."""
    return f"chunks of {found} bytes where the handle says {announced}"


def chunks_of(plan: Plan, piece: ChannelSlice) -> tuple[Part, ...]:
    """The chunks of one side, whether or not they add up to what the handle says."""
    where = piece.where(plan.checkpoint)
    checkpoint = open_planned(plan.checkpoint, plan.metadata_sha256)
    location = checkpoint.resolve(piece.delegate)
    if isinstance(location, FileLocation) and is_remote(location.uri):
        return _remote_parts(plan, piece, location, where)
    source, base, limit = bytes_at(location, where)
    starts, lengths = read_chunk_extents(source, piece.offsets, base=base, limit=limit, where=where)
    return (Part(source, starts, lengths),)


def _remote_parts(plan: Plan, piece: ChannelSlice, location: FileLocation, where: Where) -> tuple[Part, ...]:
    """Staged by the recovery that is running, or fetched now."""
    try:
        objects = staged_objects(plan.metadata_sha256) or _fetched_of(plan)
        limit = objects.limit(location)
        spans = objects.spans(location, piece.offsets.numpy(), where)
    except Unreadable as error:
        raise CorruptChannelState(
            f"its channel-state file cannot be read: {error.what}", where=where, hint=error.hint
        ) from None
    starts, lengths = read_chunk_extents(spans, piece.offsets, base=location.base, limit=limit, where=where)
    return spans.parts(starts, lengths)


def _fetched_of(plan: Plan) -> FetchedObjects:
    fetches, place = unit_fetches(), (plan.checkpoint, plan.metadata_sha256)
    return fetches.objects(place[1], lambda: _state(*place)) if fetches else _fetched(*place, os.getpid())


@lru_cache(maxsize=2)
def _fetched(directory: str, sha256: str, _process: int) -> FetchedObjects:
    """Of the checkpoint that is being looked at; a forked process must not share its parent's files."""
    return FetchedObjects(_state(directory, sha256), settings.load().home / "fetched")


@lru_cache(maxsize=2)
def _state(directory: str, sha256: str) -> RemoteState:
    return RemoteState(open_planned(directory, sha256))


def bytes_at(location: Location, where: Where) -> tuple[npt.NDArray[np.uint8], int, int | None]:
    """The bytes of inline state or of a local file, where the stream begins in them, and how long it should be."""
    if isinstance(location, InlineLocation):
        return np.frombuffer(location.data, dtype=np.uint8), 0, None
    scheme, separator, _ = location.uri.partition("://")
    if separator and scheme not in SCHEMES:
        what = f"in-flight data is on {scheme}://, which cdr cannot reach ({location.uri})"
        raise Refused(what, where=where, hint="copy the checkpoint to a local disk or s3://")
    try:
        return _mapped(location.uri), location.base, location.length
    except Unreadable as error:
        raise CorruptChannelState(
            f"its channel-state file is missing: {error.what}", where=where, hint="use a checkpoint that is complete"
        ) from None


def close_files() -> None:
    """Let go of every file of the source that was opened so far, staged ones as well; they are mapped again if needed.

    A worker outlives its units, and a file that it still maps keeps its room on the disk when it is deleted.
    """
    _mapped.cache_clear()
    close_staged()


@lru_cache(maxsize=64)
def _mapped(uri: str) -> npt.NDArray[np.uint8]:
    return np.asarray(map_file(uri))  # a plain array: numpy and numba take several times longer to look at a memmap
