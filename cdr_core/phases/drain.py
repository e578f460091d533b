"""drain: hand each new subtask's records to the target's writer, in order, as prepared output that is not visible yet.

Unit: a new subtask. Its output is one committable per recovery checkpoint, also when there is nothing in it; the end of
the drain is the last of these checkpoints. A new attempt goes on from the last complete one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from cdr_core.audit.ledger import Ledger, join_ledgers, require_equal
from cdr_core.channels.state_border import Borders, borders
from cdr_core.commit.commit_mode import is_per_checkpoint
from cdr_core.commit.sinks import sink_for
from cdr_core.drain.checkpoint_driver import DRAIN, DrainWatch, record_output
from cdr_core.drain.checkpoint_manifest import write_manifest
from cdr_core.drain.checkpoint_store import all_output, complete, new_output
from cdr_core.drain.drain_unit import DrainResult, DrainUnit
from cdr_core.drain.resume import finished_subtasks, go_back, prepared_rows
from cdr_core.drain.snapshots import START, Cut, CutEntry, Snapshot, Snapshots, StoredSnapshot
from cdr_core.drain.task import DrainTask
from cdr_core.errors import Corrupt, SpillLost, StorageError, Where
from cdr_core.faults import reach
from cdr_core.metadata import HAND_OVER, CommandState, SpillSet, SpillSetState
from cdr_core.phases import spill
from cdr_core.planning.plan import Plan
from cdr_core.runtime.checkpoint_requests import CHECKPOINT
from cdr_core.runtime.earlier_versions import ledger_of_entries, spill_set_of_version_2
from cdr_core.runtime.phase_definition import Finished, Outcome, PhaseDefinition
from cdr_core.runtime.phase_ledgers import line_key, recorded, summed_lines
from cdr_core.runtime.phase_outputs import scanned_by, spilled_by
from cdr_core.runtime.unit_results import SpillResult
from cdr_core.runtime.unit_runner import Job
from cdr_core.runtime.units import StoredColumns
from cdr_core.runtime.workspace import read_json
from cdr_core.spill import spill_set as sets
from cdr_core.spill.router import ROUTING, Routing
from cdr_core.spill.set_cleanup import delete_released
from cdr_core.storage.column_codec import write_columns

if TYPE_CHECKING:
    from cdr_core.metadata import Command, FencedTransaction
    from cdr_core.runtime.driver import PhaseRun


NO_SET = ""
"""Instead of a manifest: the version before spilled without leaving a set, and the task makes one."""


def prepare(run: PhaseRun) -> dict[str, DrainUnit]:
    """The sealed spill sets, each with the place where its drain begins and with what it takes to spill it again."""
    sink_for(run.recovery.output).create(run.shape.schema(run.plan))
    sides = _sides(run)
    sealed = {each.subtask: each for each in _sealed(run)}
    subtasks = range(len(run.plan.subtasks))
    cuts = go_back(run, subtasks)
    respill = spill.units_again(run)
    with run.fenced() as transaction:
        for each in sealed.values():
            transaction.acquire_grant(each.id, DRAIN)
    return {
        f"{subtask:05d}": DrainUnit(
            subtask,
            sealed[subtask].manifest if subtask in sealed else NO_SET,
            respill[f"{subtask:05d}"],
            cuts.get(subtask),
            sides,
        )
        for subtask in subtasks
    }


def _sides(run: PhaseRun) -> StoredColumns | None:
    """The file that says where input state ends; ``None`` where there is only one side to go to."""
    if not run.recovery.output.kind.is_checkpoint or run.recovery.options.recover_output_downstream:
        return None
    uri = run.workspace.attempt(run.epoch, str(run.phase), "sides.msgpack")
    return StoredColumns(uri, write_columns(uri, borders(run.plan, scanned_by(run)).to_columns()))


def _borders(plan: Plan, unit: DrainUnit) -> Borders | None:
    return None if unit.sides is None else Borders.from_columns(unit.sides.read()).of_subtask(plan, unit.subtask)


def watch(run: PhaseRun, job: Job, units: Mapping[str, DrainUnit]) -> DrainWatch:
    """Recovery checkpoints while the units run."""
    return DrainWatch(run, job, units)


def finish(run: PhaseRun, results: Sequence[DrainResult]) -> Finished:
    """The prepared output holds what was spilled, in order. The end is a recovery checkpoint too: the last one."""
    plan, ledger = run.plan, drained_by(run)
    require_equal("drain", spilled_by(run), ledger, line_key(plan))
    number, record_last = last_checkpoint(run)
    held = run.repository.spill_sets(run.recovery.id)

    def record(transaction: FencedTransaction) -> None:
        transaction.add_ledger(run.phase, summed_lines(plan, ledger, by_channel=False))
        record_last(transaction)
        for each in held:
            transaction.release_grant(each.id, DRAIN)
            transaction.release_grant(each.id, HAND_OVER)

    return Finished(
        {
            "records": ledger.records,
            "checkpoints": number,
            **_routing(run, results),
            **recorded(plan, ledger, by_channel=False),
        },
        record,
        lambda: delete_released(run.repository, run.recovery.id),
    )


def _routing(run: PhaseRun, results: Sequence[DrainResult]) -> dict[str, dict[str, int]]:
    """The ways that the bytes of all subtasks took, those that `spill` wrote to disks among them; left out where an
    earlier version did some of it, which counted nothing.
    """
    ways = [each.routing for each in results]
    written = [each.on_disk for each in run.results(SpillResult)]
    if None in ways or None in written:
        return {}
    found = {field.name: sum(getattr(each, field.name) for each in ways) for field in fields(Routing)}
    return {ROUTING: {**found, "spilled": found["spilled"] + sum(filter(None, written))}}


def last_checkpoint(run: PhaseRun) -> tuple[int, Callable[[FencedTransaction], None]]:
    """The number of the checkpoint that ends the drain, and what records it. Requests still pending when the drain
    finishes are answered with it.
    """
    rows = prepared_rows(run)
    number = 1 + max((row.checkpoint_id for row in run.repository.checkpoints(run.recovery.id)), default=0)
    finished = finished_subtasks(run)
    outputs = {subtask: each.output for subtask, each in finished.items()}
    entries = (
        new_output(number, outputs, rows.settled) if is_per_checkpoint(run.recovery) else all_output(number, outputs)
    )
    manifest, sha256 = write_manifest(run, number, [each.entry for each in finished.values()])

    def record(transaction: FencedTransaction) -> None:
        transaction.begin_checkpoint(number)
        record_output(transaction, run, entries, number, rows.stray, final=True)
        waiting = _waiting_commands(run)
        complete(transaction, run, number, manifest, sha256, {"kept": bool(waiting)})
        for command in waiting:
            reply = {"checkpoint": number, "manifest": manifest}
            transaction.answer_command(command.id, CommandState.DONE, reply)

    return number, record


def _waiting_commands(run: PhaseRun) -> list[Command]:
    commands = run.repository.commands(run.recovery.id)
    return [each for each in commands if each.kind == CHECKPOINT and each.answered_at is None]


def _sealed(run: PhaseRun) -> list[SpillSet]:
    sets = run.repository.spill_sets(run.recovery.id)
    return [each for each in sets if each.state is SpillSetState.SEALED]


def rounds(job: Job) -> list[Job]:
    """One round per exchange of the drain order: each is drained everywhere before the next one begins anywhere."""
    return [replace(job, stage=stage) for stage in range(len(job.drain_order))]


def execute(job: Job, plan: Plan, unit: DrainUnit, name: str) -> Outcome[DrainResult] | None:
    """Drain the subtask from where it is; ``None`` if it goes on in a later round. A spill set that is lost or damaged
    is made again from the checkpoint.
    """
    key, subtask = name.partition("-")[0], unit.subtask
    manifest, again = unit.manifest, 0
    snapshots = Snapshots(job.directory)

    def base() -> Cut:
        return Cut(START, manifest) if unit.base is None else replace(unit.base.read(), manifest=manifest)

    first: Snapshot | None = None
    while True:
        task_name = f"{name}-{again}"
        begun = snapshots.take_over(key, subtask, task_name, base)
        reach("drain.taken-over")
        if first is None:
            first, manifest = begun, begun.cut.manifest  # the set that the chain was made of, which may be a later one
        if begun.cut.final:
            final = begun
            break
        try:
            task = DrainTask(job, plan, key, task_name, _load(plan, manifest, subtask), manifest, _borders(plan, unit))
            final = task.run(begun)
            break
        except SpillLost:
            if again:
                raise
            again += 1
            manifest = spill.execute(job, plan, unit.spill, name).result.manifest
    return _outcome(snapshots.uri(key, final.number), first, final) if final.cut.final else None


def _outcome(uri: str, first: Snapshot, final: Snapshot) -> Outcome[DrainResult]:
    """The result of a unit is what its final snapshot says, whichever task made that."""
    cut, ledger = final.cut, final.cut.ledger
    entry = CutEntry.of(StoredSnapshot(final, uri, hashlib.sha256(final.encode()).hexdigest()))
    result = DrainResult(
        subtask=final.subtask,
        manifest=cut.manifest,
        files=cut.files,
        snapshot=entry,
        snapshot_number=final.number,
        resumed_from=first.after,
        records_here=ledger.records - first.cut.ledger.records,
        said=cut.watermark,
        routing=Routing.from_column((cut.columns or {}).get(ROUTING)),
    )
    return Outcome(ledger.records, ledger.bytes, result, ledger.to_columns())


def _load(plan: Plan, manifest: str, subtask: int) -> sets.SpillSet:
    if manifest == NO_SET:
        raise SpillLost("there is no spill set", where=Where(subtask=subtask))
    try:
        value = read_json(manifest)
        if value["subtask"] != subtask:
            raise Corrupt(f"it is that of subtask {value['subtask']}")
        if value["version"] < sets.WITHOUT_REFERENCES:
            return spill_set_of_version_2(plan, value)
        return sets.SpillSet.from_json(value)
    except (StorageError, Corrupt, ValueError, KeyError) as error:
        raise SpillLost(f"spill manifest {manifest} cannot be read", where=Where(subtask=subtask)) from error


def drained_by(run: PhaseRun) -> Ledger:
    """The drain ledger, by line."""
    return join_ledgers(
        Ledger.from_columns(unit.columns) if unit.columns else ledger_of_entries(run.plan, unit.result.ledger)
        for unit in run.outputs(DrainResult)
    )


PHASE = PhaseDefinition(DrainResult, DrainUnit, prepare, execute, finish, watch, rounds)

if __name__ == "__main__":
    from cdr_core.runtime.phase_command import main

    main("drain")
