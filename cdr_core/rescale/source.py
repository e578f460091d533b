"""Opening the source: a checkpoint's `_metadata`, and the bytes of its virtual channels where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cdr_core.errors import CorruptChannelState, Refused, Unreadable, Where
from cdr_core.flink.channel_state import LENGTH_SIZE, ChannelId, ChannelSlice, read_chunk_extents
from cdr_core.flink.checkpoint import METADATA_FILE, Checkpoint, InlineLocation, Location, load_checkpoint
from cdr_core.flink.metadata import Side
from cdr_core.flink.virtual_channel import ChannelBytes, Part
from cdr_core.rescale.plan import Plan
from cdr_core.storage import join, storage_for
from cdr_core.storage.local import map_file


def open_checkpoint(directory: str) -> Checkpoint:
    """Read `_metadata` of a checkpoint directory (or the file itself)."""
    directory = directory.rstrip("/")
    if directory.endswith(f"/{METADATA_FILE}"):
        directory = directory.removesuffix(f"/{METADATA_FILE}")
    uri = join(directory, METADATA_FILE)
    storage = storage_for(uri)
    if not storage.exists(uri):
        raise Unreadable(f"{directory} is not a checkpoint: it has no {METADATA_FILE}", hint="give a chk-N directory")
    return load_checkpoint(directory, storage.read(uri))


def payload_size(checkpoint: Checkpoint, piece: ChannelSlice) -> int:
    """Bytes in flight on one side of a channel, without length fields; told by the handle, no payload is read."""
    location = checkpoint.resolve(piece.delegate)
    if isinstance(location, InlineLocation):
        _, lengths = read_chunk_extents(location.data, piece.offsets, where=piece.where(checkpoint.directory))
        return int(lengths.sum())
    return piece.size - LENGTH_SIZE * len(piece.offsets)


@lru_cache(maxsize=4)
def open_planned(directory: str, metadata_sha256: str) -> Checkpoint:
    """The checkpoint a plan was made for; another `_metadata` at its address is an error, not another result."""
    checkpoint = open_checkpoint(directory)
    if checkpoint.sha256 != metadata_sha256:
        raise Unreadable(
            f"{directory} holds another checkpoint than the plan was made for", hint="start a new recovery"
        )
    return checkpoint


def open_channel(plan: Plan, number: int) -> ChannelBytes:
    """The bytes of a virtual channel of the plan, bounds checked."""
    channel = plan.channels[number]
    exchange = plan.exchanges[channel.exchange]
    inputs = _slices(plan.checkpoint, plan.metadata_sha256, exchange.downstream, Side.INPUT)
    outputs = _slices(plan.checkpoint, plan.metadata_sha256, exchange.upstream, Side.OUTPUT)
    return ChannelBytes(
        _parts(plan, inputs.get(ChannelId(channel.down, exchange.gate, channel.up))),
        _parts(plan, outputs.get(ChannelId(channel.up, exchange.partition, channel.down))),
        Where(plan.checkpoint, exchange.name, None, channel.down, exchange.gate, channel.up),
    )


@lru_cache(maxsize=64)
def _slices(directory: str, sha256: str, operator: str, side: Side) -> Mapping[ChannelId, ChannelSlice]:
    return open_planned(directory, sha256).channels(operator, side)


def _parts(plan: Plan, piece: ChannelSlice | None) -> tuple[Part, ...]:
    """The chunks of one side; none where that side has no state."""
    if piece is None:
        return ()
    location = open_planned(plan.checkpoint, plan.metadata_sha256).resolve(piece.delegate)
    source, base, limit = _bytes_at(location, piece.where(plan.checkpoint))
    starts, lengths = read_chunk_extents(
        source, piece.offsets, base=base, limit=limit, where=piece.where(plan.checkpoint)
    )
    return (Part(source, starts, lengths),)


def _bytes_at(location: Location, where: Where) -> tuple[npt.NDArray[np.uint8], int, int | None]:
    if isinstance(location, InlineLocation):
        return np.frombuffer(location.data, dtype=np.uint8), 0, None
    if location.uri.startswith("s3://"):
        raise Refused(
            "channel state on S3 cannot be read yet", where=where, hint="copy the checkpoint to a local directory"
        )
    try:
        return _mapped(location.uri), location.base, location.length
    except Unreadable as error:
        raise CorruptChannelState(
            f"its channel-state file is missing: {error.what}", where=where, hint="use a checkpoint that is complete"
        ) from None


@lru_cache(maxsize=64)
def _mapped(uri: str) -> npt.NDArray[np.uint8]:
    return map_file(uri)
