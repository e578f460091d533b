"""drain: hand each new subtask's records to the target's writer, in order, as prepared output that nobody can see yet.

Unit: a new subtask. Its output is one committable per recovery checkpoint, also when there is nothing in it; the end of
the drain is the last of these checkpoints. A new attempt goes on from the last complete one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cdr_core.audit.ledger import Entry, require_equal, total
from cdr_core.commit.sinks import is_checkpoint, sink_for
from cdr_core.drain.checkpoints import FINISHED, Answer
from cdr_core.drain.checkpoints import Outcome as Cut
from cdr_core.drain.rows import table_schema
from cdr_core.errors import SpillLost, StorageError, Unreadable, Where
from cdr_core.metadata import HAND_OVER, CommandState, Phase, SpillSet, SpillSetState
from cdr_core.phases import spill
from cdr_core.phases.asking import CHECKPOINT
from cdr_core.phases.draining.mailbox import Mailbox, cut_body
from cdr_core.phases.draining.resume import go_back, handed_over, situation
from cdr_core.phases.draining.rows import committable, complete, prepared, write_manifest
from cdr_core.phases.draining.said import NOTHING_SAID
from cdr_core.phases.draining.task import DrainTask, find_base
from cdr_core.phases.draining.watch import DRAIN, DrainWatch
from cdr_core.phases.rewriting import OUTPUT_DOWNSTREAM
from cdr_core.phases.unit import Finished, Job, Outcome
from cdr_core.phases.workspace import read_json
from cdr_core.rescale.plan import Plan
from cdr_core.rescale.sides import Border, borders
from cdr_core.spill import segments
from cdr_core.spill.release import delete_released

if TYPE_CHECKING:
    from cdr_core.metadata import Command, FencedTransaction
    from cdr_core.phases.driver import Drive


def prepare(drive: Drive) -> dict[str, Any]:
    """The sealed spill sets, each with the place where its drain begins and with what it takes to spill it again."""
    sink_for(drive.recovery.target).create(table_schema(drive.plan, raw=drive.keeps_raw))
    sides = _sides(drive)
    sets = _sealed(drive)
    cuts = go_back(drive, [each.subtask for each in sets])
    respill = spill.prepare(drive)
    sizes = {result["subtask"]: result["sizes"] for result in drive.results(Phase.SPILL)}
    with drive.fenced() as transaction:
        for each in sets:
            transaction.acquire_grant(each.id, DRAIN)
    return {
        f"{each.subtask:05d}": {
            "subtask": each.subtask,
            "manifest": each.manifest,
            "base": cuts.get(each.subtask),
            "spill": respill[f"{each.subtask:05d}"],
            "sizes": sizes[each.subtask],
            **({} if sides is None else {"sides": _to_json(sides[each.subtask])}),
        }
        for each in sets
    }


def _sides(drive: Drive) -> dict[int, dict[int, Border]] | None:
    """Where input state ends, by new subtask and virtual channel; ``None`` where there is only one side to go to."""
    if not is_checkpoint(drive.recovery.target) or drive.recovery.options.get(OUTPUT_DOWNSTREAM):
        return None
    return borders(drive.plan, [channel for result in drive.results(Phase.READ) for channel in result["channels"]])


def _to_json(of: Mapping[int, Border]) -> dict[str, Any]:
    return {str(number): [border.input_end, border.closing_output] for number, border in of.items()}


def _from_json(unit: Mapping[str, Any]) -> dict[int, Border] | None:
    return {int(number): Border(*of) for number, of in unit["sides"].items()} if "sides" in unit else None


def watch(drive: Drive, job: Job, units: Mapping[str, Any]) -> DrainWatch:
    """Recovery checkpoints while the units run."""
    return DrainWatch(drive, job, units, situation(drive, units))


def finish(drive: Drive, results: Sequence[Mapping[str, Any]]) -> Finished:
    """The prepared output holds what was spilled, in order. The end is a recovery checkpoint too: the last one."""
    ledger = entries(results)
    require_equal("drain", spill.entries(drive.results(Phase.SPILL)), ledger)
    number, record_last = last_checkpoint(drive, results)
    sets = drive.repository.spill_sets(drive.recovery.id)

    def record(transaction: FencedTransaction) -> None:
        transaction.add_ledger(drive.phase, [entry.to_json() for entry in ledger])
        record_last(transaction)
        for each in sets:
            transaction.release_grant(each.id, DRAIN)
            transaction.release_grant(each.id, HAND_OVER)

    return Finished(
        {"records": total(ledger).records, "checkpoints": number},
        record,
        lambda: delete_released(drive.repository, drive.recovery.id),
    )


def last_checkpoint(
    drive: Drive, results: Sequence[Mapping[str, Any]]
) -> tuple[int, Callable[[FencedTransaction], None]]:
    """The number of the checkpoint that ends the drain, and what records it. It answers everybody who still waits for
    one: a request that came after the last look at the subtasks got no checkpoint of its own.
    """
    known = handed_over(drive)
    number = 1 + max((row.checkpoint_id for row in drive.repository.checkpoints(drive.recovery.id)), default=0)
    answers = [_final_answer(number, result, known) for result in results]
    manifest, sha256 = write_manifest(drive, number, answers)

    def record(transaction: FencedTransaction) -> None:
        transaction.begin_checkpoint(number)
        for answer in answers:
            transaction.add_prepared(prepared(committable(answer)))
        waiting = _waiting_commands(drive)
        complete(transaction, drive, number, manifest, sha256, kept=bool(waiting))
        for command in waiting:
            reply = {"checkpoint": number, "manifest": manifest}
            transaction.answer_command(command.id, CommandState.DONE, reply)

    return number, record


def _waiting_commands(drive: Drive) -> list[Command]:
    commands = drive.repository.commands(drive.recovery.id)
    return [each for each in commands if each.kind == CHECKPOINT and each.answered_at is None]


def _final_answer(number: int, result: Mapping[str, Any], known: frozenset[str]) -> Answer:
    files = [file for file in result["files"] if file["path"] not in known]
    body = cut_body(files, None, result["ledger"], {}, result["manifest"], result.get("said", NOTHING_SAID))
    return Answer(number, result["subtask"], Cut.CUT, FINISHED, FINISHED, body)


def _sealed(drive: Drive) -> list[SpillSet]:
    sets = drive.repository.spill_sets(drive.recovery.id)
    return [each for each in sets if each.state is SpillSetState.SEALED]


def execute(job: Job, plan: Plan, unit: Mapping[str, Any], name: str) -> Outcome:
    """Drain the subtask from where it is. A spill set that is lost or damaged is made again from the checkpoint."""
    key = name.partition("-")[0]
    mailbox = Mailbox(job.directory)
    mailbox.start(key)
    manifest, again = str(unit["manifest"]), 0
    while True:
        try:
            spill_set = _load(manifest, unit["subtask"])
            task = DrainTask(job, plan, key, f"{name}-{again}", spill_set, manifest, _from_json(unit))
            detail = task.run(find_base(mailbox, key, unit["base"]))
            break
        except SpillLost:
            if again:
                raise
            again += 1
            manifest = _spill_again(job, plan, unit, name)
    return Outcome(
        records=sum(entry["records"] for entry in detail["ledger"]),
        bytes=sum(entry["bytes"] for entry in detail["ledger"]),
        detail={"subtask": unit["subtask"], **detail},
    )


def _spill_again(job: Job, plan: Plan, unit: Mapping[str, Any], name: str) -> str:
    """The same set once more: with the sizes of the first time it has the same bytes, so every cut still fits it."""
    return str(spill.execute(replace(job, **unit["sizes"]), plan, unit["spill"], name).detail["manifest"])


def _load(manifest: str, subtask: int) -> segments.SpillSet:
    try:
        return segments.SpillSet.from_json(read_json(manifest))
    except (StorageError, Unreadable) as error:
        raise SpillLost(f"spill manifest {manifest} cannot be read", where=Where(subtask=subtask)) from error


def entries(results: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """The drain ledger."""
    return [Entry.from_json(entry) for result in results for entry in result["ledger"]]


if __name__ == "__main__":
    from cdr_core.phases.main import main

    main("drain")
