"""Keyed-state handles: key groups and incremental snapshots. Those of the changelog backend are in ``changelog``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from cdr_core.flink.metadata.cursor import Cursor
from cdr_core.flink.metadata.offsets import Offsets
from cdr_core.flink.metadata.packed import Layout, Packed
from cdr_core.flink.metadata.sink import Sink
from cdr_core.flink.metadata.streams import StreamHandle, read_stream, write_stream

_SMALLEST_FILE: Final = 3
_HELD: Final = 56


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """``count`` key groups from ``start``; both are at least 0, a count of 0 is the empty range."""

    start: int
    count: int

    @classmethod
    def read(cls, cursor: Cursor) -> KeyGroupRange:
        cursor.charge(_HELD)
        return cls(cursor.natural("the first key group"), cursor.natural("the number of key groups"))

    def write(self, sink: Sink) -> None:
        sink.i32(self.start)
        sink.i32(self.count)


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """A full snapshot (before 1.15): ``offsets`` has one entry per key group from ``start``, not always ascending."""

    TAG: ClassVar[int] = 3

    start: int
    offsets: Offsets
    delegate: StreamHandle | None

    @classmethod
    def read(cls, cursor: Cursor, depth: int) -> Self:
        start = cursor.natural("the first key group")
        return cls(start, cursor.offsets("key groups"), read_stream(cursor, depth))

    def write(self, sink: Sink) -> None:
        sink.i32(self.start)
        sink.offsets(self.offsets)
        write_stream(sink, self.delegate)


@dataclass(frozen=True, slots=True)
class SavepointKeyGroups(KeyGroups):
    """The same layout, in the format that every state backend reads (canonical savepoints)."""

    TAG: ClassVar[int] = 7


@dataclass(frozen=True, slots=True)
class IdentifiedKeyGroups:
    """A full snapshot since 1.15: with the id of the handle."""

    TAG: ClassVar[int] = 12

    start: int
    offsets: Offsets
    delegate: StreamHandle | None
    handle_id: str

    @classmethod
    def read(cls, cursor: Cursor, depth: int) -> Self:
        start = cursor.natural("the first key group")
        return cls(start, cursor.offsets("key groups"), read_stream(cursor, depth), cursor.utf())

    def write(self, sink: Sink) -> None:
        sink.i32(self.start)
        sink.offsets(self.offsets)
        write_stream(sink, self.delegate)
        sink.utf(self.handle_id)


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of an incremental snapshot: its name in the backend's directory and where its bytes are."""

    local_path: str
    handle: StreamHandle | None

    @classmethod
    def read(cls, cursor: Cursor) -> LocalFile:
        return cls(cursor.utf(), read_stream(cursor))

    def write(self, sink: Sink) -> None:
        sink.utf(self.local_path)
        write_stream(sink, self.handle)


_FILES: Final = Layout(
    "files of an incremental snapshot", _SMALLEST_FILE, LocalFile.read, LocalFile.write, LocalFile.read
)


@dataclass(frozen=True, slots=True)
class Incremental:
    """An incremental snapshot (before 1.15): files shared with other checkpoints, and private ones."""

    TAG: ClassVar[int] = 5

    checkpoint_id: int
    backend_id: str
    key_groups: KeyGroupRange
    meta: StreamHandle | None
    shared: Sequence[LocalFile]
    private: Sequence[LocalFile]

    def __post_init__(self) -> None:
        _pack_files(self)

    @classmethod
    def read(cls, cursor: Cursor, depth: int) -> Self:
        checkpoint_id, backend_id, key_groups = cursor.i64(), cursor.utf(), KeyGroupRange.read(cursor)
        meta = read_stream(cursor, depth)
        shared, private = Packed.read(_FILES, cursor), Packed.read(_FILES, cursor)
        return cls(checkpoint_id, backend_id, key_groups, meta, shared, private)

    def write(self, sink: Sink) -> None:
        sink.i64(self.checkpoint_id)
        sink.utf(self.backend_id)
        self.key_groups.write(sink)
        write_stream(sink, self.meta)
        Packed.of(_FILES, self.shared).write(sink)
        Packed.of(_FILES, self.private).write(sink)


@dataclass(frozen=True, slots=True)
class IdentifiedIncremental:
    """An incremental snapshot since 1.15: with the bytes this checkpoint added and the id of the handle."""

    TAG: ClassVar[int] = 11

    checkpoint_id: int
    backend_id: str
    key_groups: KeyGroupRange
    checkpointed_size: int
    meta: StreamHandle | None
    shared: Sequence[LocalFile]
    private: Sequence[LocalFile]
    handle_id: str

    def __post_init__(self) -> None:
        _pack_files(self)

    @classmethod
    def read(cls, cursor: Cursor, depth: int) -> Self:
        checkpoint_id, backend_id, key_groups = cursor.i64(), cursor.utf(), KeyGroupRange.read(cursor)
        size, meta = cursor.i64(), read_stream(cursor, depth)
        shared, private = Packed.read(_FILES, cursor), Packed.read(_FILES, cursor)
        return cls(checkpoint_id, backend_id, key_groups, size, meta, shared, private, cursor.utf())

    def write(self, sink: Sink) -> None:
        sink.i64(self.checkpoint_id)
        sink.utf(self.backend_id)
        self.key_groups.write(sink)
        sink.i64(self.checkpointed_size)
        write_stream(sink, self.meta)
        Packed.of(_FILES, self.shared).write(sink)
        Packed.of(_FILES, self.private).write(sink)
        sink.utf(self.handle_id)


def _pack_files(handle: Incremental | IdentifiedIncremental) -> None:
    """Pack the lists: equal handles must hold equal lists, in whatever form they were given."""
    object.__setattr__(handle, "shared", Packed.of(_FILES, handle.shared))
    object.__setattr__(handle, "private", Packed.of(_FILES, handle.private))
