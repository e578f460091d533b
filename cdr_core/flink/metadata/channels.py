"""Channel-state handles: which chunks of a file are the in-flight data of which channel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from cdr_core.errors import Refused
from cdr_core.flink.metadata.cursor import Cursor
from cdr_core.flink.metadata.offsets import Offsets
from cdr_core.flink.metadata.sink import Sink
from cdr_core.flink.metadata.streams import HELD, StreamHandle, read_stream, write_stream

FIRST_TAGGED_VERSION: Final = 6

_SMALLEST_SINGLE: Final = 4 * 4 + 8 + 1
_SMALLEST_MERGED: Final = 1 + 4 + 8 + 1 + 4 + 4
_SMALLEST_PART: Final = 4 + 4 + 8 + 4
_HELD: Final = 144


class Side(StrEnum):
    """Whose buffers: those waiting at a gate, or those waiting in a result partition."""

    INPUT = "input"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class SingleChannelHandle:
    """One channel of one subtask.

    ``(a, b)`` is (gate, channel) on the input side and (partition, subpartition) on the output side. ``offsets`` point
    at the length fields of the chunks; ``size`` is informational.
    """

    TAGS: ClassVar[dict[Side, int]] = {Side.INPUT: 1, Side.OUTPUT: 2}

    subtask: int
    a: int
    b: int
    offsets: Offsets
    size: int
    delegate: StreamHandle | None

    @classmethod
    def read(cls, cursor: Cursor) -> SingleChannelHandle:
        subtask, a, b = cursor.i32(), cursor.i32(), cursor.i32()
        return cls(subtask, a, b, cursor.offsets("channel offsets"), cursor.i64(), read_stream(cursor))

    def write(self, sink: Sink) -> None:
        sink.i32(self.subtask)
        sink.i32(self.a)
        sink.i32(self.b)
        sink.offsets(self.offsets)
        sink.i64(self.size)
        write_stream(sink, self.delegate)


@dataclass(frozen=True, slots=True)
class MergedChannel:
    """One channel inside a :class:`MergedChannelHandle`; fields as in :class:`SingleChannelHandle`."""

    a: int
    b: int
    size: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class MergedChannelHandle:
    """All channels of one subtask in one stream; only version 6 and later has it. ``size`` is their total."""

    TAGS: ClassVar[dict[Side, int]] = {Side.INPUT: 3, Side.OUTPUT: 4}

    subtask: int
    size: int
    delegate: StreamHandle | None
    channels: tuple[MergedChannel, ...]

    @classmethod
    def read(cls, cursor: Cursor) -> MergedChannelHandle:
        subtask, size, delegate = cursor.i32(), cursor.i64(), read_stream(cursor)
        length = cursor.count("bytes of merged channels", 1, held=-8)
        end = cursor.position + length
        number = cursor.count("merged channels", _SMALLEST_PART, held=_HELD)
        channels = tuple([_read_part(cursor) for _ in range(number)])
        if cursor.position != end:
            raise cursor.corrupt(f"merged channels take {cursor.position - end + length} bytes, announced are {length}")
        return cls(subtask, size, delegate, channels)

    def write(self, sink: Sink) -> None:
        sink.i32(self.subtask)
        sink.i64(self.size)
        write_stream(sink, self.delegate)
        sink.blob(self._parts())

    def _parts(self) -> bytes:
        parts = Sink()
        parts.i32(len(self.channels))
        for channel in self.channels:
            parts.i32(channel.a)
            parts.i32(channel.b)
            parts.i64(channel.size)
            parts.offsets(channel.offsets)
        return parts.getvalue()


ChannelHandle = SingleChannelHandle | MergedChannelHandle


def read_channels(cursor: Cursor, side: Side, version: int) -> tuple[ChannelHandle, ...]:
    """The handles of one side of a subtask, in file order."""
    tagged = version >= FIRST_TAGGED_VERSION
    number = cursor.count(f"{side} channel handles", _SMALLEST_MERGED if tagged else _SMALLEST_SINGLE, held=HELD + 16)
    if tagged:
        return tuple([_read_tagged(cursor, side) for _ in range(number)])
    return tuple([SingleChannelHandle.read(cursor) for _ in range(number)])


def write_channels(sink: Sink, handles: tuple[ChannelHandle, ...], side: Side, version: int) -> None:
    """The mirror of :func:`read_channels`; refuses merged handles in versions that cannot hold them."""
    sink.i32(len(handles))
    for handle in handles:
        if version >= FIRST_TAGGED_VERSION:
            sink.i8(handle.TAGS[side])
        elif isinstance(handle, MergedChannelHandle):
            raise Refused(
                f"_metadata version {version} cannot hold merged channel handles",
                hint=f"write version {FIRST_TAGGED_VERSION}, or one handle per channel",
            )
        handle.write(sink)


def _read_tagged(cursor: Cursor, side: Side) -> ChannelHandle:
    tag = cursor.i8()
    if tag == SingleChannelHandle.TAGS[side]:
        return SingleChannelHandle.read(cursor)
    if tag == MergedChannelHandle.TAGS[side]:
        return MergedChannelHandle.read(cursor)
    raise cursor.corrupt(f"{tag} is not the tag of an {side} channel handle", at=cursor.position - 1)


def _read_part(cursor: Cursor) -> MergedChannel:
    return MergedChannel(cursor.i32(), cursor.i32(), cursor.i64(), cursor.offsets("channel offsets"))
