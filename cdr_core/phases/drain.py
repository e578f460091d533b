"""drain: hand each new subtask's records to the target's writer, in order, as prepared output that nobody can see yet.

Unit: a new subtask. Its output is one committable per recovery checkpoint, also when there is nothing in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdr_core.audit.ledger import Entry, require_equal, total
from cdr_core.commit.committable import Committable, PreparedFile
from cdr_core.commit.sinks import sink_for
from cdr_core.drain.rows import RowBuilder
from cdr_core.faults import reach
from cdr_core.metadata import Phase, Prepared
from cdr_core.phases.spill import entries as spilled
from cdr_core.phases.spill import subtask_entry
from cdr_core.phases.unit import Finished, Job, Outcome
from cdr_core.phases.workspace import read_json
from cdr_core.rescale.plan import Plan
from cdr_core.spill.reader import read_segments
from cdr_core.spill.segments import SpillSet

if TYPE_CHECKING:
    from cdr_core.metadata import FencedTransaction
    from cdr_core.phases.driver import Drive

FINAL_CHECKPOINT = 1
"""The recovery checkpoint that the end of the drain completes."""


def prepare(drive: Drive) -> dict[str, Any]:
    """The sealed spill sets."""
    return units(drive.results(Phase.SPILL))


def finish(drive: Drive, results: Sequence[Mapping[str, Any]]) -> Finished:
    """The prepared output holds what was spilled, in order; its rows make it known."""
    ledger = entries(results)
    require_equal("drain", spilled(drive.results(Phase.SPILL)), ledger)
    committables = [Committable.from_json(result["committable"]) for result in results]

    def record(transaction: FencedTransaction) -> None:
        transaction.add_ledger(drive.phase, [entry.to_json() for entry in ledger])
        for committable in committables:
            transaction.add_prepared(_prepared(committable))

    return Finished({"records": total(ledger).records}, record)


def _prepared(committable: Committable) -> Prepared:
    text = json.dumps(committable.to_json(), sort_keys=True)
    return Prepared(
        subtask=committable.subtask,
        checkpoint_id=committable.checkpoint_id,
        manifest=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        records=committable.records,
        bytes=committable.bytes,
        watermark=committable.watermark,
    )


def units(spill_results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One unit per new subtask."""
    return {f"{r['subtask']:05d}": {"subtask": r["subtask"], "manifest": r["manifest"]} for r in spill_results}


def execute(job: Job, plan: Plan, unit: Mapping[str, Any], name: str) -> Outcome:
    """Drain the subtask's spill set into one prepared file, or none if it holds no record."""
    spill_set = SpillSet.from_json(read_json(unit["manifest"]))
    builder = RowBuilder(plan, spill_set.subtask)
    files: tuple[PreparedFile, ...] = ()
    if spill_set.segments:
        file_name = f"{job.recovery}/e{job.epoch}-{name}"
        with sink_for(job.target).writer(file_name, builder.schema) as writer:
            for body in read_segments(spill_set):
                writer.write(builder.build(body))
        assert writer.prepared is not None
        files = (writer.prepared,)
    reach("drain.prepared")
    committable = Committable(spill_set.subtask, FINAL_CHECKPOINT, files)
    ledger = [subtask_entry(plan, spill_set.subtask, number, tally) for number, tally in builder.tallies.items()]
    return Outcome(
        records=committable.records,
        bytes=committable.bytes,
        detail={"committable": committable.to_json(), "ledger": [entry.to_json() for entry in ledger]},
    )


def entries(results: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """The drain ledger."""
    return [Entry.from_json(entry) for result in results for entry in result["ledger"]]


if __name__ == "__main__":
    from cdr_core.phases.main import main

    main("drain")
