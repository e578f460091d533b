"""Recovery checkpoints, and the output that was prepared for them."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, func, select

from cdr_core.errors import Refused
from cdr_core.metadata.models import PreparedRow, RecoveryCheckpointRow
from cdr_core.metadata.models.base import utc_now
from cdr_core.metadata.rows import rows_changed
from cdr_core.metadata.states import RecoveryCheckpointState, move
from cdr_core.metadata.transaction.scope import Scope
from cdr_core.metadata.values import Json, Prepared

_COMPLETE = (RecoveryCheckpointState.COMPLETED, RecoveryCheckpointState.EXPIRED)


class Checkpoints(Scope):
    def begin_checkpoint(self, checkpoint_id: int) -> None:
        """TRIGGERED. Numbers only grow, over all attempts: an id is never used twice."""
        last = self._session.scalars(
            select(func.max(RecoveryCheckpointRow.checkpoint_id)).where(
                RecoveryCheckpointRow.recovery_id == self.recovery_id
            )
        ).one()
        if last is not None and checkpoint_id <= last:
            raise Refused(f"recovery checkpoint {checkpoint_id} cannot follow {last}: numbers only grow")
        self._session.add(
            RecoveryCheckpointRow(
                recovery_id=self.recovery_id,
                checkpoint_id=checkpoint_id,
                epoch=self.epoch,
                state=RecoveryCheckpointState.TRIGGERED,
            )
        )
        self._session.flush()

    def complete_checkpoint(self, checkpoint_id: int, manifest: str, sha256: str, result: Json | None = None) -> None:
        """COMPLETED: its manifest is durable. Older pending ones are SUBSUMED and can never complete afterwards."""
        row = self._end(checkpoint_id, RecoveryCheckpointState.COMPLETED, None)
        row.manifest, row.sha256 = manifest, sha256
        row.result = None if result is None else dict(result)
        older = select(RecoveryCheckpointRow.checkpoint_id).where(
            RecoveryCheckpointRow.recovery_id == self.recovery_id,
            RecoveryCheckpointRow.state == RecoveryCheckpointState.TRIGGERED,
            RecoveryCheckpointRow.checkpoint_id < checkpoint_id,
        )
        self._session.flush()
        for pending in self._session.scalars(older).all():
            self.subsume_checkpoint(pending, f"{checkpoint_id} completed first")

    def abort_checkpoint(self, checkpoint_id: int, reason: str) -> None:
        """ABORTED, which is not rolled back: output prepared for it stays and goes with the next one that completes."""
        self._end(checkpoint_id, RecoveryCheckpointState.ABORTED, reason)

    def subsume_checkpoint(self, checkpoint_id: int, reason: str) -> None:
        self._end(checkpoint_id, RecoveryCheckpointState.SUBSUMED, reason)

    def expire_checkpoint(self, checkpoint_id: int, reason: str) -> None:
        """A completed one is no longer kept: nothing resumes from it. Output prepared for it still counts."""
        self._end(checkpoint_id, RecoveryCheckpointState.EXPIRED, reason)

    def add_prepared(self, prepared: Prepared) -> bool:
        """One subtask's output of one checkpoint is durable; ``False`` when the very same is recorded.

        Another one for the same checkpoint replaces an older attempt's, unless that checkpoint (or a later one)
        completed and so counts on it. Within one attempt it is refused: ``reset_subtask`` comes first.
        """
        key = (self.recovery_id, prepared.subtask, prepared.checkpoint_id)
        row = self._session.get(PreparedRow, key)
        if row is not None and (row.sha256, row.manifest) == (prepared.sha256, prepared.manifest):
            return False
        if row is not None:
            self._refuse_replacing(row)
        else:
            row = PreparedRow(recovery_id=self.recovery_id, subtask=key[1], checkpoint_id=key[2])
            self._session.add(row)
        row.epoch, row.recorded_at = self.epoch, utc_now()
        row.manifest, row.sha256 = prepared.manifest, prepared.sha256
        row.records, row.bytes = prepared.records, prepared.bytes
        row.watermark, row.idle = prepared.watermark, prepared.idle
        self._session.flush()
        return True

    def forget_prepared(self, checkpoint_ids: Collection[int]) -> int:
        """Entries of these checkpoints go, because those of another one hold all that they held; how many went."""
        return rows_changed(
            self._session,
            delete(PreparedRow).where(
                PreparedRow.recovery_id == self.recovery_id, PreparedRow.checkpoint_id.in_(checkpoint_ids)
            ),
        )

    def forget_prepared_before(self, checkpoint_id: int) -> int:
        """Entries of older checkpoints go, because those of this one hold all that they held; how many went."""
        return rows_changed(
            self._session,
            delete(PreparedRow).where(
                PreparedRow.recovery_id == self.recovery_id, PreparedRow.checkpoint_id < checkpoint_id
            ),
        )

    def reset_subtask(self, subtask: int, to_checkpoint: int) -> int:
        """Forgets what a subtask prepared after ``to_checkpoint`` (0 = everything), because it starts again from there.

        To be called for every subtask that is drained again, or its rows would be published twice. Returns how many
        entries went. Refused when a completed checkpoint counts on one of them.
        """
        complete = self._last_complete()
        if complete is not None and complete > to_checkpoint:
            raise Refused(f"subtask {subtask} cannot go back to checkpoint {to_checkpoint}: {complete} is complete")
        return rows_changed(
            self._session,
            delete(PreparedRow).where(
                PreparedRow.recovery_id == self.recovery_id,
                PreparedRow.subtask == subtask,
                PreparedRow.checkpoint_id > to_checkpoint,
            ),
        )

    def _refuse_replacing(self, row: PreparedRow) -> None:
        what = f"prepared output of subtask {row.subtask} for checkpoint {row.checkpoint_id}"
        complete = self._last_complete()
        if complete is not None and row.checkpoint_id <= complete:
            raise Refused(f"{what} cannot be replaced: checkpoint {complete} is complete and counts on it")
        if row.epoch == self.epoch:
            raise Refused(f"{what} was recorded by this attempt already, with other content")

    def _last_complete(self) -> int | None:
        return self._session.scalars(
            select(func.max(RecoveryCheckpointRow.checkpoint_id)).where(
                RecoveryCheckpointRow.recovery_id == self.recovery_id, RecoveryCheckpointRow.state.in_(_COMPLETE)
            )
        ).one()

    def _end(self, checkpoint_id: int, state: RecoveryCheckpointState, reason: str | None) -> RecoveryCheckpointRow:
        row = self._session.get(RecoveryCheckpointRow, (self.recovery_id, checkpoint_id))
        if row is None:
            raise Refused(f"recovery {self.recovery_id} has no checkpoint {checkpoint_id}")
        row.state = move(row.state, state)
        row.reason = reason
        row.ended_at = utc_now()
        return row
