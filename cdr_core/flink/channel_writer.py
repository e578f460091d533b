"""Writing channel state: chunks to a stream, and the handles that find them again.

The mirror of :mod:`cdr_core.flink.channel_state`. Nothing here opens a file: whoever calls gives something to write to.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple, Protocol

import numpy as np

from cdr_core.errors import Refused, Where
from cdr_core.flink.channel_state import HEADER_SIZE, LENGTH_SIZE, STREAM_VERSION, ChannelId
from cdr_core.flink.metadata import (
    ChannelHandle,
    InlineBytes,
    MergedChannel,
    MergedChannelHandle,
    Offsets,
    Side,
    SingleChannelHandle,
    StreamHandle,
)
from cdr_core.flink.metadata.channels import FIRST_TAGGED_VERSION

LONGEST_CHUNK: Final = 2**31 - 1

_LENGTH: Final = struct.Struct(">i")


class OwnedChannel(NamedTuple):
    """A channel of the whole checkpoint; ``operator`` is whatever the caller tells operators apart by."""

    operator: str
    side: Side
    channel: ChannelId

    def where(self) -> Where:
        """Its place, for errors."""
        subtask, gate, channel = self.channel
        return Where(operator=self.operator, subtask=subtask, gate=gate, channel=channel)


class Stream(Protocol):
    """What a channel-state file is written to. Takes all bytes of a call or raises."""

    def write(self, data: bytes, /) -> object: ...


@dataclass(frozen=True, slots=True)
class WrittenChannel:
    """A channel's chunks: where they are, and the size that Flink notes for them."""

    owned: OwnedChannel
    delegate: StreamHandle
    offsets: Offsets
    size: int


class ChannelStateFile:
    """One channel-state file while it is being written; channels of any subtasks and operators take turns in it.

    Holds eight bytes a chunk and none of the payload. Chunks of one channel are read back in the order of the calls.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._offsets: dict[OwnedChannel, array[int]] = {}
        self._sizes: dict[OwnedChannel, int] = {}
        self.size = HEADER_SIZE
        stream.write(_LENGTH.pack(STREAM_VERSION))

    def append(self, owned: OwnedChannel, chunks: Sequence[memoryview | bytes]) -> None:
        """Write chunks of a channel, by one call of the stream. Empty ones are written too; none is no channel."""
        if not chunks:
            return
        offsets = self._offsets.setdefault(owned, array("q"))
        pieces: list[memoryview | bytes] = []
        before = self.size
        for chunk in chunks:
            pieces += (_LENGTH.pack(_checked_length(owned, len(chunk))), chunk)
            offsets.append(self.size)
            self.size += LENGTH_SIZE + len(chunk)
        self._sizes[owned] = self._sizes.get(owned, 0) + self.size - before
        self._stream.write(b"".join(pieces))

    def written(self, delegate: StreamHandle) -> Iterator[WrittenChannel]:
        """Every channel in it, in order; ``delegate`` says where the file is."""
        for owned in sorted(self._offsets):
            offsets = Offsets.of(np.frombuffer(self._offsets[owned], dtype=np.int64))
            yield WrittenChannel(owned, delegate, offsets, self._sizes[owned])


class InlineChannels:
    """Channel state that goes into ``_metadata`` itself: all chunks of a channel are one, as Flink joins them."""

    def __init__(self) -> None:
        self._payloads: dict[OwnedChannel, bytearray] = {}

    def append(self, owned: OwnedChannel, chunks: Sequence[memoryview | bytes]) -> None:
        """As :meth:`ChannelStateFile.append`."""
        if chunks:
            payload = self._payloads.setdefault(owned, bytearray())
            for chunk in chunks:
                payload += chunk
            _checked_length(owned, len(payload))

    def written(self, names: Iterator[str]) -> Iterator[WrittenChannel]:
        """Every channel, in order; each is a stream of its own and takes the next name."""
        for owned in sorted(self._payloads):
            payload = self._payloads[owned]
            data = _LENGTH.pack(STREAM_VERSION) + _LENGTH.pack(len(payload)) + payload
            yield WrittenChannel(owned, InlineBytes(next(names), data), Offsets.of([HEADER_SIZE]), len(data))


class SubtaskSide(NamedTuple):
    """One side of one subtask: what a list of handles in the metadata belongs to."""

    operator: str
    side: Side
    subtask: int


def channel_handles(written: Iterable[WrittenChannel], version: int) -> Mapping[SubtaskSide, tuple[ChannelHandle, ...]]:
    """The handles for a ``_metadata`` of this version: one per channel before 6, one per subtask and stream since.

    Channels of one stream must follow each other, as ``written`` of a file gives them.
    """
    found: dict[SubtaskSide, list[ChannelHandle]] = {}
    for (subtask_side, _), group in groupby(written, key=lambda part: (_side_of(part), id(part.delegate))):
        parts = list(group)
        handles = _merged(parts) if version >= FIRST_TAGGED_VERSION else _singles(parts)
        found.setdefault(subtask_side, []).extend(handles)
    return {subtask_side: tuple(handles) for subtask_side, handles in found.items()}


def _side_of(part: WrittenChannel) -> SubtaskSide:
    return SubtaskSide(part.owned.operator, part.owned.side, part.owned.channel.subtask)


def _merged(parts: list[WrittenChannel]) -> list[ChannelHandle]:
    channels = [MergedChannel(part.owned.channel.a, part.owned.channel.b, part.size, part.offsets) for part in parts]
    total = sum(part.size for part in parts)
    return [MergedChannelHandle(parts[0].owned.channel.subtask, total, parts[0].delegate, channels)]


def _singles(parts: list[WrittenChannel]) -> list[ChannelHandle]:
    return [SingleChannelHandle(*part.owned.channel, part.offsets, part.size, part.delegate) for part in parts]


def _checked_length(owned: OwnedChannel, length: int) -> int:
    if length > LONGEST_CHUNK:
        raise Refused(
            f"a chunk of {length} bytes is longer than its length field can say",
            where=owned.where(),
            hint="write smaller chunks, or files instead of inline state",
        )
    return length
