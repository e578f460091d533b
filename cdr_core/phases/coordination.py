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

from cdr_core.audit.ledger import Entry
from cdr_core.audit.receipt import make_proof
from cdr_core.commit.committable import Committable
from cdr_core.commit.coordinator import Commit, Coordinator
from cdr_core.commit.database import DatabaseStore, Rows, TableCommitter
from cdr_core.commit.listeners import listeners_for
from cdr_core.commit.sinks import sink_for
from cdr_core.commit.watermarks import WatermarkAligner
from cdr_core.errors import IllegalState, SettingsRefused, Unbalanced, Unreadable, Where
from cdr_core.metadata import CommitState, Phase, Prepared, RecoveryCheckpointState
from cdr_core.phases.draining.resume import read_cuts
from cdr_core.phases.quarantine import left_out

if TYPE_CHECKING:
    from cdr_core.metadata import Recovery
    from cdr_core.phases.driver import Drive
    from cdr_core.settings import Settings

AT_END, PER_CHECKPOINT = "at-end", "per-checkpoint"
TABLES = frozenset({"parquet", "iceberg", "paimon"})
"""Targets that can be published to more than once."""

COMPLETE = (RecoveryCheckpointState.COMPLETED, RecoveryCheckpointState.EXPIRED)


def mode_for(target: str, settings: Settings) -> str:
    """How a new recovery will be published. Where nothing is published (``none:``), it is all the same."""
    kind = target.partition(":")[0]
    if settings.commit == AT_END or kind == "none":
        return AT_END
    if kind not in TABLES:
        raise SettingsRefused(f"CDR_COMMIT={settings.commit} cannot publish to {kind}:", hint="unset it")
    if not settings.checkpoint_during_recovery:
        raise SettingsRefused(
            f"CDR_COMMIT={settings.commit} needs checkpoints, and CDR_CHECKPOINT_DURING_RECOVERY is off",
            hint="unset one of them",
        )
    return settings.commit


def is_per_checkpoint(recovery: Recovery) -> bool:
    """As it was chosen when the recovery was created: it never changes."""
    return bool(recovery.options.get("commit", AT_END) == PER_CHECKPOINT)


def while_draining(drive: Drive) -> Coordinator | None:
    """Restored to the last complete checkpoint, everything up to it committed; ``None`` if all waits for the end."""
    if not is_per_checkpoint(drive.recovery):
        return None
    rows = Rows(drive.repository, drive.recovery, drive.epoch)
    sink = sink_for(drive.recovery.target)
    committer = TableCommitter(rows, sink, proofs_of_cuts(drive), check=True)
    return restored(drive, committer, last_complete(drive), together=False)


def last_complete(drive: Drive) -> int:
    """The last complete recovery checkpoint; 0 = there is none."""
    rows = drive.repository.checkpoints(drive.recovery.id)
    return max((row.checkpoint_id for row in rows if row.state in COMPLETE), default=0)


def restored(drive: Drive, committer: TableCommitter, checkpoint: int, *, together: bool) -> Coordinator:
    """A coordinator that has all durable entries and has committed those up to the checkpoint."""
    coordinator = Coordinator(
        range(len(drive.plan.subtasks)),
        drive.epoch,
        committer,
        DatabaseStore(Rows(drive.repository, drive.recovery, drive.epoch)),
        listeners_for(drive.recovery.target, drive.recovery.id),
        together=together,
    )
    coordinator.restore(checkpoint, committables(drive))
    return coordinator


def committables(drive: Drive) -> list[Committable]:
    """In the order in which they are committed: by checkpoint, then subtask."""
    return [_committable(row) for row in drive.repository.prepared(drive.recovery.id)]


def _committable(row: Prepared) -> Committable:
    if hashlib.sha256(row.manifest.encode()).hexdigest() != row.sha256:
        raise Unreadable(
            f"the prepared output of checkpoint {row.checkpoint_id} was changed in the metadata database",
            where=Where(subtask=row.subtask),
            hint="restore the database, or recover to another target",
        )
    return Committable.from_json(json.loads(row.manifest))


def publications(drive: Drive, last: int, found: Mapping[int, bool]) -> list[dict[str, Any]]:
    """What is in the target, ascending; that everything prepared is in it is required. ``found`` = by a look-up."""
    rows = {row.commit_id: row for row in drive.repository.commit_log(drive.recovery.id)}
    visible = {number for number, row in rows.items() if row.state is not CommitState.INTENT}
    aligner, entries = WatermarkAligner(range(len(drive.plan.subtasks))), committables(drive)
    records: Counter[int] = Counter()
    watermarks: dict[int, int | None] = {}
    for number in sorted({entry.checkpoint_id for entry in entries}):
        together = [entry for entry in entries if entry.checkpoint_id == number]
        commit = number if is_per_checkpoint(drive.recovery) else last
        watermarks[commit] = aligner.align(number, {entry.subtask: entry for entry in together})
        records[commit] += sum(entry.records for entry in together)
    hidden = sorted(number for number in records if number not in visible and (records[number] or number == last))
    if hidden:
        raise IllegalState(f"checkpoint {hidden[0]} has output and was not published")
    return [
        {
            "location": rows[number].location,
            "commit_id": number,
            "found_by_look_up": found.get(number, True),
            "records": records[number],
            "watermark": watermarks[number],
        }
        for number in sorted(visible)
    ]


def proofs_of_cuts(drive: Drive) -> Callable[[Commit], dict[str, Any]]:
    """Proofs of commits while draining: what had been drained up to the checkpoint whose completion allows them."""
    plan, missing = drive.plan, left_out(drive.results(Phase.READ))

    def proof_of(commit: Commit) -> dict[str, Any]:
        rows = drive.repository.checkpoints(drive.recovery.id)
        cuts = read_cuts(next(row for row in rows if row.checkpoint_id == commit.completed))
        require_prepared(cuts, [row for row in committables(drive) if row.checkpoint_id <= commit.completed])
        ledger = [Entry.from_json(line) for cut in cuts.values() for line in cut["body"]["ledger"]]
        return make_proof(plan.sha256, plan.metadata_sha256, {"drain": ledger}, missing)

    return proof_of


def require_prepared(cuts: Mapping[int, Mapping[str, Any]], entries: list[Committable]) -> None:
    """Up to a checkpoint each subtask has prepared what its ledger says: no entry is missing or counted twice."""
    prepared: Counter[int] = Counter()
    for entry in entries:
        prepared[entry.subtask] += entry.records
    for subtask, cut in cuts.items():
        drained = sum(line["records"] for line in cut["body"]["ledger"])
        if drained != prepared[subtask]:
            raise Unbalanced(
                f"{drained} records were drained and {prepared[subtask]} would be published",
                where=Where(subtask=subtask),
                hint="nothing of it was published",
            )
