"""Where a new attempt at the drain begins: at the last complete recovery checkpoint, not from zero.

Subtasks that are finished stay finished. What an earlier version prepared after that checkpoint is forgotten before
anything is drained again, or it would be published twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from cdr_core.audit.ledger import NOTHING, Ledger
from cdr_core.commit.commit_mode import is_per_checkpoint
from cdr_core.commit.committable import Committable, PreparedFile
from cdr_core.drain.checkpoint_cuts import read_cuts
from cdr_core.drain.checkpoint_manifest import VERSION_1, manifest_bytes, read_manifest, version_of
from cdr_core.drain.commit_setup import last_complete, require_no_unknown_commit
from cdr_core.drain.earlier_cuts import finished_cut_of_version_1
from cdr_core.drain.snapshots import START, SUFFIX, Cut, CutEntry, Snapshot, StoredSnapshot
from cdr_core.drain.watermark_state import UNKNOWN, InputWatermark
from cdr_core.errors import IllegalState
from cdr_core.metadata import Phase, RecoveryCheckpointState
from cdr_core.storage import storage_for

if TYPE_CHECKING:
    from cdr_core.metadata.values import UnitResult
    from cdr_core.runtime.driver import Drive

SNAPSHOT = "snapshot"
"""In the result of a drained subtask: its final snapshot, as the manifest of a recovery checkpoint names it."""
NUMBER = "snapshot_number"
"""In the result of a drained subtask: the place of its final snapshot in the chain."""


def go_back(drive: Drive, subtasks: Collection[int]) -> dict[int, CutEntry]:
    """Go back to the last complete checkpoint: where each subtask was, empty if there is none.

    Checkpoints that a dead attempt left under way were aborted when this one began.
    """
    rows = drive.repository.checkpoints(drive.recovery.id)
    complete = [row for row in rows if row.state is RecoveryCheckpointState.COMPLETED]
    back_to = complete[-1].checkpoint_id if complete else 0
    committed = max((entry.commit_id for entry in drive.repository.commit_log(drive.recovery.id)), default=0)
    if back_to < committed:
        raise IllegalState(f"the drain would go back to checkpoint {back_to}, and {committed} may be published")
    require_no_unknown_commit(drive, back_to)
    finished = {int(row.result["subtask"]) for row in drive.repository.units(drive.recovery.id, Phase.DRAIN)}
    with drive.fenced() as transaction:
        for subtask in sorted(set(subtasks) - finished):
            transaction.reset_subtask(subtask, back_to)
    if not complete:
        return {}
    data = manifest_bytes(complete[-1])
    if version_of(data) != VERSION_1:
        return {entry.subtask: entry for entry in read_manifest(data).cuts}
    outputs = outputs_in_rows(drive)
    cuts = read_cuts(complete[-1], drive.plan)
    return {
        number: _stored(drive, number, replace(cut, files=outputs[number].files if number in outputs else ()))
        for number, cut in cuts.items()
        if number not in finished
    }


def _stored(drive: Drive, subtask: int, cut: Cut) -> CutEntry:
    """A cut of an earlier version as a snapshot of this one."""
    uri = drive.workspace.attempt(drive.epoch, str(drive.phase), "earlier", f"{subtask:05d}{SUFFIX}")
    snapshot = Snapshot(subtask, 0, "an earlier version", START, cut)
    data = snapshot.encode()
    storage_for(uri).create(uri, data)
    return CutEntry.of(StoredSnapshot(snapshot, uri, hashlib.sha256(data).hexdigest()))


@dataclass(frozen=True, slots=True)
class SubtaskOutput:
    """What a subtask has prepared since the drain began."""

    files: tuple[PreparedFile, ...] = ()
    watermark: InputWatermark = UNKNOWN


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """The rows of prepared output when an attempt begins. ``settled`` are the files in rows that a complete checkpoint
    counts on; ``stray`` the numbers of rows behind it, which an earlier version wrote for a checkpoint that never
    completed. Only finished subtasks have such rows; their files go with the next checkpoint.
    """

    settled: frozenset[str]
    stray: frozenset[int]


def prepared_rows(drive: Drive) -> PreparedRows:
    complete, settled, stray = last_complete(drive), set[str](), set[int]()
    for row in drive.repository.prepared(drive.recovery.id):
        if row.checkpoint_id > complete:
            stray.add(row.checkpoint_id)
        else:
            settled.update(file["path"] for file in json.loads(row.manifest)["files"])
    return PreparedRows(frozenset(settled), frozenset(stray))


def outputs_in_rows(drive: Drive) -> dict[int, SubtaskOutput]:
    """By subtask, what the rows of prepared output hold; none of a subtask without a row."""
    found: dict[int, SubtaskOutput] = {}
    for row in drive.repository.prepared(drive.recovery.id):  # ascending: the newest watermark counts
        entry = Committable.from_json(json.loads(row.manifest))
        before = found.get(entry.subtask, SubtaskOutput()).files
        found[entry.subtask] = SubtaskOutput((*before, *entry.files), InputWatermark(entry.watermark, entry.idle))
    return found


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a subtask is, as the driver knows it. ``number`` is that of its newest snapshot in this attempt,
    ``ledger`` what was delivered up to it, where output is published while draining.
    """

    entry: CutEntry
    output: SubtaskOutput
    number: int = 0
    ledger: Ledger = NOTHING


def finished_progress(drive: Drive, row: UnitResult, prepared: SubtaskOutput) -> Progress:
    """Of a subtask that is drained to the end."""
    result, subtask = row.result, int(row.result["subtask"])
    if SNAPSHOT in result:
        entry = msgspec.convert(result[SNAPSHOT], CutEntry)
    else:
        entry = _stored(drive, subtask, finished_cut_of_version_1(drive.plan, row))
    watermark = InputWatermark(result["said"]["watermark"], result["said"]["idle"]) if "said" in result else UNKNOWN
    known = {file.path for file in prepared.files}
    added = [PreparedFile.from_json(file) for file in result["files"] if file["path"] not in known]
    return Progress(entry, SubtaskOutput((*prepared.files, *added), watermark))


def progress_at_start(drive: Drive, units: Mapping[str, Mapping[str, Any]]) -> dict[int, Progress]:
    """How far each subtask is when an attempt begins."""
    outputs, found = outputs_in_rows(drive), finished_subtasks(drive)
    for unit in units.values():
        subtask = unit["subtask"]
        if subtask not in found:
            entry = base_of(unit) or CutEntry(subtask, START, unit["manifest"])
            # A set that was made again has the bytes of the one the cut was made of, and that one may be gone.
            entry = CutEntry(
                subtask, entry.position, unit["manifest"], entry.snapshot, entry.sha256, entry.owned, entry.final
            )
            found[subtask] = Progress(entry, outputs.get(subtask, SubtaskOutput()))
    if is_per_checkpoint(drive.recovery):
        return {subtask: replace(each, ledger=each.entry.read().ledger) for subtask, each in found.items()}
    return found


def finished_subtasks(drive: Drive) -> dict[int, Progress]:
    """The subtasks that are drained to the end."""
    outputs = outputs_in_rows(drive)
    rows = drive.repository.units(drive.recovery.id, Phase.DRAIN)
    progress = [finished_progress(drive, row, outputs.get(int(row.result["subtask"]), SubtaskOutput())) for row in rows]
    return {each.entry.subtask: each for each in progress}


def base_of(unit: Mapping[str, Any]) -> CutEntry | None:
    """Where the drain of a unit begins; ``None`` = at the start of its set."""
    return None if unit["base"] is None else msgspec.convert(unit["base"], CutEntry)
