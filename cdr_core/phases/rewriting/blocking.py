"""What forbids a re-written checkpoint, known before anything is done; and what it will take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdr_core.errors import PlanRefused, Where
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.metadata import RelativeFile
from cdr_core.flink.metadata.versions import OLDEST_WRITTEN
from cdr_core.flink.state import blocks, files_behind
from cdr_core.phases.rewriting.state import StateReader, has_state


def blocked(checkpoint: Checkpoint, parallelism: Mapping[str, int]) -> tuple[PlanRefused, ...]:
    """Every reason, with the operator's name and the way out. The heads of state files are looked into."""
    version, read = checkpoint.metadata.version, StateReader(checkpoint)
    found: list[PlanRefused] = []
    if version < OLDEST_WRITTEN:
        what = f"its _metadata has version {version}, and none below {OLDEST_WRITTEN} is written"
        found.append(PlanRefused(what, hint="recover to a table"))
    for operator in checkpoint.metadata.operators:
        found += [
            PlanRefused(block.why, where=Where(operator=block.operator), hint=block.way_out)
            for block in blocks(operator, parallelism[operator.operator_id], version=version, read=read)
        ]
    return tuple(found)


def outlook(checkpoint: Checkpoint, parallelism: Mapping[str, int]) -> dict[str, Any]:
    """What becomes of other state: files and bytes that are copied as they are, read and merged, or stay outside."""
    copied: dict[str, int] = {}
    merged: dict[str, int] = {}
    outside: set[str] = set()
    for operator in checkpoint.metadata.operators:
        if not has_state(operator):
            continue
        same = parallelism[operator.operator_id] == operator.parallelism
        for file in files_behind(operator):
            if isinstance(file, RelativeFile):
                (copied if same else merged)[file.path] = max(file.size, 0)
            else:
                outside.add(file.path)
    return {
        "copied_files": len(copied),
        "copied_bytes": sum(copied.values()),
        "merged_files": len(merged),
        "merged_bytes": sum(merged.values()),
        "depends_on": sorted(outside),
    }
