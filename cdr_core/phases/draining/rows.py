"""What the database knows of a recovery checkpoint: prepared entries, a manifest, grants, and which ones are kept."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from cdr_core.commit.committable import Committable, PreparedFile
from cdr_core.metadata import FencedTransaction, Prepared, RecoveryCheckpointState, SpillSetState
from cdr_core.phases.draining.mailbox import NOTHING_SAID
from cdr_core.storage import join, storage_for

MANIFEST_VERSION = 2
"""2: what was delivered is counted by line, in columns."""

if TYPE_CHECKING:
    from cdr_core.drain.checkpoints import Answer
    from cdr_core.phases.driver import Drive


def committable(answer: Answer) -> Committable:
    """A subtask's entry for a checkpoint; there is one even when it holds no file."""
    files = tuple(PreparedFile.from_json(file) for file in answer.body["files"])
    said = answer.body.get("said", NOTHING_SAID)
    return Committable(answer.subtask, answer.checkpoint, files, said["watermark"], said["idle"])


def prepared(entry: Committable) -> Prepared:
    """The row of an entry."""
    text = json.dumps(entry.to_json(), sort_keys=True)
    return Prepared(
        subtask=entry.subtask,
        checkpoint_id=entry.checkpoint_id,
        manifest=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        records=entry.records,
        bytes=entry.bytes,
        watermark=entry.watermark,
        idle=entry.idle,
    )


def write_manifest(drive: Drive, number: int, answers: Any) -> tuple[str, str]:
    """The manifest of a recovery checkpoint: where each subtask goes on. Its place and SHA-256."""
    uri = join(drive.workspace.attempt(drive.epoch, "checkpoints"), f"{number:06d}.json")
    cuts = {str(a.subtask): {"position": a.position, "body": dict(a.body)} for a in answers}
    data = json.dumps({"version": MANIFEST_VERSION, "checkpoint": number, "cuts": cuts}, sort_keys=True).encode()
    storage_for(uri).create(uri, data)
    return uri, hashlib.sha256(data).hexdigest()


def complete(
    transaction: FencedTransaction, drive: Drive, number: int, manifest: str, sha256: str, *, kept: bool
) -> None:
    """COMPLETED, with a grant on every spill set it refers to; older ones that nobody asked for expire."""
    sets = drive.repository.spill_sets(drive.recovery.id)
    transaction.complete_checkpoint(number, manifest, sha256, {"kept": kept})
    for spill_set in sets:
        if spill_set.state is SpillSetState.SEALED:
            transaction.acquire_grant(spill_set.id, holder(number), durable=True)
    held = [
        row
        for row in drive.repository.checkpoints(drive.recovery.id)
        if row.state is RecoveryCheckpointState.COMPLETED and not (row.result or {}).get("kept")
    ]
    # The new one counts among those that are retained, and this list was read before it was there.
    too_many = len(held) - (drive.settings.retained_checkpoints - 1)
    for old in held[: max(too_many, 0)]:
        transaction.expire_checkpoint(old.checkpoint_id, f"{number} completed")
        for spill_set in sets:
            transaction.release_grant(spill_set.id, holder(old.checkpoint_id))


def holder(checkpoint: int) -> str:
    """The name under which a recovery checkpoint holds its spill sets."""
    return f"checkpoint-{checkpoint}"
