"""Keyed-state handles of the changelog backend, and the choice among all keyed handles by tag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from cdr_core.flink.metadata.cursor import Cursor
from cdr_core.flink.metadata.keyed import (
    IdentifiedIncremental,
    IdentifiedKeyGroups,
    Incremental,
    KeyGroupRange,
    KeyGroups,
    SavepointKeyGroups,
)
from cdr_core.flink.metadata.sink import Sink
from cdr_core.flink.metadata.streams import StreamHandle, read_stream, write_stream

_NULL_TAG: Final = 0
_HELD: Final = 112
_SMALLEST_CHANGE: Final = 8
_SMALLEST_CHANGE_STREAM: Final = 9


@dataclass(frozen=True, slots=True)
class Changelog:
    """A materialised snapshot plus the changes since (1.14 and 1.15)."""

    TAG: ClassVar[int] = 8

    key_groups: KeyGroupRange
    checkpointed_size: int
    materialized: tuple[KeyedHandle | None, ...]
    changes: tuple[KeyedHandle | None, ...]
    materialization_id: int
    handle_id: str

    @classmethod
    def read(cls, cursor: Cursor, depth: int) -> Self:
        key_groups, size = KeyGroupRange.read(cursor), cursor.i64()
        materialized, changes = _read_handles(cursor, depth), _read_handles(cursor, depth)
        return cls(key_groups, size, materialized, changes, cursor.i64(), cursor.utf())

    def write(self, sink: Sink) -> None:
        self.key_groups.write(sink)
        sink.i64(self.checkpointed_size)
        _write_handles(sink, self.materialized)
        _write_handles(sink, self.changes)
        sink.i64(self.materialization_id)
        sink.utf(self.handle_id)


@dataclass(frozen=True, slots=True)
class CheckpointedChangelog:
    """As :class:`Changelog`, with the id of the checkpoint (since 1.16)."""

    TAG: ClassVar[int] = 14

    key_groups: KeyGroupRange
    checkpointed_size: int
    materialized: tuple[KeyedHandle | None, ...]
    changes: tuple[KeyedHandle | None, ...]
    materialization_id: int
    checkpoint_id: int
    handle_id: str

    @classmethod
    def read(cls, cursor: Cursor, depth: int) -> Self:
        key_groups, size = KeyGroupRange.read(cursor), cursor.i64()
        materialized, changes = _read_handles(cursor, depth), _read_handles(cursor, depth)
        return cls(key_groups, size, materialized, changes, cursor.i64(), cursor.i64(), cursor.utf())

    def write(self, sink: Sink) -> None:
        self.key_groups.write(sink)
        sink.i64(self.checkpointed_size)
        _write_handles(sink, self.materialized)
        _write_handles(sink, self.changes)
        sink.i64(self.materialization_id)
        sink.i64(self.checkpoint_id)
        sink.utf(self.handle_id)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one key group, in memory."""

    key_group: int
    data: bytes


@dataclass(frozen=True, slots=True)
class MemoryChanges:
    """Changes kept in the handle itself; sequence numbers ``first`` to ``last`` as Flink counts them."""

    TAG: ClassVar[int] = 9

    key_groups: KeyGroupRange
    first: int
    last: int
    changes: tuple[Change, ...]
    handle_id: str

    @classmethod
    def read(cls, cursor: Cursor, depth: int) -> Self:
        key_groups, first, last = KeyGroupRange.read(cursor), cursor.i64(), cursor.i64()
        number = cursor.count("changes", _SMALLEST_CHANGE, held=_HELD)
        changes = tuple([Change(cursor.i32(), cursor.blob("a change")) for _ in range(number)])
        return cls(key_groups, first, last, changes, cursor.utf())

    def write(self, sink: Sink) -> None:
        self.key_groups.write(sink)
        sink.i64(self.first)
        sink.i64(self.last)
        sink.i32(len(self.changes))
        for change in self.changes:
            sink.i32(change.key_group)
            sink.blob(change.data)
        sink.utf(self.handle_id)


@dataclass(frozen=True, slots=True)
class ChangeStream:
    """A file of changes, and the offset at which they start in it."""

    offset: int
    handle: StreamHandle | None


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Changes in files (1.14 and 1.15)."""

    TAG: ClassVar[int] = 10

    key_groups: KeyGroupRange
    streams: tuple[ChangeStream, ...]
    size: int
    checkpointed_size: int
    handle_id: str

    @classmethod
    def read(cls, cursor: Cursor, depth: int) -> Self:
        key_groups, streams = KeyGroupRange.read(cursor), _read_streams(cursor, depth)
        return cls(key_groups, streams, cursor.i64(), cursor.i64(), cursor.utf())

    def write(self, sink: Sink) -> None:
        self.key_groups.write(sink)
        _write_streams(sink, self.streams)
        sink.i64(self.size)
        sink.i64(self.checkpointed_size)
        sink.utf(self.handle_id)


@dataclass(frozen=True, slots=True)
class StoredFileChanges:
    """As :class:`FileChanges`, with the kind of storage that can read them (since 1.16)."""

    TAG: ClassVar[int] = 13

    key_groups: KeyGroupRange
    streams: tuple[ChangeStream, ...]
    size: int
    checkpointed_size: int
    handle_id: str
    storage_id: str

    @classmethod
    def read(cls, cursor: Cursor, depth: int) -> Self:
        key_groups, streams = KeyGroupRange.read(cursor), _read_streams(cursor, depth)
        return cls(key_groups, streams, cursor.i64(), cursor.i64(), cursor.utf(), cursor.utf())

    def write(self, sink: Sink) -> None:
        self.key_groups.write(sink)
        _write_streams(sink, self.streams)
        sink.i64(self.size)
        sink.i64(self.checkpointed_size)
        sink.utf(self.handle_id)
        sink.utf(self.storage_id)


KeyedHandle = (
    KeyGroups
    | SavepointKeyGroups
    | IdentifiedKeyGroups
    | Incremental
    | IdentifiedIncremental
    | Changelog
    | CheckpointedChangelog
    | MemoryChanges
    | FileChanges
    | StoredFileChanges
)

_READERS: Final[dict[int, Callable[[Cursor, int], KeyedHandle]]] = {
    KeyGroups.TAG: KeyGroups.read,
    SavepointKeyGroups.TAG: SavepointKeyGroups.read,
    IdentifiedKeyGroups.TAG: IdentifiedKeyGroups.read,
    Incremental.TAG: Incremental.read,
    IdentifiedIncremental.TAG: IdentifiedIncremental.read,
    Changelog.TAG: Changelog.read,
    CheckpointedChangelog.TAG: CheckpointedChangelog.read,
    MemoryChanges.TAG: MemoryChanges.read,
    FileChanges.TAG: FileChanges.read,
    StoredFileChanges.TAG: StoredFileChanges.read,
}


def read_keyed(cursor: Cursor, depth: int = 0) -> KeyedHandle | None:
    """Return the next keyed handle; ``None`` where there is no keyed state."""
    tag = cursor.i8()
    if tag == _NULL_TAG:
        return None
    reader = _READERS.get(tag)
    if reader is None:
        raise cursor.corrupt(f"{tag} is not the tag of a keyed-state handle", at=cursor.position - 1)
    cursor.charge(_HELD)
    return reader(cursor, cursor.deeper(depth))


def write_keyed(sink: Sink, handle: KeyedHandle | None) -> None:
    """Write a handle so that :func:`read_keyed` returns it."""
    if handle is None:
        sink.i8(_NULL_TAG)
        return
    sink.i8(handle.TAG)
    handle.write(sink)


def _read_handles(cursor: Cursor, depth: int) -> tuple[KeyedHandle | None, ...]:
    number = cursor.count("keyed handles in a changelog", 1)
    return tuple([read_keyed(cursor, depth) for _ in range(number)])


def _write_handles(sink: Sink, handles: tuple[KeyedHandle | None, ...]) -> None:
    sink.i32(len(handles))
    for handle in handles:
        write_keyed(sink, handle)


def _read_streams(cursor: Cursor, depth: int) -> tuple[ChangeStream, ...]:
    number = cursor.count("files of changes", _SMALLEST_CHANGE_STREAM, held=_HELD)
    return tuple([ChangeStream(cursor.i64(), read_stream(cursor, depth)) for _ in range(number)])


def _write_streams(sink: Sink, streams: tuple[ChangeStream, ...]) -> None:
    sink.i32(len(streams))
    for stream in streams:
        sink.i64(stream.offset)
        write_stream(sink, stream.handle)
