"""The commit coordinator of an attempt: made from rows, in the drain's driver and in commit.

It runs in the driver between two polls. Writers are other processes and never wait for it; what a publication takes is
time in which the driver does not look for results.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cdr_core.audit.ledger import Ledger, join_ledgers
from cdr_core.audit.receipt import make_proof
from cdr_core.commit.commit_mode import is_per_checkpoint
from cdr_core.commit.commit_store import DatabaseStore, Rows, TableCommitter, committed
from cdr_core.commit.committable import Committable, PreparedFile
from cdr_core.commit.coordinator import Commit, Coordinator, require_known
from cdr_core.commit.listeners import listeners_for
from cdr_core.commit.sinks import sink_for
from cdr_core.commit.watermarks import WatermarkAligner
from cdr_core.drain.checkpoint_cuts import read_cuts
from cdr_core.errors import IllegalState, Unbalanced, Unreadable, Where
from cdr_core.metadata import CommitState, Prepared, RecoveryCheckpointState
from cdr_core.runtime.earlier_versions import adopted_proof
from cdr_core.runtime.phase_ledgers import described
from cdr_core.runtime.phase_outputs import scanned_by
from cdr_core.runtime.quarantine import left_out

if TYPE_CHECKING:
    from cdr_core.metadata import RecoveryCheckpoint
    from cdr_core.runtime.driver import PhaseRun


COMPLETE = (RecoveryCheckpointState.COMPLETED, RecoveryCheckpointState.EXPIRED)


def while_draining(run: PhaseRun) -> Coordinator:
    """Restored to the last complete checkpoint, everything up to it committed."""
    rows = _rows(run)
    # A checkpoint without new output has no entries: nothing of it is to be published.
    checkpoints = run.repository.checkpoints(run.recovery.id)
    complete = {row.checkpoint_id for row in checkpoints if row.state in COMPLETE}
    numbers = {row.checkpoint_id for row in run.repository.prepared(run.recovery.id)}
    with_output = max(numbers & complete, default=0)
    committer = TableCommitter(rows, sink_for(run.recovery.output), proofs_of_cuts(run, rows), check=True)
    return restored(run, committer, with_output, together=False, up_to=last_complete(run))


def require_no_unknown_commit(run: PhaseRun, checkpoint: int) -> None:
    """Before anything after a complete checkpoint is forgotten: the target shows no commit that the rows do not know.

    Where all is published at the end, that is decided then: the same output may have been prepared again.
    """
    if is_per_checkpoint(run.recovery):
        shown = committed(_rows(run), sink_for(run.recovery.output))
        require_known(shown, {row.checkpoint_id for row in run.repository.prepared(run.recovery.id)}, checkpoint)


def _rows(run: PhaseRun) -> Rows:
    return Rows(run.repository, run.recovery, run.epoch)


def last_complete(run: PhaseRun) -> int:
    """The last complete recovery checkpoint; 0 = there is none."""
    rows = run.repository.checkpoints(run.recovery.id)
    return max((row.checkpoint_id for row in rows if row.state in COMPLETE), default=0)


def restored(
    run: PhaseRun, committer: TableCommitter, checkpoint: int, *, together: bool, up_to: int | None = None
) -> Coordinator:
    """A coordinator that has all durable entries (of checkpoints ``up_to`` one, if given) and has committed those up to
    the checkpoint.
    """
    coordinator = Coordinator(
        range(len(run.plan.subtasks)),
        run.epoch,
        committer,
        DatabaseStore(_rows(run)),
        listeners_for(run.recovery.output, run.recovery.id),
        together=together,
    )
    found = committables(run)
    coordinator.restore(checkpoint, [each for each in found if up_to is None or each.checkpoint_id <= up_to])
    return coordinator


def committables(run: PhaseRun, after: int = 0) -> list[Committable]:
    """In the order in which they are committed: by checkpoint, then subtask. Those of checkpoints after a number."""
    return [_committable(row) for row in run.repository.prepared(run.recovery.id, after)]


def _committable(row: Prepared) -> Committable:
    if hashlib.sha256(row.manifest.encode()).hexdigest() != row.sha256:
        raise Unreadable(
            f"the prepared output of checkpoint {row.checkpoint_id} was changed in the metadata database",
            where=Where(subtask=row.subtask),
            hint="restore the database, or recover to another target",
        )
    return Committable.from_json(json.loads(row.manifest))


def publications(run: PhaseRun, last: int, found: Mapping[int, bool]) -> list[dict[str, Any]]:
    """What is in the target, ascending; that everything prepared is in it is required. ``found`` = by a look-up."""
    rows = {row.commit_id: row for row in run.repository.commit_log(run.recovery.id)}
    visible = {number for number, row in rows.items() if row.state is not CommitState.INTENT}
    aligner, entries = WatermarkAligner(range(len(run.plan.subtasks))), committables(run)
    records: Counter[int] = Counter()
    files: dict[int, list[dict[str, Any]]] = {}
    watermarks: dict[int, int | None] = {}
    for number in sorted({entry.checkpoint_id for entry in entries}):
        together = [entry for entry in entries if entry.checkpoint_id == number]
        commit = number if is_per_checkpoint(run.recovery) else last
        watermarks[commit] = aligner.align(number, {entry.subtask: entry for entry in together})
        records[commit] += sum(entry.records for entry in together)
        files.setdefault(commit, []).extend(_summed(file) for entry in together for file in entry.files)
    hidden = sorted(number for number in records if number not in visible and (records[number] or number == last))
    tables = run.recovery.output.kind.is_table
    if hidden:
        raise IllegalState(f"checkpoint {hidden[0]} has output and was not published")
    return [
        {
            "location": rows[number].location,
            "commit_id": number,
            "found_by_look_up": found.get(number, True),
            "records": records[number],
            "watermark": watermarks[number],
            **({"files": files.get(number, [])} if tables else {}),
        }
        for number in sorted(visible)
    ]


def _summed(file: PreparedFile) -> dict[str, Any]:
    digest = {} if file.rows_digest is None else {"rows_digest": file.rows_digest}
    return {"path": file.path, "bytes": file.bytes, "crc32c": file.crc32c, **digest}


DRAINED = "drain"
"""In the row of a recovery checkpoint whose output is published by itself: the ledger of what had been drained."""


def proofs_of_cuts(run: PhaseRun, rows: Rows) -> Callable[[Commit], dict[str, Any]]:
    """Proofs of commits while draining: what had been drained up to the checkpoint that the commit publishes. It is
    stored with the checkpoint, so a commit has the same proof whenever it is tried again.
    """
    plan, missing, prepared = run.plan, left_out(scanned_by(run)), PreparedRecords(run)

    def proof_of(commit: Commit) -> dict[str, Any]:
        row = _checkpoint(run, commit.commit_id)
        drained = (row.result or {}).get(DRAINED)
        if drained is None:
            return proof_of_version_1(commit)
        stated = sum(exchange["records"] for exchange in drained["exchanges"])
        found = sum(prepared.up_to(commit.commit_id).values())
        if stated != found:
            raise _unbalanced(stated, found, Where())
        return make_proof(plan.sha256, plan.metadata_sha256, {DRAINED: drained}, missing)

    def proof_of_version_1(commit: Commit) -> dict[str, Any]:
        row = _checkpoint(run, commit.completed)
        ledgers = {subtask: cut.ledger for subtask, cut in read_cuts(row, plan).items()}
        require_prepared(ledgers, prepared.up_to(commit.completed))
        ledger = join_ledgers(ledgers.values())
        adopted = adopted_proof(run, rows.log.get(commit.commit_id), "drain", ledger)
        if adopted is not None:
            return adopted
        return make_proof(plan.sha256, plan.metadata_sha256, {DRAINED: described(plan, ledger)}, missing)

    return proof_of


def _checkpoint(run: PhaseRun, number: int) -> RecoveryCheckpoint:
    row = run.repository.checkpoint(run.recovery.id, number)
    if row is None:
        raise IllegalState(f"checkpoint {number} completed and is not in the metadata database")
    return row


class PreparedRecords:
    """How many records each subtask has prepared up to a complete checkpoint, by the rows.

    Rows up to a complete checkpoint never change, so only those that came since the last one are read.
    """

    def __init__(self, run: PhaseRun) -> None:
        self._run, self._up_to = run, 0
        self._records: Counter[int] = Counter()

    def up_to(self, checkpoint: int) -> Mapping[int, int]:
        for entry in committables(self._run, after=self._up_to):
            if entry.checkpoint_id <= checkpoint:
                self._records[entry.subtask] += entry.records
        self._up_to = max(self._up_to, checkpoint)
        return self._records


def require_prepared(ledgers: Mapping[int, Ledger], prepared: Mapping[int, int]) -> None:
    """Up to a checkpoint each subtask has prepared what its ledger says: no entry is missing or counted twice."""
    for subtask, ledger in ledgers.items():
        drained = ledger.records
        if drained != prepared.get(subtask, 0):
            raise _unbalanced(drained, prepared.get(subtask, 0), Where(subtask=subtask))


def _unbalanced(drained: int, found: int, where: Where) -> Unbalanced:
    what = f"{drained} records were drained and {found} would be published"
    return Unbalanced(what, where=where, hint="nothing of it was published")
