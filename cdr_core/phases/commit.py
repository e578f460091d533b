"""commit: read every prepared file back, compare it with the source, then publish what is not published yet.

Unit: a batch of prepared files to check. By default everything is published in one step, once, in the driver, by the
commit protocol; where each recovery checkpoint was published when it completed, the last one is left to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdr_core.audit.ledger import ChannelKey, Entry, Tally, require_equal, total
from cdr_core.audit.receipt import make_proof, make_receipt, sealed
from cdr_core.commit.committable import Committable, PreparedFile
from cdr_core.commit.database import Rows, TableCommitter, committed
from cdr_core.commit.events import Close
from cdr_core.commit.sinks import Sink, is_checkpoint, lake_for, sink_for
from cdr_core.commit.sinks.base import row_group_bytes
from cdr_core.commit.sinks.checkpoint import CheckpointSink
from cdr_core.errors import JobFailed
from cdr_core.kernels import fingerprint
from cdr_core.metadata import Phase, RecoveryCheckpointState
from cdr_core.phases.coordination import committables, is_per_checkpoint, publications, restored
from cdr_core.phases.drain import entries as drained
from cdr_core.phases.draining.rows import holder
from cdr_core.phases.quarantine import left_out
from cdr_core.phases.read import entries as read_entries
from cdr_core.phases.read import evidence_of
from cdr_core.phases.rewriting import assemble
from cdr_core.phases.run_facts import run_facts
from cdr_core.phases.unit import Finished, Job, Outcome
from cdr_core.phases.workspace import write_json
from cdr_core.rescale.bound import OPAQUE
from cdr_core.rescale.columns import RAW
from cdr_core.rescale.evidence import ExchangeEvidence, Finding, keys_are_proven
from cdr_core.rescale.other_elements import CLOSING_PREFIX
from cdr_core.rescale.plan import Plan
from cdr_core.spill.release import delete_released
from cdr_core.sweep import sweep_spilled, sweep_unpublished

if TYPE_CHECKING:
    from cdr_core.metadata import FencedTransaction
    from cdr_core.phases.driver import Drive

CHECKS_ANEW = True
"""Files that an earlier attempt found to be right may have been lost since: every attempt looks at them again, unless
the target shows them. Then they belong to it, and whoever tends it may have rewritten them.
"""

BATCH_BYTES = 4 * 1024 * 1024
"""About so much of a file is read back at once, less with a small budget: a number of rows alone would be any number
of bytes.
"""

LEDGER, CHECKED_BEFORE = "ledger", "checked"
"""What a unit left; where a unit is told what it left before."""

CHANNEL = ("exchange", "up", "down", "new_down")
"""Columns that say of which part of which channel a row is."""


def prepare(drive: Drive) -> dict[str, Any]:
    """All prepared output up to the last checkpoint; a subtask without an entry for it is an error, not "nothing"."""
    found, last = committables(drive), last_checkpoint(drive)
    complete = {entry.subtask for entry in found if entry.checkpoint_id == last}
    missing = set(range(len(drive.plan.subtasks))) - complete
    if missing:
        raise JobFailed(f"subtask {min(missing)} left no prepared output", hint="recover to another target")
    if is_checkpoint(drive.recovery.target):
        return assemble.units(drive, found)
    shown = committed(Rows(drive.repository, drive.recovery, drive.epoch), sink_for(drive.recovery.target))
    visible = [each for each in found if (each.checkpoint_id if is_per_checkpoint(drive.recovery) else last) in shown]
    checked = {row.unit: row.result[LEDGER] for row in drive.repository.units(drive.recovery.id, Phase.COMMIT)}
    return {**units(found), **units(visible, checked)}


def last_checkpoint(drive: Drive) -> int:
    """The recovery checkpoint that the end of the drain completed; its number is that of the publication."""
    complete = [
        row.checkpoint_id
        for row in drive.repository.checkpoints(drive.recovery.id)
        if row.state is RecoveryCheckpointState.COMPLETED
    ]
    if not complete:
        raise JobFailed("the drain left no complete recovery checkpoint", hint="recover to another target")
    return max(complete)


def finish(drive: Drive, results: Sequence[Mapping[str, Any]]) -> Finished:
    """Compare what would be published with what was drained, then publish it exactly once and write the receipt."""
    sink, expected = sink_for(drive.recovery.target), drained(drive.results(Phase.DRAIN))
    if isinstance(sink, CheckpointSink):
        ledger = assemble.ledger_of(drive, results)
        sink = assemble.ready(drive, sink, results)
    else:
        ledger = _read_ledger(drive, sink, results, expected)
    require_equal("commit", expected, ledger)
    proof, last = _proof(drive, ledger), last_checkpoint(drive)
    rows = Rows(drive.repository, drive.recovery, drive.epoch)
    committer = TableCommitter(rows, sink, lambda _: proof, final=last)
    restored(drive, committer, last, together=not is_per_checkpoint(drive.recovery)).deliver(Close())
    made = _with_metadata(drive.recovery.target, publications(drive, last, committer.found))
    receipt = _receipt(drive, proof, ledger, made)
    receipt = assemble.beside(drive, sink, receipt) if isinstance(sink, CheckpointSink) else sealed(receipt)
    path = drive.workspace.attempt(drive.epoch, "receipt.json")
    write_json(path, receipt)

    def record(transaction: FencedTransaction) -> None:
        transaction.add_ledger(drive.phase, [entry.to_json() for entry in ledger])
        for publication in made:
            transaction.commit_done(rows.user, publication["commit_id"])
        transaction.save_receipt(receipt)
        let_go(transaction, drive)

    result = {"records": total(ledger).records, "location": made[-1]["location"], "verdict": receipt["verdict"]}
    result["proven"] = receipt["proven"]
    return Finished(
        {**result, "bytes": total(ledger).bytes, "receipt": path},
        record,
        lambda: _clean_up(drive, sink),
    )


def _with_metadata(target: str, made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a table's library wrote to make the publications visible, summed while nobody has changed it. What other
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


def _read_ledger(drive: Drive, sink: Sink, results: Sequence[Mapping[str, Any]], expected: list[Entry]) -> list[Entry]:
    """What the prepared files hold. Without the records' bytes that is only how many: that the rows are those of the
    drain is then shown by the sums of the files, which were compared when they were read.
    """
    if not sink.stores:
        return expected
    found = entries(results)
    if drive.keeps_raw:
        return found
    require_equal("commit", [Entry(entry.key, Tally(entry.tally.records)) for entry in expected], found)
    return expected


def _clean_up(drive: Drive, sink: Sink) -> None:
    if isinstance(sink, CheckpointSink):
        assemble.remove_parts(drive, sink)
    delete_released(drive.repository, drive.recovery.id)
    # What a set that was made twice in one attempt left is in no row, but checkpoints named it until now.
    sweep_spilled(drive.repository, drive.recovery.id, drive.settings)
    sweep_unpublished(drive.repository, drive.recovery.id)


def let_go(transaction: FencedTransaction, drive: Drive) -> None:
    """Everything is published: recovery checkpoints expire, and with their grants the spill sets may go, lost ones
    as well.
    """
    complete = [
        row.checkpoint_id
        for row in drive.repository.checkpoints(drive.recovery.id)
        if row.state is RecoveryCheckpointState.COMPLETED
    ]
    for number in complete:
        transaction.expire_checkpoint(number, "published")
    for each in drive.repository.spill_sets(drive.recovery.id):
        for number in complete:
            transaction.release_grant(each.id, holder(number))


def _findings(evidence: Sequence[ExchangeEvidence] | None, plan: Plan) -> list[dict[str, Any]]:
    """How far types and keys are proven; records themselves have no place in a receipt."""
    if evidence is not None:
        return [{name: each.to_json()[name] for name in ("name", "key", "types")} for each in evidence]
    unknown = Finding(False, "the version that made the plan took no sample").to_json()
    return [
        {
            "name": each.name,
            "key": unknown if each.key else None,
            "types": unknown if each.record != OPAQUE.text else None,
        }
        for each in plan.exchanges
    ]


def _proof(drive: Drive, ledger: Sequence[Entry]) -> dict[str, Any]:
    earlier = {
        str(phase): [Entry.from_json(line) for line in drive.repository.ledger(drive.recovery.id, phase)]
        for phase in Phase
        if phase is not Phase.COMMIT
    }
    ledgers = {**earlier, "commit": ledger}
    return make_proof(drive.plan.sha256, drive.plan.metadata_sha256, ledgers, left_out(drive.results(Phase.READ)))


def _receipt(
    drive: Drive, proof: Mapping[str, Any], ledger: Sequence[Entry], made: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    recovery = drive.repository.recovery(drive.recovery.id)
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
        source=read_entries(drive.results(Phase.READ)),
        published=ledger,
        other_elements=_other_elements(drive),
        publication=dict(made[-1]),
        run=run_facts(drive),
        exchanges=_findings(evidence, drive.plan),
        proven=evidence is not None and keys_are_proven(evidence),
    )
    return {**receipt, "publications": list(made)} if is_per_checkpoint(recovery) else receipt


def _other_elements(drive: Drive) -> dict[str, Mapping[str, int]]:
    """What the filter did with elements that are no records, and the closing elements that the spill wrote."""
    filtered = next(row.result for row in drive.repository.phases(drive.recovery.id) if row.name is Phase.FILTER)
    closing: Counter[str] = Counter()
    for line in drive.repository.ledger(drive.recovery.id, Phase.SPILL):
        closing.update({kind: count for kind, count in line["others"].items() if kind.startswith(CLOSING_PREFIX)})
    return {**(filtered or {})["others"], "closing": closing}


def units(committables: Sequence[Committable], checked: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """One unit per committable, named so that a subtask's come in the order of their checkpoints.

    ``checked``: only those of them, each with what an earlier attempt found in its files.
    """
    named = {f"{each.subtask:05d}-{each.checkpoint_id:06d}": each.to_json() for each in committables}
    if checked is None:
        return named
    return {name: {**value, CHECKED_BEFORE: checked[name]} for name, value in named.items() if name in checked}


def execute(job: Job, plan: Plan, unit: Mapping[str, Any], name: str) -> Outcome:
    """Read the committable's files back and tally them."""
    if is_checkpoint(job.target):
        return assemble.execute(job, plan, unit, name)
    committable = Committable.from_json(unit)
    ledger = unit[CHECKED_BEFORE] if CHECKED_BEFORE in unit else _read_back(job, committable)
    return Outcome(committable.records, committable.bytes, {LEDGER: ledger})


def _read_back(job: Job, committable: Committable) -> list[dict[str, Any]]:
    sink = sink_for(job.target)
    tallies: dict[ChannelKey, Tally] = {}
    for file in committable.files if sink.stores else ():
        _tally_file(sink, file, tallies, min(BATCH_BYTES, row_group_bytes(job.memory_budget)), raw=job.raw)
    return [Entry(key, tally).to_json() for key, tally in tallies.items()]


def _tally_file(
    sink: Sink, file: PreparedFile, tallies: dict[ChannelKey, Tally], size: int, *, raw: bool = True
) -> None:
    columns = [*CHANNEL, RAW] if raw else [*CHANNEL]
    with sink.open_file(file) as source:
        for batch in _batches(pq.ParquetFile(source), size, columns):
            for start, end in _same_channel(batch):
                key = ChannelKey(*(batch.column(name)[start].as_py() for name in CHANNEL))
                tally = _tally(batch.column(RAW), start, end) if raw else Tally(end - start)
                tallies[key] = tallies.get(key, Tally()).then(tally)


def _batches(file: pq.ParquetFile, size: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """About ``size`` bytes each, row group by row group: an iterator over all of them would hold every byte it has
    read until it ends.
    """
    for group in range(file.num_row_groups):
        there = file.metadata.row_group(group)
        rows = max(1, size * there.num_rows // max(there.total_byte_size, 1))
        yield from file.iter_batches(rows, row_groups=[group], columns=columns)


def _same_channel(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """Stretches of rows of one virtual channel; rows of a subtask lie in drain order, so there are few."""
    change = np.zeros(max(batch.num_rows - 1, 0), dtype=bool)
    for name in CHANNEL:
        column = batch.column(name)
        change |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    borders = [0, *(np.flatnonzero(change) + 1).tolist(), batch.num_rows]
    return list(pairwise(borders)) if batch.num_rows else []


def _tally(raw: pa.BinaryArray, start: int, end: int) -> Tally:
    offsets, data = _buffers(raw)
    sums = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64)
    lanes = np.zeros(end - start, np.int64)
    fingerprint.fold_records(data, offsets[start:end], offsets[start + 1 : end + 1], lanes, sums)
    return Tally.of_fold(sums[0])


def _buffers(raw: pa.BinaryArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    _, offsets, data = raw.buffers()
    first, count = raw.offset, len(raw) + 1
    numbers = np.frombuffer(offsets, dtype=np.int32)[first : first + count].astype(np.int64)
    return numbers, np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, np.uint8)


def entries(results: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """The ledger of what is about to be published."""
    joined: dict[ChannelKey, Tally] = {}
    for result in results:
        for value in result[LEDGER]:
            entry = Entry.from_json(value)
            joined[entry.key] = joined.get(entry.key, Tally()).then(entry.tally)
    return [Entry(key, tally) for key, tally in joined.items()]


if __name__ == "__main__":
    from cdr_core.phases.main import main

    main("commit")
