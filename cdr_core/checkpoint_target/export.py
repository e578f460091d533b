"""A recovery checkpoint as an ordinary checkpoint in Flink's format that, once written, needs neither source nor spill.

By default nothing is published before commit, so a recovery checkpoint (prepared, delivered and remaining records)
contains every in-flight record of the source: the whole of every spill set, in order. It is written as the target
``checkpoint:`` would be, other state included, so Flink restores it; but in the calling process, which holds the spill
sets meanwhile: they stay when the drain ends, and even when the recovery does.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cdr_core import settings
from cdr_core.channels.channel_source import open_planned
from cdr_core.channels.source_index import using_index
from cdr_core.channels.state_border import Borders, borders
from cdr_core.checkpoint_target.assemble import checkpoint_sink
from cdr_core.checkpoint_target.channel_files import handles_of
from cdr_core.checkpoint_target.export_lease import holding
from cdr_core.checkpoint_target.preflight import blocked
from cdr_core.checkpoint_target.state_migration import move_state, state_units, subtasks_in
from cdr_core.commit.commit_mode import is_per_checkpoint
from cdr_core.commit.committable import PreparedFile
from cdr_core.commit.sinks.checkpoint import CheckpointSink
from cdr_core.drain.channel_chunks import ChunkBuilder
from cdr_core.drain.checkpoint_cuts import spill_manifests
from cdr_core.drain.routed_delivery import PlannedSource
from cdr_core.drain.segment_elements import elements_of
from cdr_core.errors import CdrError, JobFailed, PlanRefused, Refused
from cdr_core.faults import reach
from cdr_core.flink.checkpoint import METADATA_FILE, Checkpoint
from cdr_core.flink.metadata import RelativeFile, SubtaskState, write_metadata
from cdr_core.flink.rewritten_metadata import rewritten
from cdr_core.flink.state import files_behind
from cdr_core.metadata import Export, Recovery, RecoveryCheckpoint, RecoveryCheckpointState, Repository
from cdr_core.metadata import SpillSet as HeldSet
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import new_parallelism, parse_parallelism
from cdr_core.planning.plan import Plan
from cdr_core.runtime.earlier_versions import spill_set_of_version_2
from cdr_core.runtime.phase_outputs import scanned_in
from cdr_core.runtime.unit_results import ReadResult, unit_outputs
from cdr_core.runtime.unit_runner import load_plan, scratch_directory
from cdr_core.runtime.workspace import read_json
from cdr_core.spill.set_reader import read_segment
from cdr_core.spill.spill_set import WITHOUT_REFERENCES, SpillSet
from cdr_core.storage import absolute, is_local, join, storage_for
from cdr_core.storage.local import host_id
from cdr_core.sweep.exports import prefix, sweep_exports


@dataclass(frozen=True, slots=True)
class Exported:
    """A written export."""

    directory: str
    records: int
    bytes: int


def export_checkpoint(repository: Repository, recovery_id: str, checkpoint_id: int, directory: str) -> Exported:
    """Write a complete recovery checkpoint to an empty or new directory; ``_metadata`` comes last and exclusively."""
    recovery = repository.recovery(recovery_id)
    with using_index(recovery.source.metadata_sha256, recovery.sources):
        return _export(repository, recovery, checkpoint_id, directory)


def refuse_export(repository: Repository, recovery: Recovery, directory: str) -> None:
    """Refuse an export that could not be restored beside the output, or that has no place. Ask before a checkpoint is
    requested for it: with per-checkpoint commits, the request itself publishes.
    """
    if is_per_checkpoint(recovery):
        raise Refused(
            f"recovery {recovery.id} publishes with every checkpoint: an exported one would hold those records again",
            hint="let it finish; only a recovery that commits at its end can be exported",
        )
    _refuse_published(repository, recovery.id)
    own = checkpoint_sink(recovery.output).directory if recovery.output.kind.is_checkpoint else None
    if own == absolute(directory).rstrip("/"):
        raise Refused(f"{directory} is the recovery's own target", hint="name another directory")
    target = join(directory.rstrip("/"), METADATA_FILE)
    if storage_for(target).exists(target):
        raise Refused(f"{directory} holds a checkpoint already", hint="name an empty directory")


def _export(repository: Repository, recovery: Recovery, checkpoint_id: int, directory: str) -> Exported:
    recovery_id = recovery.id
    rows = {row.checkpoint_id: row for row in repository.checkpoints(recovery_id)}
    row = rows.get(checkpoint_id)
    if row is None or row.state is not RecoveryCheckpointState.COMPLETED:
        state = "unknown" if row is None else str(row.state)
        raise Refused(f"recovery checkpoint {checkpoint_id} of {recovery_id} is {state}", hint="take a new one")
    refuse_export(repository, recovery, directory)
    assert recovery.plan_uri is not None, "a recovery with a checkpoint has a plan"
    plan = load_plan(recovery.plan_uri)
    source = open_planned(recovery.source.uri, recovery.source.metadata_sha256)
    parallelism = new_parallelism(source, parse_spec(recovery.spec), parse_parallelism(recovery.parallelism))
    _refuse_blocked(blocked(source, parallelism))
    with suppress(CdrError):  # an unreachable database or directory shows in the next steps
        list(sweep_exports(repository, recovery_id))
    export = _export_to(source, checkpoint_id, directory)
    with holding(repository, recovery_id, export) as (sets, is_alive):
        sink, name = CheckpointSink(directory), prefix(recovery_id, export)
        manifests = _manifests(sets, recovery_id, row)
        files, records, size = _write_sets(plan, manifests, sink, name, _sides(repository, recovery, plan))
        reach("export.files")
        states: dict[str, list[SubtaskState]] = {}
        sizes = {file.path: file.bytes for file in files.values()}
        scratch = scratch_directory(settings.load().scratch)
        for number, unit in state_units(source.metadata, parallelism).items():
            moved, done = move_state(source, unit, sink, f"{name}-{number}", scratch)
            operator, subtasks = subtasks_in(moved)
            sizes |= {file["path"]: file["bytes"] for file in (*done.made, *done.copied)}
            states.setdefault(operator, []).extend(subtasks)
        reach("export.states")
        handles = handles_of(plan, files, source.metadata.version)
        metadata = write_metadata(rewritten(source.metadata, parallelism, states, handles))
        is_alive()
        _refuse_published(repository, recovery_id)  # again: the steps above take a while
        reach("export.last-step")
        target = join(directory.rstrip("/"), METADATA_FILE)
        if not storage_for(target).create(target, metadata):
            raise Refused(f"{target} was written by another process", hint="name an empty directory")
        reach("export.metadata")
        _confirm(sink, sizes, target, is_alive)
    return Exported(directory, records, size)


def _confirm(sink: CheckpointSink, sizes: Mapping[str, int], target: str, is_alive: Callable[[], None]) -> None:
    """Withdraw the ``_metadata`` that this export has just created unless the files that it names exist, and stay.

    A process that was stopped before it created ``_metadata`` may have lost its lease meanwhile: a sweep then has
    removed its files, or is about to. As long as the lease has not lapsed, no sweep has begun.
    """
    try:
        is_alive()
        gone = next((path for path, size in sizes.items() if sink.size(path) != size), None)
        if gone is not None:
            raise JobFailed(f"{sink.uri(gone)} was removed while it was being exported", hint="export it again")
    except CdrError:
        storage_for(target).delete(target)
        raise


def _export_to(source: Checkpoint, checkpoint_id: int, directory: str) -> Export:
    """Return the export's database row, which lists files that it will make under names of others."""
    place = absolute(directory).rstrip("/")
    files = [file for operator in source.metadata.operators for file in files_behind(operator)]
    named = {file.path for file in files if isinstance(file, RelativeFile)}
    there = {uri.rpartition("/")[2] for uri in storage_for(place).list(place)}
    host = host_id() if is_local(place) else None
    return Export(uuid.uuid4().hex[:12], checkpoint_id, place, host, tuple(sorted(named - there)))


def _write_sets(
    plan: Plan,
    manifests: Sequence[str],
    sink: CheckpointSink,
    name: str,
    sides: Borders | None,
) -> tuple[dict[int, PreparedFile], int, int]:
    """Return the files by subtask, and how many records and bytes are in them."""
    files: dict[int, PreparedFile] = {}
    records = size = 0
    for manifest in manifests:
        value = read_json(manifest)
        earlier = value["version"] < WITHOUT_REFERENCES
        spill_set = spill_set_of_version_2(plan, value) if earlier else SpillSet.from_json(value)
        if spill_set.segments:
            of = None if sides is None else sides.of_subtask(plan, spill_set.subtask)
            files[spill_set.subtask] = _write_set(plan, spill_set, sink, name, of)
        reach("export.set")
        records += spill_set.ledger.records
        size += spill_set.bytes
    return files, records, size


def _refuse_published(repository: Repository, recovery_id: str) -> None:
    if repository.commit_log(recovery_id):
        raise Refused(
            f"recovery {recovery_id} has begun to publish: an exported checkpoint would hold those records again",
            hint=f"wait until it is done; if it is not running, continue it: cdr resume {recovery_id}",
        )


def _manifests(sets: Sequence[HeldSet], recovery_id: str, row: RecoveryCheckpoint) -> list[str]:
    """Return the spill sets of a recovery checkpoint; one that was made again has the bytes of the lost one."""
    sealed = {each.subtask: each.manifest for each in sets}
    found = [sealed.get(subtask, manifest) for subtask, manifest in spill_manifests(row).items()]
    if not all(found):
        raise Refused(
            f"recovery {recovery_id} ran in one pass and keeps no spill sets to export",
            hint=f"wait until it is done; if it is not running, continue it: cdr resume {recovery_id}",
        )
    return found


def _refuse_blocked(found: tuple[PlanRefused, ...]) -> None:
    """Refuse blocked state: without it, Flink would restore the checkpoint as if there had been none."""
    if found:
        raise found[0]


def _sides(repository: Repository, recovery: Recovery, plan: Plan) -> Borders | None:
    if recovery.options.recover_output_downstream or settings.load().recover_output_downstream:
        return None
    return borders(plan, scanned_in(unit_outputs(repository, recovery.id, ReadResult)))


def _write_set(plan: Plan, spill_set: SpillSet, sink: CheckpointSink, name: str, sides: Borders | None) -> PreparedFile:
    """Return one channel-state file per subtask that has in-flight data."""
    chunks, source = ChunkBuilder(plan, sides), PlannedSource(plan)
    with sink.channel_file(f"{name}-{spill_set.subtask:05d}") as file:
        for number in range(spill_set.segments):
            file.append(chunks.build(elements_of(plan, read_segment(spill_set, number, source))))
    assert file.prepared is not None
    return file.prepared
