"""Reading without a fence: what the shell, the pages and the phases want to know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute, Session

from cdr_core.metadata import convert, models, values
from cdr_core.metadata.database import Database
from cdr_core.metadata.rows import unknown_recovery
from cdr_core.metadata.states import Phase, RecoveryCheckpointState, RecoveryState

_Row = TypeVar("_Row", bound=models.Base)

MOST_ROWS = 10_000
"""A page of recoveries is never longer."""


class Readers:
    """Every method is one read transaction; an unknown recovery is refused, never "nothing"."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def recovery(self, recovery_id: str) -> values.Recovery:
        with self._known(recovery_id) as (session, row):
            return convert.recovery(session, row)

    def recoveries(
        self, limit: int = 100, offset: int = 0, state: RecoveryState | None = None
    ) -> tuple[values.Recovery, ...]:
        """Newest first, by the clocks of those who made them; at most ``MOST_ROWS``."""
        wanted = select(models.RecoveryRow)
        if state is not None:
            wanted = wanted.where(models.RecoveryRow.state == state)
        page = (
            wanted.order_by(models.RecoveryRow.created_at.desc(), models.RecoveryRow.id)
            .limit(min(limit, MOST_ROWS))
            .offset(offset)
        )
        with self._database.read() as session:
            return tuple(convert.recovery(session, row) for row in session.scalars(page).all())

    def sources(self, *, pinned: bool | None = None) -> tuple[values.SourceCheckpoint, ...]:
        """The checkpoints that were recovered, or only those that (do not) have to stay."""
        wanted = select(models.SourceCheckpointRow).order_by(models.SourceCheckpointRow.id)
        if pinned is not None:
            wanted = wanted.where(models.SourceCheckpointRow.pinned.is_(pinned))
        with self._database.read() as session:
            return tuple(convert.source(row) for row in session.scalars(wanted))

    def phases(self, recovery_id: str) -> tuple[values.PhaseProgress, ...]:
        """All five, in the order in which they run."""
        with self._known(recovery_id) as (session, _):
            rows = {row.name: row for row in _of(session, models.PhaseRow, recovery_id)}
            return tuple(convert.phase(rows[phase]) for phase in Phase)

    def units(self, recovery_id: str, phase: Phase) -> tuple[values.UnitResult, ...]:
        """The phase's finished units, by name."""
        with self._known(recovery_id) as (session, _):
            wanted = select(models.UnitResultRow).where(
                models.UnitResultRow.recovery_id == recovery_id, models.UnitResultRow.phase == phase
            )
            rows = session.scalars(wanted).all()
            # Sorted here: databases disagree about the order of text.
            return tuple(sorted((convert.unit(row) for row in rows), key=lambda unit: unit.unit))

    def attempts(self, recovery_id: str) -> tuple[values.Attempt, ...]:
        with self._known(recovery_id) as (session, _):
            return tuple(map(convert.attempt, _of(session, models.AttemptRow, recovery_id, models.AttemptRow.epoch)))

    def ledger(self, recovery_id: str, phase: Phase) -> tuple[values.Json, ...]:
        """The entries in the order in which they were given."""
        with self._known(recovery_id) as (session, _):
            wanted = (
                select(models.LedgerRow.body)
                .where(models.LedgerRow.recovery_id == recovery_id, models.LedgerRow.phase == phase)
                .order_by(models.LedgerRow.entry)
            )
            return tuple(session.scalars(wanted))

    def spill_sets(self, recovery_id: str) -> tuple[values.SpillSet, ...]:
        """Every set ever sealed, by subtask, then in the order of sealing; at most one a subtask is SEALED."""
        order = (models.SpillSetRow.subtask, models.SpillSetRow.id)
        with self._known(recovery_id) as (session, recovery):
            rows = _of(session, models.SpillSetRow, recovery_id, *order)
            return convert.spill_sets(session, recovery_id, rows, recovery.epoch)

    def checkpoints(
        self, recovery_id: str, state: RecoveryCheckpointState | None = None
    ) -> tuple[values.RecoveryCheckpoint, ...]:
        """Ascending; all of them, or those in one state."""
        row = models.RecoveryCheckpointRow
        wanted = select(row).where(row.recovery_id == recovery_id).order_by(row.checkpoint_id)
        if state is not None:
            wanted = wanted.where(row.state == state)
        with self._known(recovery_id) as (session, _):
            return tuple(map(convert.checkpoint, session.scalars(wanted)))

    def checkpoint(self, recovery_id: str, checkpoint_id: int) -> values.RecoveryCheckpoint | None:
        with self._known(recovery_id) as (session, _):
            row = session.get(models.RecoveryCheckpointRow, (recovery_id, checkpoint_id))
            return None if row is None else convert.checkpoint(row)

    def prepared(self, recovery_id: str, after: int = 0) -> tuple[values.Prepared, ...]:
        """By checkpoint, then subtask: the order in which they are committed. Those of checkpoints after a number."""
        wanted = (
            select(models.PreparedRow)
            .where(models.PreparedRow.recovery_id == recovery_id, models.PreparedRow.checkpoint_id > after)
            .order_by(models.PreparedRow.checkpoint_id, models.PreparedRow.subtask)
        )
        with self._known(recovery_id) as (session, _):
            return tuple(map(convert.prepared, session.scalars(wanted)))

    def coordinator_state(self, recovery_id: str) -> values.CoordinatorState | None:
        with self._known(recovery_id) as (session, _):
            row = session.get(models.CoordinatorStateRow, recovery_id)
            if row is None:
                return None
            return values.CoordinatorState(row.commit_user, row.listener_states, row.version)

    def commit_log(self, recovery_id: str) -> tuple[values.CommitLogEntry, ...]:
        order = models.CommitLogRow.commit_id
        with self._known(recovery_id) as (session, _):
            return tuple(map(convert.commit, _of(session, models.CommitLogRow, recovery_id, order)))

    def proof(self, recovery_id: str, sha256: str | None = None) -> values.Proof | None:
        """The proof with that SHA-256; without one, that of the last commit in the log. ``None`` = there is none."""
        with self._known(recovery_id) as (session, _):
            if sha256 is None:
                log = _of(session, models.CommitLogRow, recovery_id, models.CommitLogRow.commit_id)
                if not log:
                    return None
                sha256 = log[-1].proof_sha256
            row = session.get(models.ProofRow, (recovery_id, sha256))
            return None if row is None else values.Proof(row.sha256, row.body)

    def receipt(self, recovery_id: str) -> values.Json | None:
        """``None`` until commit has written it."""
        with self._known(recovery_id) as (session, _):
            row = session.get(models.ReceiptRow, recovery_id)
            return None if row is None else row.body

    def commands(self, recovery_id: str) -> tuple[values.Command, ...]:
        """In the order in which they were asked."""
        with self._known(recovery_id) as (session, _):
            return tuple(map(convert.command, _of(session, models.CommandRow, recovery_id, models.CommandRow.id)))

    @contextmanager
    def _known(self, recovery_id: str) -> Iterator[tuple[Session, models.RecoveryRow]]:
        with self._database.read() as session:
            row = session.get(models.RecoveryRow, recovery_id)
            if row is None:
                raise unknown_recovery(recovery_id)
            yield session, row


def _of(session: Session, table: type[_Row], recovery_id: str, *order: InstrumentedAttribute[int]) -> Sequence[_Row]:
    return session.scalars(select(table).filter_by(recovery_id=recovery_id).order_by(*order)).all()
