"""Several keyed snapshots as the state of one subtask.

``_metadata`` has room for one keyed handle per subtask. One kind of handle is a list of others: that of the changelog
backend, a materialised snapshot in any number of parts plus changes since. Since 1.16 every Flink restores it, also
with the changelog switched off, by giving the backend all the parts, exactly as if it were rescaling by itself. So
snapshots whose bytes cannot be merged (SST files) can still serve a subtask together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from cdr_core.flink.metadata import (
    Changelog,
    CheckpointedChangelog,
    FileChanges,
    IdentifiedIncremental,
    IdentifiedKeyGroups,
    Incremental,
    KeyedHandle,
    KeyGroupRange,
    KeyGroups,
    MemoryChanges,
    Offsets,
    StoredFileChanges,
)

OLDEST_BUNDLE: Final = 4
"""Version of the metadata of Flink 1.16."""

_OF_ALL_GROUPS: Final = -1
"""Flink's key group of a change that is about a state as a whole: its name and serializers."""


def range_of(handle: KeyedHandle) -> tuple[int, int]:
    """Return the first and last key group of a handle, both inclusive."""
    match handle:
        case KeyGroups() | IdentifiedKeyGroups():
            return handle.start, handle.start + len(handle.offsets) - 1
        case _:
            return handle.key_groups.start, handle.key_groups.start + handle.key_groups.count - 1


def overlapping(handles: Sequence[KeyedHandle], first: int, last: int) -> list[KeyedHandle]:
    """Return the handles with a key group from ``first`` to ``last``, by their ranges."""
    here = [each for each in handles if range_of(each)[0] <= last and first <= range_of(each)[1]]
    return sorted(here, key=range_of)


def parts_of(handles: Sequence[KeyedHandle]) -> Iterator[KeyedHandle]:
    """Yield the snapshots among these, those inside of changelogs too; changes are none."""
    for handle in handles:
        match handle:
            case Changelog() | CheckpointedChangelog():
                yield from parts_of([each for each in handle.materialized if each is not None])
            case _:
                yield handle


def bundle(
    handles: Sequence[KeyedHandle], first: int, last: int, *, checkpoint_id: int, handle_id: str
) -> CheckpointedChangelog:
    """Return one handle that stands for all of these, as far as key groups ``first`` to ``last`` go."""
    materialized: list[KeyedHandle] = []
    changes: list[KeyedHandle] = []
    materialization = 0
    for handle in handles:
        match handle:
            case Changelog() | CheckpointedChangelog():
                materialized += _cut_all(handle.materialized, first, last)
                changes += _cut_all(handle.changes, first, last)
                materialization = max(materialization, handle.materialization_id)
            case _:
                materialized += _cut_all([handle], first, last)
    return CheckpointedChangelog(
        key_groups=KeyGroupRange(first, last - first + 1),
        checkpointed_size=0,
        materialized=tuple(dict.fromkeys(materialized)),  # one that was cut before may come from two bundles
        changes=tuple(dict.fromkeys(changes)),
        materialization_id=materialization,
        checkpoint_id=checkpoint_id,
        handle_id=handle_id,
    )


def _cut_all(handles: Sequence[KeyedHandle | None], first: int, last: int) -> list[KeyedHandle]:
    return [_cut(each, first, last) for each in overlapping([each for each in handles if each], first, last)]


def _cut(handle: KeyedHandle, first: int, last: int) -> KeyedHandle:
    """Return the same state, reduced to these key groups as far as its kind can be divided.

    Flink's own rules: a full snapshot is cut; an incremental one stays whole, and the backend clips it; of changes,
    those of other key groups are skipped when they are applied.
    """
    start, end = max(first, range_of(handle)[0]), min(last, range_of(handle)[1])
    match handle:
        case KeyGroups() | IdentifiedKeyGroups():
            offsets = handle.offsets.numpy()[start - handle.start : end - handle.start + 1]
            return replace(handle, start=start, offsets=Offsets.of(offsets))
        case FileChanges() | StoredFileChanges():
            return replace(handle, key_groups=KeyGroupRange(start, end - start + 1))
        case MemoryChanges():
            kept = [c for c in handle.changes if c.key_group == _OF_ALL_GROUPS or start <= c.key_group <= end]
            return replace(handle, key_groups=KeyGroupRange(start, end - start + 1), changes=tuple(kept))
        case Incremental() | IdentifiedIncremental() | Changelog() | CheckpointedChangelog():
            return handle
