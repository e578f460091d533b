"""Reads the state of a source checkpoint in place; see :class:`cdr_core.flink.state.Read`."""

from __future__ import annotations

from contextlib import suppress

from cdr_core.errors import CdrError, Where
from cdr_core.flink.checkpoint import Checkpoint, FileLocation
from cdr_core.flink.metadata import IdentifiedIncremental, Incremental, KeyedHandle, OperatorState, SubtaskState
from cdr_core.flink.state import StateFile
from cdr_core.flink.state.changelog_bundle import parts_of
from cdr_core.flink.state.serializers import KeyedHead, read_head
from cdr_core.flink.state.snapshots import LONGEST_HEAD, FullHandle, Snapshot
from cdr_core.flink.state.streams import Stream
from cdr_core.storage import storage_for

NO_HEAD = KeyedHead(None, ())
MOST_TRIED = 8
"""Subtasks whose files are tried; where so many are missing, the others are too."""


class StateReader:
    """Reads files of state and counts their bytes."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._sizes: dict[str, int] = {}
        self.bytes = 0

    def __call__(self, handle: StateFile, offset: int, length: int) -> bytes:
        location = self._checkpoint.resolve(handle)
        assert isinstance(location, FileLocation), "state in files"
        storage = storage_for(location.uri)
        if location.uri not in self._sizes:
            self._sizes[location.uri] = storage.size(location.uri)
        end = self._sizes[location.uri]
        if location.length is not None:
            end = min(end, location.base + location.length)
        there = max(min(length, end - location.base - offset), 0)
        self.bytes += there
        return storage.read(location.uri, location.base + offset, there) if there else b""


def keyed_head(checkpoint: Checkpoint, operator: OperatorState) -> KeyedHead:
    """Return the head of the first keyed snapshot of an operator that can be read; an empty one where there is none.

    Every subtask writes the same key serializer. Files that are missing decide nothing: in-flight records are recovered
    without them.
    """
    read = StateReader(checkpoint)
    keyed = [each for each in operator.subtasks if isinstance(each, SubtaskState) and each.managed_keyed is not None]
    for subtask in keyed[:MOST_TRIED]:
        where = Where(operator=operator.label, subtask=subtask.index)
        for part in parts_of([subtask.managed_keyed] if subtask.managed_keyed is not None else []):
            with suppress(CdrError):
                if (head := _head(part, read, where)) is not None:
                    return head
    return NO_HEAD


def _head(part: KeyedHandle, read: StateReader, where: Where) -> KeyedHead | None:
    if isinstance(part, FullHandle):
        return read_head(Snapshot(part, read, where).head())
    if isinstance(part, Incremental | IdentifiedIncremental):
        meta = Stream(part.meta, read, where)
        return read_head(meta.all(0, meta.size)) if meta.size <= LONGEST_HEAD else None
    return None
