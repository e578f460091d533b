"""Opens the source: a checkpoint's `_metadata`, and the bytes of its virtual channels in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from cdr_core import settings
from cdr_core.addresses import SCHEMES
from cdr_core.channels.remote_state import (
    COMPLETE,
    FetchedObjects,
    RemoteState,
    is_remote,
    is_short,
    stream_size,
    too_short,
    unit_fetches,
)
from cdr_core.channels.source_index import SourceIndex, index_of, source_changed
from cdr_core.errors import CorruptChannelState, Refused, Unreadable, Where
from cdr_core.flink.channel_state import (
    DAMAGED,
    LENGTH_SIZE,
    ChannelSlice,
    gather_fields,
    read_chunk_extents,
)
from cdr_core.flink.checkpoint import METADATA_FILE, Checkpoint, FileLocation, InlineLocation, Location
from cdr_core.flink.metadata import Offsets, Side
from cdr_core.flink.partial_stream import Spans
from cdr_core.flink.virtual_channel import Bytes, ChannelBytes, Longs, Part
from cdr_core.planning.checkpoint_locator import open_checkpoint, parse_checkpoint
from cdr_core.planning.handle_sizes import payload_size
from cdr_core.planning.plan import Plan
from cdr_core.storage import join, storage_for
from cdr_core.storage.local import map_file

__all__ = [
    "Stream",
    "announced_payload",
    "announced_size",
    "chunks_of",
    "neighbours",
    "open_channel",
    "open_checkpoint",
    "open_planned",
    "open_side",
    "place",
    "refuse_overlap",
    "sides",
    "stream_of",
    "unlike",
]


@lru_cache(maxsize=4)
def open_planned(directory: str, metadata_sha256: str) -> Checkpoint:
    """Return the checkpoint that a plan was made for; another `_metadata` at its address raises."""
    uri = join(directory, METADATA_FILE)
    pin = index_of(metadata_sha256).place(uri)
    pinned = pin != uri
    checkpoint = parse_checkpoint(directory, storage_for(pin).read(pin)) if pinned else open_checkpoint(directory)
    if checkpoint.sha256 != metadata_sha256:
        raise Unreadable(
            f"{directory} holds another checkpoint than the plan was made for", hint="start a new recovery"
        )
    return checkpoint


def open_channel(plan: Plan, number: int) -> ChannelBytes:
    """Return the bytes of a virtual channel of the plan, bounds checked."""
    inputs, outputs = sides(plan, number)
    return ChannelBytes(open_side(plan, inputs), open_side(plan, outputs), place(plan, number))


def sides(plan: Plan, number: int) -> tuple[ChannelSlice | None, ChannelSlice | None]:
    """Return input and output state of a virtual channel; ``None`` where that side has none."""
    channel = plan.channels[number]
    exchange = plan.exchanges[channel.exchange]
    checkpoint = open_planned(plan.checkpoint, plan.metadata_sha256)
    up, down = np.array([channel.up], np.int32), np.array([channel.down], np.int32)
    found = []
    for side in Side:
        columns = checkpoint.columns(exchange.end(side)[0], side)
        row = exchange.rows_of(columns, up, down)[0]
        found.append(columns.slice(row) if row >= 0 else None)
    return found[0], found[1]


def announced_size(plan: Plan, number: int) -> int:
    """Return the size of a virtual channel that its handles state; nothing is read."""
    return sum(piece.size for piece in sides(plan, number) if piece is not None)


def place(plan: Plan, number: int) -> Where:
    """Return a virtual channel's place for errors: its downstream end, by the operator's label."""
    channel = plan.channels[number]
    exchange = plan.exchanges[channel.exchange]
    operator = _label(plan.checkpoint, plan.metadata_sha256, exchange.downstream)
    return Where(plan.checkpoint, exchange.name, operator, channel.down, exchange.gate, channel.up)


@lru_cache(maxsize=64)
def _label(directory: str, sha256: str, operator: str) -> str:
    return open_planned(directory, sha256).operator(operator).label


def open_side(plan: Plan, piece: ChannelSlice | None) -> tuple[Part, ...]:
    """Return the chunks of one side; none where that side has no state.

    Chunks that are shorter than their handle states are refused: one whose length field shrank to a record's border
    still frames, and the bytes behind it would be lost unnoticed. More bytes than announced lose nothing.
    """
    if piece is None:
        return ()
    parts = chunks_of(plan, piece)
    announced, found = announced_payload(plan, piece), sum(part.size for part in parts)
    if announced is not None and found < announced:
        raise CorruptChannelState(unlike(found, announced), where=piece.where(plan.checkpoint), hint=DAMAGED)
    return parts


def announced_payload(plan: Plan, piece: ChannelSlice) -> int | None:
    """Return the payload in its file that a handle states; ``None`` where that is impossible, and for inline state,
    whose handle counts its own array.
    """
    checkpoint = open_planned(plan.checkpoint, plan.metadata_sha256)
    is_file = isinstance(checkpoint.resolve(piece.delegate), FileLocation)
    return payload_size(checkpoint, piece) if is_file else None


def unlike(found: int, announced: int) -> str:
    """Return the sentence for chunks that do not add up."""
    return f"chunks of {found} bytes where the handle states {announced}"


def chunks_of(plan: Plan, piece: ChannelSlice) -> tuple[Part, ...]:
    """Return the chunks of one side, even if they do not add up to the size that the handle states."""
    where = piece.where(plan.checkpoint)
    checkpoint = open_planned(plan.checkpoint, plan.metadata_sha256)
    stream = stream_of(plan, piece.offsets.numpy(), checkpoint.resolve(piece.delegate), where)
    try:
        starts, lengths = stream.extents(piece.offsets)
    except CorruptChannelState:
        if stream.short:
            what = f"its channel-state file cannot be read: {stream.short}"
            raise CorruptChannelState(what, where=where, hint=COMPLETE) from None
        raise
    if stream.neighbours is not None and int(lengths.sum()) != payload_size(checkpoint, piece):
        refuse_overlap(stream.neighbours(), starts, lengths, where)
    return stream.parts(starts, lengths)


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The channel-state stream that a handle names: from ``base`` of ``source`` on there are ``there`` bytes.

    ``expected`` is how many there should be, if known; ``short`` is the message for a remote file that has fewer.
    ``neighbours`` gives the places of all chunks in its file; inline state has no other channel's.
    """

    source: Bytes | Spans
    base: int
    there: int
    expected: int | None
    where: Where
    short: str = ""
    neighbours: Callable[[], Longs] | None = None

    def extents(self, offsets: Offsets | Longs) -> tuple[Longs, Longs]:
        return read_chunk_extents(self.source, offsets, base=self.base, limit=self.there, where=self.where)

    def parts(self, starts: Longs, lengths: Longs) -> tuple[Part, ...]:
        if isinstance(self.source, Spans):
            return self.source.parts(starts, lengths)
        return (Part(self.source, starts, lengths),)

    def rest(self, start: int) -> tuple[Part, ...]:
        """Return the bytes from a place of the source to the stream's end."""
        if isinstance(self.source, Spans):
            return self.source.rest(start)
        return (Part(self.source, np.array([start]), np.array([self.base + self.there - start])),)

    def length_at(self, offset: int) -> int:
        """Return the length in the length field at an offset."""
        place = np.array([self.base + offset])
        fields = self.source.fields(place) if isinstance(self.source, Spans) else gather_fields(self.source, place)
        return int(fields[0])


def stream_of(plan: Plan, offsets: Longs, location: Location, where: Where) -> Stream:
    """Return the existing bytes of a stream with chunks at these offsets; none at all is an error, fewer than there
    should be are not.
    """
    if isinstance(location, InlineLocation):
        data = np.frombuffer(location.data, dtype=np.uint8)
        return Stream(data, 0, len(data), None, where)
    found = partial(neighbours, plan, location.uri)
    if is_remote(location.uri):
        source, size = _remote(plan, offsets, location, where)
        there = stream_size(location, size)
        short = too_short(location, size) if is_short(location, there) else ""
        return Stream(source, location.base, there, location.length, where, short, found)
    mapped = _local(location, index_of(plan.metadata_sha256), where)
    return Stream(mapped, location.base, stream_size(location, len(mapped)), location.length, where, neighbours=found)


def refuse_overlap(neighbours: Longs, starts: Longs, lengths: Longs, where: Where) -> None:
    """Refuse a chunk that reaches to where another one begins, be it of another channel.

    Only checked where chunks do not add up to their handle's size; in remote files the fetch finds it.
    """
    following = np.append(neighbours, np.iinfo(np.int64).max)[
        np.searchsorted(neighbours, starts - LENGTH_SIZE, "right")
    ]
    wrong = np.flatnonzero(starts + lengths > following)
    if wrong.size:
        offset = int(starts[wrong[0]]) - LENGTH_SIZE
        what = f"a chunk at {offset} reaches into bytes that belong to another"
        raise CorruptChannelState(what, where=replace(where, offset=offset), hint=DAMAGED)


def neighbours(plan: Plan, uri: str) -> Longs:
    """Return where chunks of any channel begin in a local file, in order."""
    return _neighbours(plan.checkpoint, plan.metadata_sha256).get(uri, np.zeros(0, np.int64))


@lru_cache(maxsize=2)
def _neighbours(directory: str, sha256: str) -> Mapping[str, Longs]:
    checkpoint = open_planned(directory, sha256)
    found: dict[str, list[Longs]] = {}
    for operator in checkpoint.metadata.operators:
        for side in Side:
            for stream, offsets in checkpoint.columns(operator, side).by_stream():
                location = checkpoint.resolve(stream)
                if isinstance(location, FileLocation):
                    found.setdefault(location.uri, []).append(offsets + location.base)
    return {uri: np.unique(np.concatenate(offsets)) for uri, offsets in found.items()}


def _remote(plan: Plan, offsets: Longs, location: FileLocation, where: Where) -> tuple[Spans, int]:
    """Return the fetched parts of an object, and how many bytes it has."""
    try:
        objects = _fetched_of(plan)
        return objects.spans(location, offsets, where), objects.size(location.uri)
    except Unreadable as error:
        raise CorruptChannelState(
            f"its channel-state file cannot be read: {error.what}", where=where, hint=error.hint
        ) from None


def _fetched_of(plan: Plan) -> FetchedObjects:
    fetches, place = unit_fetches(), (plan.checkpoint, plan.metadata_sha256)
    return fetches.objects(place[1], lambda: _state(*place)) if fetches else _fetched(*place, os.getpid())


@lru_cache(maxsize=2)
def _fetched(directory: str, sha256: str, _process: int) -> FetchedObjects:
    """Return the fetched objects of the checkpoint in use; a forked process must not share its parent's files."""
    return FetchedObjects(_state(directory, sha256), settings.load().home / "fetched")


@lru_cache(maxsize=2)
def _state(directory: str, sha256: str) -> RemoteState:
    return RemoteState(open_planned(directory, sha256))


def _local(location: FileLocation, index: SourceIndex, where: Where) -> Bytes:
    scheme, separator, _ = location.uri.partition("://")
    if separator and scheme not in SCHEMES:
        what = f"in-flight data is on {scheme}://, which cdr cannot reach ({location.uri})"
        raise Refused(what, where=where, hint="copy the checkpoint to a local disk or s3://")
    known, place = index.objects.get(location.uri), index.place(location.uri)
    try:
        return _mapped(place)
    except Unreadable as error:
        if known is not None:
            raise source_changed(error.what, location.uri) from None
        raise CorruptChannelState(
            f"its channel-state file is missing: {error.what}", where=where, hint=COMPLETE
        ) from None


def close_files() -> None:
    """Close every open file of the source; they are mapped again if needed.

    A worker outlives its units, and a deleted file that it still maps occupies its disk space.
    """
    _mapped.cache_clear()


@lru_cache(maxsize=64)
def _mapped(uri: str) -> Bytes:
    return np.asarray(map_file(uri))  # a plain array: numpy and numba take several times longer to look at a memmap
