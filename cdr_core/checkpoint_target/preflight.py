"""Checks before a checkpoint is re-written: the refusals, and the files that it will need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdr_core.channels.state_source import StateReader
from cdr_core.checkpoint_target.file_presence import Found, look_for, missing_of
from cdr_core.checkpoint_target.state_migration import has_state
from cdr_core.errors import PlanRefused, Where
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.metadata import FileSegment, InlineBytes, OperatorState, RelativeFile, StreamHandle
from cdr_core.flink.metadata.versions import OLDEST_WRITTEN
from cdr_core.flink.state import StateFile, blocks, files_behind, redistribute
from cdr_core.flink.state.streams import COMPLETE


@dataclass(slots=True)
class Fates:
    """Treatment of state files: the sizes by name of copied and of merged ones, and the presence of those outside that
    the new checkpoint will need.
    """

    copied: dict[str, int] = field(default_factory=dict)
    merged: dict[str, int] = field(default_factory=dict)
    outside: dict[str, Found] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "copied_files": len(self.copied),
            "copied_bytes": sum(self.copied.values()),
            "merged_files": len(self.merged),
            "merged_bytes": sum(self.merged.values()),
            "depends_on": sorted(self.outside),
            **missing_of(self.outside),
        }


def blocked(checkpoint: Checkpoint, parallelism: Mapping[str, int]) -> tuple[PlanRefused, ...]:
    """Return every refusal, with the operator's name and a hint."""
    return examine(checkpoint, parallelism)[0]


def examine(checkpoint: Checkpoint, parallelism: Mapping[str, int]) -> tuple[tuple[PlanRefused, ...], Fates]:
    """Return the same refusals, and the treatment of all other state.

    Every file is looked for; the heads of those that would be merged are read, and nothing else.
    """
    version = checkpoint.metadata.version
    refusals: list[PlanRefused] = []
    if version < OLDEST_WRITTEN:
        what = f"its _metadata has version {version}, and none below {OLDEST_WRITTEN} is written"
        refusals.append(PlanRefused(what, hint="recover to a table"))
    fates = Fates()
    found = look_for(checkpoint, (file for each in checkpoint.metadata.operators for file in files_behind(each)))
    for operator in checkpoint.metadata.operators:
        refusals += _operator(checkpoint, operator, parallelism[operator.operator_id], found, fates)
    return tuple(refusals), fates


def _operator(
    checkpoint: Checkpoint, operator: OperatorState, parallelism: int, found: Mapping[StateFile, Found], fates: Fates
) -> list[PlanRefused]:
    files, version, read = files_behind(operator), checkpoint.metadata.version, StateReader(checkpoint)
    gone = [file for file in files if isinstance(file, RelativeFile) and found[file].gone]
    # Missing files have no readable heads either: only the files are reported.
    reasons = blocks(operator, parallelism, version=version, read=None if gone else read)
    refusals = [PlanRefused(each.why, where=Where(operator=each.operator), hint=each.way_out) for each in reasons]
    if gone:
        return [_without(operator, gone, found), *refusals]
    if refusals or not has_state(operator):
        return refusals
    kept = _kept(checkpoint, operator, parallelism, read)
    merged = [file for file in files if file not in kept]
    fates.copied |= {file.path: found[file].size for file in kept if isinstance(file, RelativeFile)}
    fates.outside |= {file.path: found[file] for file in kept if not isinstance(file, RelativeFile)}
    for file in merged:
        size = file.length if isinstance(file, FileSegment) else found[file].size
        fates.merged[file.path] = fates.merged.get(file.path, 0) + size
    unmerged = [file for file in merged if found[file].gone]
    return [_without(operator, unmerged, found)] if unmerged else []


def _kept(checkpoint: Checkpoint, operator: OperatorState, parallelism: int, read: StateReader) -> frozenset[StateFile]:
    """Return the old files that the new state would still be in; the contents of the others are merged into
    new ones.
    """
    metadata = checkpoint.metadata
    states = redistribute(
        operator, parallelism, read, _unwritten, version=metadata.version, checkpoint_id=metadata.checkpoint_id
    )
    return frozenset(files_behind(replace(operator, parallelism=parallelism, subtasks=states)))


def _unwritten(name: str, chunks: Iterable[bytes]) -> StreamHandle:
    """Return a handle without writing. Chunks are read when they are taken, so nothing is read."""
    return InlineBytes(name, b"")


def _without(operator: OperatorState, gone: Sequence[StateFile], found: Mapping[StateFile, Found]) -> PlanRefused:
    more = f", one of {len(gone)} such files" if len(gone) > 1 else ""
    what = f"the state file {gone[0].path} is {found[gone[0]].presence}{more}"
    return PlanRefused(what, where=Where(operator=operator.label), hint=COMPLETE)
