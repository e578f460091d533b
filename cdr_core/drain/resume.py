"""Where a new attempt at the drain begins: at the last complete recovery checkpoint, not from zero.

Subtasks that are finished stay finished. What an earlier version prepared after that checkpoint is forgotten before
anything is drained again, or it would be published twice.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from cdr_core.audit.ledger import NOTHING, Ledger
from cdr_core.commit.commit_mode import is_per_checkpoint
from cdr_core.commit.committable import Committable, PreparedFile
from cdr_core.drain.checkpoint_cuts import read_cuts
from cdr_core.drain.checkpoint_manifest import VERSION_1, manifest_bytes, read_manifest, version_of
from cdr_core.drain.commit_setup import last_complete, require_no_unknown_commit
from cdr_core.drain.drain_unit import DrainResult, DrainUnit
from cdr_core.drain.earlier_cuts import finished_cut_of_version_1
from cdr_core.drain.snapshots import START, SUFFIX, Cut, CutEntry, Snapshot, StoredSnapshot
from cdr_core.drain.watermark_state import UNKNOWN, InputWatermark
from cdr_core.errors import IllegalState
from cdr_core.log import with_fields
from cdr_core.metadata import RecoveryCheckpointState
from cdr_core.storage import storage_for

if TYPE_CHECKING:
    from cdr_core.runtime.driver import PhaseRun


log = logging.getLogger(__name__)


def go_back(run: PhaseRun, subtasks: Collection[int]) -> dict[int, CutEntry]:
    """Go back to the last complete checkpoint: where each subtask was, empty if there is none.

    Checkpoints that a dead attempt left under way were aborted when this one began.
    """
    rows = run.repository.checkpoints(run.recovery.id)
    complete = [row for row in rows if row.state is RecoveryCheckpointState.COMPLETED]
    back_to = complete[-1].checkpoint_id if complete else 0
    committed = max((entry.commit_id for entry in run.repository.commit_log(run.recovery.id)), default=0)
    if back_to < committed:
        raise IllegalState(f"the drain would go back to checkpoint {back_to}, and {committed} may be published")
    require_no_unknown_commit(run, back_to)
    story = "the drain goes on from a recovery checkpoint" if back_to else "the drain starts"
    log.info(story, extra=with_fields(checkpoint=back_to))
    finished = {result.subtask for result in run.results(DrainResult)}
    with run.fenced() as transaction:
        for subtask in sorted(set(subtasks) - finished):
            transaction.reset_subtask(subtask, back_to)
    if not complete:
        return {}
    data = manifest_bytes(complete[-1])
    if version_of(data) != VERSION_1:
        return {entry.subtask: entry for entry in read_manifest(data).cuts}
    outputs = outputs_in_rows(run)
    cuts = read_cuts(complete[-1], run.plan)
    return {
        number: _stored(run, number, replace(cut, files=outputs[number].files if number in outputs else ()))
        for number, cut in cuts.items()
        if number not in finished
    }


def _stored(run: PhaseRun, subtask: int, cut: Cut) -> CutEntry:
    """A cut of an earlier version as a snapshot of this one."""
    uri = run.workspace.attempt(run.epoch, str(run.phase), "earlier", f"{subtask:05d}{SUFFIX}")
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


def prepared_rows(run: PhaseRun) -> PreparedRows:
    complete, settled, stray = last_complete(run), set[str](), set[int]()
    for row in run.repository.prepared(run.recovery.id):
        if row.checkpoint_id > complete:
            stray.add(row.checkpoint_id)
        else:
            settled.update(file["path"] for file in json.loads(row.manifest)["files"])
    return PreparedRows(frozenset(settled), frozenset(stray))


def outputs_in_rows(run: PhaseRun) -> dict[int, SubtaskOutput]:
    """By subtask, what the rows of prepared output hold; none of a subtask without a row."""
    found: dict[int, SubtaskOutput] = {}
    for row in run.repository.prepared(run.recovery.id):  # ascending: the newest watermark counts
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


def finished_progress(run: PhaseRun, result: DrainResult, prepared: SubtaskOutput) -> Progress:
    """Of a subtask that is drained to the end."""
    entry = result.snapshot or _stored(run, result.subtask, finished_cut_of_version_1(run.plan, result))
    known = {file.path for file in prepared.files}
    added = [file for file in result.files if file.path not in known]
    return Progress(entry, SubtaskOutput((*prepared.files, *added), result.said))


def progress_at_start(run: PhaseRun, units: Mapping[str, DrainUnit]) -> dict[int, Progress]:
    """How far each subtask is when an attempt begins."""
    outputs, found = outputs_in_rows(run), finished_subtasks(run)
    for unit in units.values():
        if unit.subtask not in found:
            entry = unit.base or CutEntry(unit.subtask, START, unit.manifest)
            # A set that was made again has the bytes of the one the cut was made of, and that one may be gone.
            entry = msgspec.structs.replace(entry, manifest=unit.manifest)
            found[unit.subtask] = Progress(entry, outputs.get(unit.subtask, SubtaskOutput()))
    if is_per_checkpoint(run.recovery):
        return {subtask: replace(each, ledger=each.entry.read().ledger) for subtask, each in found.items()}
    return found


def finished_subtasks(run: PhaseRun) -> dict[int, Progress]:
    """The subtasks that are drained to the end."""
    outputs = outputs_in_rows(run)
    return {
        result.subtask: finished_progress(run, result, outputs.get(result.subtask, SubtaskOutput()))
        for result in run.results(DrainResult)
    }
