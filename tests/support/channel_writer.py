"""Channel state written channel by channel, with an object for each handle: for small checkpoints of tests, and what
the packed handles of :mod:`cdr_core.flink.metadata.channel_packing` are compared with.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from cdr_core.errors import Refused, Where
from cdr_core.flink.channel_state import HEADER_SIZE, LENGTH_SIZE, STREAM_VERSION, ChannelId
from cdr_core.flink.channel_writer import LONGEST_CHUNK, Stream, SubtaskSide
from cdr_core.flink.metadata import (
    ChannelHandle,
    MergedChannel,
    MergedChannelHandle,
    Offsets,
    Side,
    SingleChannelHandle,
    StreamHandle,
)
from cdr_core.flink.metadata.channels import FIRST_TAGGED_VERSION

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
            hint="write smaller chunks",
        )
    return length
