"""The files of an operator's state: those to copy when ``_metadata`` moves, and those it depends on."""

from __future__ import annotations

from collections.abc import Iterator

from cdr_core.flink.metadata import (
    AbsoluteFile,
    Changelog,
    CheckpointedChangelog,
    FileChanges,
    FileSegment,
    FinishedSubtask,
    IdentifiedIncremental,
    IdentifiedKeyGroups,
    Incremental,
    KeyedHandle,
    KeyGroups,
    KeyGroupStream,
    MemoryChanges,
    NullOperatorState,
    OperatorHandle,
    OperatorState,
    RelativeFile,
    StoredFileChanges,
    StreamHandle,
    SubtaskState,
)
from cdr_core.flink.state.streams import StateFile


def files_behind(operator: OperatorState) -> tuple[StateFile, ...]:
    """Return the files of an operator's state in the order of their first use, each once; channel state excluded.

    A relative one is in the checkpoint's directory and must be copied; an absolute one, or the file of a segment, stays
    where it is, and every ``_metadata`` that names it depends on it.
    """
    found: dict[StateFile, None] = {}
    for subtask in operator.subtasks:
        if not isinstance(subtask, FinishedSubtask):
            found.update(dict.fromkeys(_subtask(subtask)))
    return tuple(found)


def _subtask(subtask: SubtaskState) -> Iterator[StateFile]:
    yield from _operator(subtask.managed_operator)
    yield from _operator(subtask.raw_operator)
    yield from _keyed(subtask.managed_keyed)
    yield from _keyed(subtask.raw_keyed)


def _operator(handle: OperatorHandle | None) -> Iterator[StateFile]:
    if handle is not None and not isinstance(handle, NullOperatorState):
        yield from _stream(handle.delegate)


def _keyed(handle: KeyedHandle | None) -> Iterator[StateFile]:
    match handle:
        case None | MemoryChanges():
            return
        case KeyGroups() | IdentifiedKeyGroups():
            yield from _stream(handle.delegate)
        case Incremental() | IdentifiedIncremental():
            yield from _stream(handle.meta)
            for file in (*handle.shared, *handle.private):
                yield from _stream(file.handle)
        case Changelog() | CheckpointedChangelog():
            for inner in (*handle.materialized, *handle.changes):
                yield from _keyed(inner)
        case FileChanges() | StoredFileChanges():
            for change in handle.streams:
                yield from _stream(change.handle)


def _stream(handle: StreamHandle | None) -> Iterator[StateFile]:
    match handle:
        case RelativeFile() | AbsoluteFile() | FileSegment():
            yield handle
        case KeyGroupStream():
            yield from _stream(handle.delegate)
