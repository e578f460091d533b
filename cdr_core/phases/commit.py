"""commit: read every prepared file back, compare it with the source, then publish all of them in one step.

Unit: a batch of prepared files to check. The publication itself happens once, in the driver, by the commit protocol.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import cdr_core
from cdr_core.audit.ledger import ChannelKey, Entry, Tally, require_equal, total
from cdr_core.audit.receipt import make_proof, make_receipt, proof_sha256
from cdr_core.commit.committable import Committable, PreparedFile
from cdr_core.commit.protocol import publish_once
from cdr_core.commit.sinks import Publication, Published, Sink, sink_for
from cdr_core.errors import JobFailed
from cdr_core.kernels import fingerprint
from cdr_core.metadata import Phase
from cdr_core.phases.drain import FINAL_CHECKPOINT
from cdr_core.phases.drain import entries as drained
from cdr_core.phases.read import entries as read_entries
from cdr_core.phases.unit import Finished, Job, Outcome
from cdr_core.phases.workspace import write_json
from cdr_core.rescale.plan import Plan

if TYPE_CHECKING:
    from cdr_core.metadata import FencedTransaction
    from cdr_core.phases.driver import Drive

CHECKS_ANEW = True
"""Files that an earlier attempt found to be right may have been lost since: every attempt looks at them again."""

CHECKED = ("exchange", "up", "down", "new_down", "raw")


def prepare(drive: Drive) -> dict[str, Any]:
    """All prepared output, one committable per subtask; a missing one is an error, not "nothing to do"."""
    committables = _committables(drive)
    missing = set(range(len(drive.plan.subtasks))) - {committable.subtask for committable in committables}
    if missing:
        raise JobFailed(f"subtask {min(missing)} left no prepared output", hint="recover to another target")
    return units(committables)


def finish(drive: Drive, results: Sequence[Mapping[str, Any]]) -> Finished:
    """Compare what would be published with what was drained, then publish it exactly once and write the receipt."""
    ledger = entries(results)
    require_equal("commit", drained(drive.results(Phase.DRAIN)), ledger)
    proof = _proof(drive, ledger)
    log = DatabaseCommitLog(drive, proof)
    publication = _publication(drive, proof, total(ledger).records)
    published, found = publish_once(sink_for(drive.recovery.target), log.user, FINAL_CHECKPOINT, publication, log)
    receipt = _receipt(drive, proof, ledger, published, found)
    path = drive.workspace.attempt(drive.epoch, "receipt.json")
    write_json(path, receipt)

    def record(transaction: FencedTransaction) -> None:
        transaction.add_ledger(drive.phase, [entry.to_json() for entry in ledger])
        transaction.commit_done(log.user, FINAL_CHECKPOINT)
        transaction.save_receipt(receipt)

    result = {"records": total(ledger).records, "location": published.location, "verdict": receipt["verdict"]}
    return Finished({**result, "bytes": total(ledger).bytes, "receipt": path}, record)


class DatabaseCommitLog:
    """See :class:`cdr_core.commit.protocol.CommitLog`."""

    def __init__(self, drive: Drive, proof: Mapping[str, Any]) -> None:
        self._drive, self._proof = drive, proof
        self.user = commit_user(drive.recovery.id)

    def intend(self, base: int) -> None:
        with self._drive.fenced() as transaction:
            transaction.intend(self.user, FINAL_CHECKPOINT, str(base), proof_sha256(self._proof), self._proof)

    def require_current(self) -> None:
        with self._drive.fenced():
            pass

    def record(self, published: Published) -> None:
        with self._drive.fenced() as transaction:
            transaction.published(self.user, FINAL_CHECKPOINT, published.location, None)


def commit_user(recovery: str) -> str:
    """Stable over retries and unique per recovery: what a look-up in the target searches for."""
    return f"cdr-{recovery}"


def _committables(drive: Drive) -> list[Committable]:
    return [Committable.from_json(json.loads(row.manifest)) for row in drive.repository.prepared(drive.recovery.id)]


def _proof(drive: Drive, ledger: Sequence[Entry]) -> dict[str, Any]:
    earlier = {
        str(phase): [Entry.from_json(line) for line in drive.repository.ledger(drive.recovery.id, phase)]
        for phase in Phase
        if phase is not Phase.COMMIT
    }
    return make_proof(drive.plan.sha256, drive.plan.metadata_sha256, {**earlier, "commit": ledger})


def _publication(drive: Drive, proof: Mapping[str, Any], records: int) -> Publication:
    files = tuple(file for committable in _committables(drive) for file in committable.files)
    return Publication(
        files,
        {
            "cdr.recovery": drive.recovery.id,
            "cdr.commit-user": commit_user(drive.recovery.id),
            "cdr.commit-id": str(FINAL_CHECKPOINT),
            "cdr.epoch": str(drive.epoch),
            "cdr.source-checkpoint": drive.recovery.source.uri,
            "cdr.records": str(records),
            "cdr.proof-sha256": proof_sha256(proof),
        },
    )


def _receipt(
    drive: Drive, proof: Mapping[str, Any], ledger: Sequence[Entry], published: Published, found: bool
) -> dict[str, Any]:
    recovery = drive.repository.recovery(drive.recovery.id)
    phases = drive.repository.phases(recovery.id)
    attempts = drive.repository.attempts(recovery.id)
    seconds = {
        str(row.name): round((row.ended_at - row.started_at).total_seconds(), 3)
        for row in phases
        if row.started_at and row.ended_at
    }
    return make_receipt(
        recovery={
            "id": recovery.id,
            "source": recovery.source.uri,
            "flink_checkpoint_id": recovery.source.flink_checkpoint_id,
            "target": recovery.target,
            "parallelism": recovery.parallelism,
        },
        proof=proof,
        source=read_entries(drive.results(Phase.READ)),
        published=ledger,
        publication={"location": published.location, "commit_id": published.commit_id, "found_by_look_up": found},
        run={
            "cdr": cdr_core.__version__,
            "seconds": seconds,
            "attempts": [
                {
                    "epoch": a.epoch,
                    "phase": str(a.phase),
                    "run": a.runner.run,
                    "try": a.runner.try_number,
                    "state": str(a.state),
                }
                for a in attempts
            ],
        },
    )


def units(committables: Sequence[Committable]) -> dict[str, Any]:
    """One unit per committable."""
    return {f"{c.subtask:05d}-{c.checkpoint_id}": c.to_json() for c in committables}


def execute(job: Job, _plan: Plan, unit: Mapping[str, Any], _name: str) -> Outcome:
    """Read the committable's files back and tally them."""
    committable = Committable.from_json(unit)
    sink = sink_for(job.target)
    tallies: dict[ChannelKey, Tally] = {}
    for file in committable.files:
        _tally_file(sink, file, tallies)
    ledger = [Entry(key, tally).to_json() for key, tally in tallies.items()]
    return Outcome(committable.records, committable.bytes, {"ledger": ledger})


def _tally_file(sink: Sink, file: PreparedFile, tallies: dict[ChannelKey, Tally]) -> None:
    with sink.open_file(file) as source:
        for batch in pq.ParquetFile(source).iter_batches(columns=list(CHECKED)):
            for start, end in _same_channel(batch):
                key = ChannelKey(*(batch.column(name)[start].as_py() for name in CHECKED[:-1]))
                tally = _tally(batch.column("raw"), start, end)
                tallies[key] = tallies.get(key, Tally()).then(tally)


def _same_channel(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """Stretches of rows of one virtual channel; rows of a subtask lie in drain order, so there are few."""
    change = np.zeros(max(batch.num_rows - 1, 0), dtype=bool)
    for name in CHECKED[:-1]:
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
        for value in result["ledger"]:
            entry = Entry.from_json(value)
            joined[entry.key] = joined.get(entry.key, Tally()).then(entry.tally)
    return [Entry(key, tally) for key, tally in joined.items()]


if __name__ == "__main__":
    from cdr_core.phases.main import main

    main("commit")
