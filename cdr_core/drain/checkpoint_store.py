"""What the database knows of a recovery checkpoint: prepared entries, a manifest, grants, and which ones are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from cdr_core.commit.committable import Committable
from cdr_core.metadata import FencedTransaction, Prepared, RecoveryCheckpointState, SpillSetState

if TYPE_CHECKING:
    from cdr_core.drain.resume import SubtaskOutput
    from cdr_core.runtime.driver import PhaseRun


def all_output(number: int, outputs: Mapping[int, SubtaskOutput]) -> list[Committable]:
    """An entry per subtask with everything that it has prepared, also when that is nothing."""
    return [
        Committable(subtask, number, output.files, output.watermark.watermark, output.watermark.idle)
        for subtask, output in sorted(outputs.items())
    ]


def new_output(number: int, outputs: Mapping[int, SubtaskOutput], known: Collection[str]) -> list[Committable]:
    """An entry per subtask with the files that are not known yet."""
    return [
        Committable(
            subtask,
            number,
            tuple(file for file in output.files if file.path not in known),
            output.watermark.watermark,
            output.watermark.idle,
        )
        for subtask, output in sorted(outputs.items())
    ]


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


def complete(
    transaction: FencedTransaction, run: PhaseRun, number: int, manifest: str, sha256: str, result: Mapping[str, Any]
) -> list[int]:
    """COMPLETED, with a grant on every spill set it refers to. Older ones that no user asked for expire; their
    numbers. ``result`` says whether it is ``kept``.
    """
    sets = run.repository.spill_sets(run.recovery.id)
    transaction.complete_checkpoint(number, manifest, sha256, result)
    for spill_set in sets:
        if spill_set.state is SpillSetState.SEALED:
            transaction.acquire_grant(spill_set.id, holder(number), durable=True)
    held = [
        row
        for row in run.repository.checkpoints(run.recovery.id, RecoveryCheckpointState.COMPLETED)
        if row.checkpoint_id != number and not (row.result or {}).get("kept")
    ]
    # The new one counts among those that are retained.
    too_many = held[: max(len(held) - (run.settings.retained_checkpoints - 1), 0)]
    for old in too_many:
        transaction.expire_checkpoint(old.checkpoint_id, f"{number} completed")
        for spill_set in sets:
            transaction.release_grant(spill_set.id, holder(old.checkpoint_id))
    return [old.checkpoint_id for old in too_many]


def holder(checkpoint: int) -> str:
    """The name under which a recovery checkpoint holds its spill sets."""
    return f"checkpoint-{checkpoint}"
