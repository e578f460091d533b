"""What every part of a fenced transaction needs: the fence, and the rows behind it."""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from cdr_core.errors import Fenced, PhaseRefused
from cdr_core.metadata.models import AttemptRow, PhaseRow, RecoveryRow
from cdr_core.metadata.models.base import utc_now
from cdr_core.metadata.rows import rows_changed
from cdr_core.metadata.states import Phase, PhaseState


class Scope:
    """A transaction that owns the recovery's row and has proved that ``epoch`` is current."""

    def __init__(self, session: Session, recovery_id: str, epoch: int) -> None:
        # The fence is this one statement. It compares and locks at once: a newer attempt's epoch either is there
        # already, and no row matches, or has to wait until we have committed. A SELECT before it would prove nothing.
        fence = (
            update(RecoveryRow)
            .where(RecoveryRow.id == recovery_id, RecoveryRow.epoch == epoch)
            .values(updated_at=utc_now())
        )
        if rows_changed(session, fence) == 0:
            raise Fenced(_why(session, recovery_id, epoch))
        self._session = session
        self.recovery_id = recovery_id
        self.epoch = epoch

    def _recovery(self) -> RecoveryRow:
        return self._session.get_one(RecoveryRow, self.recovery_id)

    def _attempt(self) -> AttemptRow:
        return self._session.get_one(AttemptRow, (self.recovery_id, self.epoch))

    def _phase(self, phase: Phase) -> PhaseRow:
        return self._session.get_one(PhaseRow, (self.recovery_id, phase))

    def _running(self, phase: Phase) -> PhaseRow:
        """The phase's row, if this attempt runs it: results of any other phase are not its to write."""
        row = self._phase(phase)
        if row.state is not PhaseState.RUNNING:
            raise PhaseRefused(f"phase {phase} of recovery {self.recovery_id} is {row.state}, not RUNNING")
        return row


def _why(session: Session, recovery_id: str, epoch: int) -> str:
    found = session.execute(
        select(RecoveryRow.epoch, RecoveryRow.state).where(RecoveryRow.id == recovery_id)
    ).one_or_none()
    if found is None:
        return f"there is no recovery {recovery_id}"
    return f"epoch {epoch} of recovery {recovery_id} is over: it is at epoch {found.epoch}, {found.state}"
