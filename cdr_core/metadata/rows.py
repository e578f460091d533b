"""Small things that more than one transaction does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import CursorResult, Executable, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from cdr_core.errors import NotFound
from cdr_core.metadata.models import Base, RecoveryRow, SourceCheckpointRow
from cdr_core.metadata.models.base import utc_now
from cdr_core.metadata.states import RecoveryState

FINAL_STATES = frozenset(state for state in RecoveryState if state.is_final)


def rows_changed(session: Session, statement: Executable) -> int:
    """Executes an UPDATE or DELETE and says how many rows it met."""
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return cast("CursorResult[Any]", result).rowcount


def insert_unless_there(session: Session, table: type[Base], row: dict[str, Any], unique: Sequence[str]) -> bool:
    """Inserts the row and says so, unless one with the same ``unique`` columns exists.

    Waits for another transaction that is just inserting it, so that a SELECT afterwards finds the winner's.
    """
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    statement = insert(table).values(**row).on_conflict_do_nothing(index_elements=unique)
    # Asked for the row itself: how many rows an INSERT met is not told the same way by both drivers.
    return session.execute(statement.returning(*(getattr(table, name) for name in unique))).first() is not None


def lock_recovery(session: Session, recovery_id: str) -> RecoveryRow:
    """The recovery's row, ours alone until the transaction ends, whatever its epoch. An unknown id is refused."""
    touch = update(RecoveryRow).where(RecoveryRow.id == recovery_id).values(updated_at=utc_now())
    if rows_changed(session, touch) == 0:
        raise unknown_recovery(recovery_id)
    return session.get_one(RecoveryRow, recovery_id)


def unknown_recovery(recovery_id: str) -> NotFound:
    return NotFound(f"there is no recovery {recovery_id}", hint="run: cdr list")


def lock_source(session: Session, source_id: int) -> SourceCheckpointRow:
    return session.scalars(
        select(SourceCheckpointRow).where(SourceCheckpointRow.id == source_id).with_for_update()
    ).one()


def settle_pin(session: Session, source_id: int) -> None:
    """Pins the source checkpoint while any of its recoveries may still read it, and lets it go afterwards.

    A FAILED recovery keeps it: it may be resumed.
    """
    source = lock_source(session, source_id)
    session.flush()
    unfinished = select(RecoveryRow.id).where(
        RecoveryRow.source_checkpoint_id == source_id, RecoveryRow.state.not_in(FINAL_STATES)
    )
    source.pinned = session.scalars(unfinished.limit(1)).first() is not None
