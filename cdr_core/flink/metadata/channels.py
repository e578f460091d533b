"""Channel-state handles: the chunks of a file that are the in-flight data of a channel."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

import numpy as np

from cdr_core.errors import Refused
from cdr_core.flink.metadata.cursor import Cursor
from cdr_core.flink.metadata.offsets import Offsets
from cdr_core.flink.metadata.packed import Layout, Packed
from cdr_core.flink.metadata.sink import Sink
from cdr_core.flink.metadata.streams import StreamHandle, read_stream, write_stream
from cdr_core.kernels.handles import add_tags, end_of_handles, end_of_parts, remove_tags

FIRST_TAGGED_VERSION: Final = 6

KERNELS_FROM: Final = 1 << 20
"""Bytes of ``_metadata``. Loading the kernels takes almost a second, and Python reads smaller files in less."""

KERNELS_FROM_HANDLES: Final = 64
"""Handles of one side of a subtask that is written: fewer are written by Python."""

_SMALLEST_SINGLE: Final = 4 * 4 + 8 + 1
_SMALLEST_MERGED: Final = 1 + 4 + 8 + 1 + 4 + 4
_SMALLEST_PART: Final = 4 + 4 + 8 + 4
_SINGLE: Final = struct.Struct(">iii")
_PART: Final = struct.Struct(">iiq")


class Side(StrEnum):
    """Side whose buffers are stored: those waiting at a gate, or those waiting in a result partition."""

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
        subtask, a, b = cursor.numbers(_SINGLE)
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

    @classmethod
    def read(cls, cursor: Cursor) -> MergedChannel:
        a, b, size = cursor.numbers(_PART)
        return cls(a, b, size, cursor.offsets("channel offsets"))

    @staticmethod
    def check(cursor: Cursor) -> None:
        """Check that the offsets are there; any numbers are legal."""
        cursor.skip(_PART.size)
        cursor.skip(8 * cursor.count("channel offsets", 8))

    def write(self, sink: Sink) -> None:
        sink.i32(self.a)
        sink.i32(self.b)
        sink.i64(self.size)
        sink.offsets(self.offsets)


def _leap_parts(cursor: Cursor, count: int) -> bool:
    if not count or cursor.size < KERNELS_FROM:
        return False
    return cursor.leap(end_of_parts(cursor.array, cursor.position, count, cursor.room))


_PARTS: Final = Layout(
    "merged channels", _SMALLEST_PART, MergedChannel.read, MergedChannel.write, MergedChannel.check, _leap_parts
)


@dataclass(frozen=True, slots=True)
class MergedChannelHandle:
    """All channels of one subtask in one stream; only version 6 and later has it. ``size`` is their total."""

    TAGS: ClassVar[dict[Side, int]] = {Side.INPUT: 3, Side.OUTPUT: 4}

    subtask: int
    size: int
    delegate: StreamHandle | None
    channels: Sequence[MergedChannel]

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", Packed.of(_PARTS, self.channels))

    @classmethod
    def read(cls, cursor: Cursor) -> MergedChannelHandle:
        subtask, size, delegate = cursor.i32(), cursor.i64(), read_stream(cursor)
        length = cursor.count("bytes of merged channels", 1, held=-8)
        start = cursor.position
        channels = Packed.read(_PARTS, cursor)
        taken = cursor.position - start
        if taken != length:
            raise cursor.corrupt(f"merged channels take {taken} bytes, announced are {length}", at=start)
        return cls(subtask, size, delegate, channels)

    def write(self, sink: Sink) -> None:
        sink.i32(self.subtask)
        sink.i64(self.size)
        write_stream(sink, self.delegate)
        parts = Sink()
        Packed.of(_PARTS, self.channels).write(parts)
        sink.blob(parts.getvalue())


ChannelHandle = SingleChannelHandle | MergedChannelHandle


def _layout(side: Side) -> Layout[ChannelHandle]:
    def read(cursor: Cursor) -> ChannelHandle:
        tag = cursor.i8()
        if tag == SingleChannelHandle.TAGS[side]:
            return SingleChannelHandle.read(cursor)
        if tag == MergedChannelHandle.TAGS[side]:
            return MergedChannelHandle.read(cursor)
        raise cursor.corrupt(f"{tag} is not the tag of an {side} channel handle", at=cursor.position - 1)

    def write(handle: ChannelHandle, sink: Sink) -> None:
        sink.i8(handle.TAGS[side])
        handle.write(sink)

    def leap(cursor: Cursor, count: int) -> bool:
        return _leap(cursor, count, side, tagged=True)

    return Layout(f"{side} channel handles", _SMALLEST_MERGED, read, write, read, leap)


def _leap(cursor: Cursor, count: int, side: Side, *, tagged: bool) -> bool:
    """Step over handles with a kernel, which knows the common ones."""
    if not count or cursor.size < KERNELS_FROM:
        return False
    single, merged = SingleChannelHandle.TAGS[side], MergedChannelHandle.TAGS[side]
    place = (cursor.array, cursor.position, count)
    return cursor.leap(end_of_handles(*place, single, merged, tagged, cursor.room, np.zeros(2, np.int64)))


_HANDLES: Final = {side: _layout(side) for side in Side}


def pack_channels(handles: Iterable[ChannelHandle], side: Side) -> Sequence[ChannelHandle]:
    """Return the handles of one side of a subtask, small in memory; equal if the handles are, whatever
    their version.
    """
    return Packed.of(_HANDLES[side], handles)


def packed_handles(side: Side, count: int, raw: bytes) -> Sequence[ChannelHandle]:
    """Return handles from their bytes, each behind its tag, which the caller guarantees."""
    return Packed(_HANDLES[side], count, raw)


def read_channels(cursor: Cursor, side: Side, version: int) -> Sequence[ChannelHandle]:
    """Return the handles of one side of a subtask, in file order."""
    layout = _HANDLES[side]
    if version >= FIRST_TAGGED_VERSION:
        return Packed.read(layout, cursor)
    number = cursor.count(layout.what, _SMALLEST_SINGLE)
    start = cursor.position
    if _leap(cursor, number, side, tagged=False):
        cursor.charge(number + cursor.position - start)
        copied = np.empty(number + cursor.position - start, np.uint8)
        add_tags(cursor.array, start, number, SingleChannelHandle.TAGS[side], copied)
        return Packed(layout, number, copied.tobytes())
    room, tagged = cursor.room, Sink()
    for _ in range(number):
        layout.write(SingleChannelHandle.read(cursor), tagged)
        # As in Packed.read only the bytes are kept.
        cursor.room = room
    packed = tagged.getvalue()
    cursor.charge(len(packed))
    return Packed(layout, number, packed)


def write_channels(sink: Sink, handles: Sequence[ChannelHandle], side: Side, version: int) -> None:
    """Write handles so that :func:`read_channels` returns them; refuse merged handles in versions that cannot hold
    them.
    """
    if version >= FIRST_TAGGED_VERSION:
        Packed.of(_HANDLES[side], handles).write(sink)
        return
    sink.i32(len(handles))
    packed = Packed.of(_HANDLES[side], handles)
    if len(packed) >= KERNELS_FROM_HANDLES:
        untagged = np.empty(len(packed.encoded) - len(packed), np.uint8)
        tag = SingleChannelHandle.TAGS[side]
        if remove_tags(np.frombuffer(packed.encoded, np.uint8), len(packed), tag, untagged):
            sink.raw(untagged.tobytes())
            return
    for handle in packed:
        if isinstance(handle, MergedChannelHandle):
            raise Refused(
                f"_metadata version {version} cannot hold merged channel handles",
                hint=f"write version {FIRST_TAGGED_VERSION}, or one handle per channel",
            )
        handle.write(sink)
