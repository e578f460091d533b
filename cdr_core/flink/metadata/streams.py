"""Stream handles: the location of a piece of state. One class per tag, with both directions of its layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from cdr_core.flink.metadata.cursor import Cursor
from cdr_core.flink.metadata.offsets import Offsets
from cdr_core.flink.metadata.sink import Sink

NULL_TAG: Final = 0

SCOPE_EXCLUSIVE: Final = 0
SCOPE_SHARED: Final = 1


@dataclass(frozen=True, slots=True)
class InlineBytes:
    """The bytes themselves, under the name the file would have had."""

    TAG: ClassVar[int] = 1

    name: str
    data: bytes

    @classmethod
    def read(cls, cursor: Cursor, depth: int) -> InlineBytes:
        return cls(cursor.utf(), cursor.blob("inline state"))

    def write(self, sink: Sink) -> None:
        sink.utf(self.name)
        sink.blob(self.data)


@dataclass(frozen=True, slots=True)
class AbsoluteFile:
    """A file by its full URI. ``size`` is -1 where the file system could not tell."""

    TAG: ClassVar[int] = 2

    path: str
    size: int

    @classmethod
    def read(cls, cursor: Cursor, depth: int) -> AbsoluteFile:
        size = cursor.i64()
        return cls(cursor.utf(), size)

    def write(self, sink: Sink) -> None:
        sink.i64(self.size)
        sink.utf(self.path)


@dataclass(frozen=True, slots=True)
class RelativeFile:
    """A file in the directory of the ``_metadata`` that names it. ``size`` as in :class:`AbsoluteFile`."""

    TAG: ClassVar[int] = 6

    path: str
    size: int

    @classmethod
    def read(cls, cursor: Cursor, depth: int) -> RelativeFile:
        return cls(cursor.utf(), cursor.i64())

    def write(self, sink: Sink) -> None:
        sink.utf(self.path)
        sink.i64(self.size)


@dataclass(frozen=True, slots=True)
class KeyGroupStream:
    """Key groups nested where a stream is expected: ``offsets`` has one entry per key group from ``start``."""

    TAG: ClassVar[int] = 3

    start: int
    offsets: Offsets
    delegate: StreamHandle | None

    @classmethod
    def read(cls, cursor: Cursor, depth: int) -> KeyGroupStream:
        return cls(cursor.natural("the first key group"), cursor.offsets("key groups"), read_stream(cursor, depth))

    def write(self, sink: Sink) -> None:
        sink.i32(self.start)
        sink.offsets(self.offsets)
        write_stream(sink, self.delegate)


@dataclass(frozen=True, slots=True)
class FileSegment:
    """``length`` bytes from ``start`` of a physical file that holds several logical ones (file merging)."""

    TAG: ClassVar[int] = 15

    start: int
    length: int
    scope: int
    path: str
    logical_id: str

    @classmethod
    def read(cls, cursor: Cursor, depth: int) -> FileSegment:
        at = cursor.position
        start, length, scope = cursor.i64(), cursor.i64(), cursor.i32()
        if start < 0 or length < 0:
            raise cursor.corrupt(f"a segment starts at {start} and has {length} bytes", at=at)
        if scope not in (SCOPE_EXCLUSIVE, SCOPE_SHARED):
            raise cursor.corrupt(f"the scope of a segment is {scope}", at=at + 16)
        return cls(start, length, scope, cursor.utf(), cursor.utf())

    def write(self, sink: Sink) -> None:
        sink.i64(self.start)
        sink.i64(self.length)
        sink.i32(self.scope)
        sink.utf(self.path)
        sink.utf(self.logical_id)


@dataclass(frozen=True, slots=True)
class EmptySegment:
    """A segment without bytes, in no file."""

    TAG: ClassVar[int] = 16

    @classmethod
    def read(cls, cursor: Cursor, depth: int) -> EmptySegment:
        return EMPTY_SEGMENT

    def write(self, sink: Sink) -> None:
        """Write nothing: the tag is the whole handle."""


EMPTY_SEGMENT: Final = EmptySegment()

StreamHandle = InlineBytes | AbsoluteFile | RelativeFile | KeyGroupStream | FileSegment | EmptySegment

_READERS: Final[dict[int, Callable[[Cursor, int], StreamHandle]]] = {
    InlineBytes.TAG: InlineBytes.read,
    AbsoluteFile.TAG: AbsoluteFile.read,
    RelativeFile.TAG: RelativeFile.read,
    KeyGroupStream.TAG: KeyGroupStream.read,
    FileSegment.TAG: FileSegment.read,
    EmptySegment.TAG: EmptySegment.read,
}

HELD: Final = 72
"""Bytes of memory a handle takes by itself, without its strings and numbers."""


def read_stream(cursor: Cursor, depth: int = 0) -> StreamHandle | None:
    """Return the next stream handle; ``None`` is Flink's null handle."""
    tag = cursor.i8()
    if tag == NULL_TAG:
        return None
    reader = _READERS.get(tag)
    if reader is None:
        raise cursor.corrupt(f"{tag} is not the tag of a stream handle", at=cursor.position - 1)
    cursor.charge(HELD)
    return reader(cursor, cursor.deeper(depth))


def write_stream(sink: Sink, handle: StreamHandle | None) -> None:
    """Write a handle so that :func:`read_stream` returns it."""
    if handle is None:
        sink.i8(NULL_TAG)
        return
    sink.i8(handle.TAG)
    handle.write(sink)
