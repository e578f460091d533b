"""commit: read every prepared file back, compare it with the source, then publish what is not published yet.

Unit: a batch of prepared files to check. By default everything is published in one step, once, in the driver, by the
commit protocol; where each recovery checkpoint was published when it completed, the last one is left to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from cdr_core.audit.ledger import RECORDS, Ledger, join_ledgers, require_equal
from cdr_core.audit.receipt import ExchangeFindings, Finding, make_proof, make_receipt, sealed
from cdr_core.channels.batch_scan import Scanned
from cdr_core.channels.control_elements import CLOSING_PREFIX
from cdr_core.checkpoint_target import assemble
from cdr_core.checkpoint_target.units import CommitResult
from cdr_core.commit.commit_mode import is_per_checkpoint
from cdr_core.commit.commit_store import Rows, TableCommitter, committed
from cdr_core.commit.committable import Committable
from cdr_core.commit.events import Close
from cdr_core.commit.sinks import Sink, lake_for, sink_for
from cdr_core.commit.sinks.base import row_group_bytes
from cdr_core.commit.sinks.checkpoint import LEDGER_BESIDE, CheckpointSink
from cdr_core.drain.checkpoint_store import holder
from cdr_core.drain.commit_setup import committables, publications, restored
from cdr_core.errors import JobFailed
from cdr_core.evidence.spec_evidence import ExchangeEvidence, keys_are_proven
from cdr_core.metadata import Phase, RecoveryCheckpointState
from cdr_core.phases.drain import drained_by
from cdr_core.planning.exchange_binding import OPAQUE
from cdr_core.planning.plan import Plan
from cdr_core.runtime.earlier_versions import adopted_proof, ledger_of_entries
from cdr_core.runtime.phase_definition import Finished, Outcome, PhaseDefinition
from cdr_core.runtime.phase_ledgers import described, line_key, recorded, summed_lines, write_ledger
from cdr_core.runtime.phase_outputs import evidence_of, scanned_by, selected_by, source_ledger, spilled_by
from cdr_core.runtime.quarantine import left_out
from cdr_core.runtime.read_back import read_back
from cdr_core.runtime.receipt_run_info import run_facts
from cdr_core.runtime.unit_results import SUFFIX, result_of
from cdr_core.runtime.unit_runner import Job, job_scratch
from cdr_core.runtime.units import StoredColumns
from cdr_core.runtime.workspace import write_json
from cdr_core.spill.set_cleanup import delete_released
from cdr_core.storage import storage_for
from cdr_core.storage.column_codec import write_columns
from cdr_core.sweep import sweep_spilled, sweep_unpublished
from cdr_core.targets import Target

if TYPE_CHECKING:
    from cdr_core.metadata import FencedTransaction
    from cdr_core.runtime.driver import PhaseRun

BATCH_BYTES = 4 * 1024 * 1024
"""About so much of a file is read back at once, less with a small budget: a number of rows alone would be any number
of bytes.
"""

LEDGER_FILE = "ledger.parquet"


class FilesUnit(msgspec.Struct, frozen=True, tag_field="kind", tag="files"):
    """The prepared files of a committable. ``checked``: what an earlier attempt found in them."""

    committable: Committable
    checked: StoredColumns | None = None


CommitUnit = FilesUnit | assemble.CheckpointUnit


def prepare(run: PhaseRun) -> Mapping[str, CommitUnit]:
    """All prepared output up to the last checkpoint; a subtask without an entry for it is an error, not "nothing"."""
    found, last = committables(run), last_checkpoint(run)
    complete = {entry.subtask for entry in found if entry.checkpoint_id == last}
    missing = set(range(len(run.plan.subtasks))) - complete
    if missing:
        raise JobFailed(f"subtask {min(missing)} left no prepared output", hint="recover to another target")
    if run.recovery.output.kind.is_checkpoint:
        return assemble.units(run, found)
    shown = committed(Rows(run.repository, run.recovery, run.epoch), sink_for(run.recovery.output))
    visible = [each for each in found if (each.checkpoint_id if is_per_checkpoint(run.recovery) else last) in shown]
    return {**units(found), **units(visible, _checked(run))}


def _checked(run: PhaseRun) -> dict[str, StoredColumns]:
    """What an earlier attempt found in the files, by unit; an earlier version's finding is written anew."""
    found: dict[str, StoredColumns] = {}
    for row in run.repository.units(run.recovery.id, Phase.COMMIT):
        result = result_of(row, CommitResult)
        if result.sha256:
            found[row.unit] = StoredColumns(row.manifest, result.sha256)
        elif "ledger" in row.result:
            uri = run.workspace.attempt(run.epoch, str(run.phase), f"checked-{row.unit}{SUFFIX}")
            ledger = ledger_of_entries(run.plan, result.ledger)
            found[row.unit] = StoredColumns(uri, write_columns(uri, ledger.to_columns()))
    return found


def last_checkpoint(run: PhaseRun) -> int:
    """The recovery checkpoint that the end of the drain completed; its number is that of the publication."""
    complete = [
        row.checkpoint_id
        for row in run.repository.checkpoints(run.recovery.id)
        if row.state is RecoveryCheckpointState.COMPLETED
    ]
    if not complete:
        raise JobFailed("the drain left no complete recovery checkpoint", hint="recover to another target")
    return max(complete)


def finish(run: PhaseRun, results: Sequence[CommitResult]) -> Finished:
    """Compare what would be published with what was drained, then publish it exactly once and write the receipt."""
    plan, sink, expected = run.plan, sink_for(run.recovery.output), drained_by(run)
    if isinstance(sink, CheckpointSink):
        ledger = assemble.ledger_of(run)
        sink = assemble.ready(run, sink, results)
    else:
        ledger = _read_ledger(run, sink, expected)
    require_equal("commit", expected, ledger, line_key(plan))
    ledger, scanned = ledger.without_others(), scanned_by(run)
    source, last = source_ledger(scanned), last_checkpoint(run)
    rows = Rows(run.repository, run.recovery, run.epoch)
    proof = adopted_proof(run, rows.log.get(last), "commit", ledger) or _proof(run, scanned, source, ledger)
    committer = TableCommitter(rows, sink, lambda _: proof, final=last)
    restored(run, committer, last, together=not is_per_checkpoint(run.recovery)).deliver(Close())
    made = _with_metadata(run.recovery.output, publications(run, last, committer.found))
    beside = run.workspace.attempt(run.epoch, LEDGER_FILE)
    with job_scratch(run.job()) as scratch:
        file = write_ledger(beside, scratch, plan, source, ledger)
    if isinstance(sink, CheckpointSink):  # beside its receipt; an earlier attempt's is replaced, as that is
        copy = sink.uri(LEDGER_BESIDE)
        storage_for(copy).replace(copy, storage_for(beside).read(beside))
        file = {**file, "uri": copy}
    receipt = {**_receipt(run, proof, scanned, source, ledger, made), "ledger": file}
    receipt = assemble.beside(run, sink, receipt) if isinstance(sink, CheckpointSink) else sealed(receipt)
    path = run.workspace.attempt(run.epoch, "receipt.json")
    write_json(path, receipt)

    def record(transaction: FencedTransaction) -> None:
        transaction.add_ledger(run.phase, summed_lines(plan, ledger, by_channel=False))
        for publication in made:
            transaction.commit_done(rows.user, publication["commit_id"])
        transaction.save_receipt(receipt)
        let_go(transaction, run)

    result = {"records": ledger.records, "location": made[-1]["location"]}
    verdict = {"verdict": receipt["verdict"], "proven": receipt["proven"]}
    return Finished(
        {**result, **verdict, "bytes": ledger.bytes, "receipt": path, "ledger": beside},
        record,
        lambda: _clean_up(run, sink),
    )


def _with_metadata(target: Target, made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a table's library wrote to make the publications visible, summed while it is unchanged. What other
    targets write is cdr's own, and tells every change by itself.
    """
    lake = lake_for(target)
    if lake is None:
        return made
    found = lake.metadata_of([each["location"] for each in made])
    return [
        {**each, "metadata": [asdict(file) for file in found[each["location"]]]} if each["location"] in found else each
        for each in made
    ]


def _read_ledger(run: PhaseRun, sink: Sink, expected: Ledger) -> Ledger:
    """What the prepared files hold. In the shape without fingerprints that is only how many: that the rows are those of
    the drain is then shown by the sums of the files, which were compared when they were read.
    """
    if not sink.stores:
        return expected
    found = published_by(run)
    if run.shape.identifies_bytes:
        return found
    counts = Ledger.of(expected.lines, np.where(np.arange(expected.sums.shape[1]) == RECORDS, expected.sums, 0))
    require_equal("commit", counts, found, line_key(run.plan))
    return expected


def published_by(run: PhaseRun) -> Ledger:
    """The ledger of what is about to be published, by line, in the order of the recovery checkpoints."""
    return join_ledgers(Ledger.from_columns(unit.columns) for unit in run.outputs(CommitResult) if unit.columns)


def _clean_up(run: PhaseRun, sink: Sink) -> None:
    if isinstance(sink, CheckpointSink):
        assemble.remove_parts(run, sink)
    delete_released(run.repository, run.recovery.id)
    # What a set that was made twice in one attempt left is in no row, but checkpoints named it until now.
    sweep_spilled(run.repository, run.recovery.id, run.settings)
    sweep_unpublished(run.repository, run.recovery.id)


def let_go(transaction: FencedTransaction, run: PhaseRun) -> None:
    """Everything is published: recovery checkpoints expire, and with their grants the spill sets may go, lost ones
    as well.
    """
    complete = [
        row.checkpoint_id
        for row in run.repository.checkpoints(run.recovery.id)
        if row.state is RecoveryCheckpointState.COMPLETED
    ]
    for number in complete:
        transaction.expire_checkpoint(number, "published")
    for each in run.repository.spill_sets(run.recovery.id):
        for number in complete:
            transaction.release_grant(each.id, holder(number))


def _findings(evidence: Sequence[ExchangeEvidence] | None, plan: Plan) -> list[ExchangeFindings]:
    """How far types and keys are proven: not at all where an older version made the plan."""
    if evidence is not None:
        return [each.findings for each in evidence]
    unknown = Finding(False, "the version that made the plan took no sample")
    return [
        ExchangeFindings(e.name, unknown if e.key else None, unknown if e.record != OPAQUE.text else None)
        for e in plan.exchanges
    ]


def _proof(run: PhaseRun, scanned: Scanned, source: Ledger, ledger: Ledger) -> dict[str, Any]:
    """The ledgers of the phases between were compared with their neighbours; their digests say that they were."""
    results = {row.name: row.result or {} for row in run.repository.phases(run.recovery.id)}
    read_again: dict[Phase, Callable[[], Ledger]] = {
        Phase.FILTER: lambda: selected_by(run)[0],
        Phase.SPILL: lambda: spilled_by(run),
        Phase.DRAIN: lambda: drained_by(run),
    }
    between = {
        str(phase): {name: results[phase][name] for name in ("lines", "digest")}
        if "digest" in results[phase]
        else recorded(run.plan, again(), by_channel=False)  # an earlier version did the phase
        for phase, again in read_again.items()
    }
    first, last = described(run.plan, source, by_channel=True), described(run.plan, ledger)
    ledgers = {"read": first, **between, "commit": last}
    return make_proof(run.plan.sha256, run.plan.metadata_sha256, ledgers, left_out(scanned))


def _receipt(
    run: PhaseRun,
    proof: Mapping[str, Any],
    scanned: Scanned,
    source: Ledger,
    ledger: Ledger,
    made: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    recovery = run.repository.recovery(run.recovery.id)
    evidence = evidence_of(recovery)
    receipt = make_receipt(
        recovery={
            "id": recovery.id,
            "source": recovery.source.uri,
            "flink_checkpoint_id": recovery.source.flink_checkpoint_id,
            "target": recovery.target,
            "parallelism": recovery.parallelism,
            "spec": recovery.spec,
        },
        proof=proof,
        source=source,
        published=ledger,
        other_elements=_other_elements(run),
        publication=dict(made[-1]),
        run=run_facts(run, scanned),
        findings=_findings(evidence, run.plan),
        proven=evidence is not None and keys_are_proven(evidence),
    )
    return {**receipt, "publications": list(made)} if is_per_checkpoint(recovery) else receipt


def _other_elements(run: PhaseRun) -> dict[str, Mapping[str, int]]:
    """What the filter did with elements that are no records, and the closing elements that the spill wrote."""
    filtered = next(row.result for row in run.repository.phases(run.recovery.id) if row.name is Phase.FILTER)
    closing: Counter[str] = Counter()
    for line in run.repository.ledger(run.recovery.id, Phase.SPILL):
        closing.update({kind: count for kind, count in line["others"].items() if kind.startswith(CLOSING_PREFIX)})
    return {**(filtered or {})["others"], "closing": closing}


def units(
    committables: Sequence[Committable], checked: Mapping[str, StoredColumns] | None = None
) -> dict[str, FilesUnit]:
    """One unit per committable, named so that a subtask's come in the order of their checkpoints.

    ``checked``: only those of them, each with what an earlier attempt found in its files.
    """
    named = {f"{each.subtask:05d}-{each.checkpoint_id:06d}": each for each in committables}
    if checked is None:
        return {name: FilesUnit(each) for name, each in named.items()}
    return {name: FilesUnit(each, checked[name]) for name, each in named.items() if name in checked}


def execute(job: Job, plan: Plan, unit: CommitUnit, name: str) -> Outcome[CommitResult]:
    """Read the committable's files back and tally them."""
    if not isinstance(unit, FilesUnit):
        return assemble.execute(job, plan, unit, name)
    committable = unit.committable
    if unit.checked is not None:
        return Outcome(committable.records, committable.bytes, CommitResult(), unit.checked.read())
    sink, size = sink_for(Target.parse(job.target)), min(BATCH_BYTES, row_group_bytes(job.memory_budget))
    files = committable.files if sink.stores else ()
    ledger = join_ledgers(read_back(plan, sink, file, size, job.shape) for file in files)
    return Outcome(committable.records, committable.bytes, CommitResult(), ledger.to_columns())


PHASE = PhaseDefinition(
    CommitResult,
    CommitUnit,
    prepare,
    execute,
    finish,
    # Files that an earlier attempt found to be right may have been lost since: every attempt looks at them again,
    # unless the target shows them. Then they belong to it, and its maintenance may have rewritten them.
    checks_anew=True,
)

if __name__ == "__main__":
    from cdr_core.runtime.phase_command import main

    main("commit")
