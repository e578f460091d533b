"""Starting over: a new generation takes the place of a recovery of which nothing is published."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from cdr_core.metadata.attempts import abandon
from cdr_core.metadata.cancel import close_commands, open_commands
from cdr_core.metadata.models import CommitLogRow, RecoveryRow
from cdr_core.metadata.states import CommandState, CommitState, RecoveryState, move
from cdr_core.metadata.values import NewRecovery, already_visible


def replace(session: Session, old: RecoveryRow, new: NewRecovery) -> None:
    """Mark a recovery as REPLACED; the epoch rises, so that a process that still works on it is fenced.

    Refused once its commit log says that something is published. A commit that was only intended is no obstacle: the
    caller has looked into the target, and the next generation publishes nothing where it finds this one's output.
    """
    _refuse_published(session, old)
    reason = f"replaced by {new.id}"
    abandon(session, old.id, reason)
    close_commands(open_commands(session, old.id), CommandState.REFUSED, {"reason": f"the recovery was {reason}"})
    old.state = move(old.state, RecoveryState.REPLACED)
    old.epoch += 1
    old.identity = None
    old.replaced_by = new.id
    session.flush()


def _refuse_published(session: Session, old: RecoveryRow) -> None:
    """Raise if a row says that output of this recovery is visible, and say which."""
    published = select(CommitLogRow).where(CommitLogRow.recovery_id == old.id, CommitLogRow.state != CommitState.INTENT)
    entry = session.scalars(published.order_by(CommitLogRow.commit_id.desc()).limit(1)).first()
    if old.state is RecoveryState.DONE or entry is not None:
        raise already_visible(old.id, [] if entry is None else [(entry.commit_id, entry.location or "")])
