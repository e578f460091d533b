"""Numbers over everything the database knows: what the metrics and the drills' overview are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from cdr_core.metadata.database import Database
from cdr_core.metadata.models import (
    AttemptRow,
    DrillResultRow,
    DrillRow,
    PhaseRow,
    RecoveryCheckpointRow,
    RecoveryRow,
)
from cdr_core.metadata.states import (
    AttemptState,
    DrillOutcome,
    Phase,
    PhaseState,
    RecoveryCheckpointState,
    RecoveryState,
)

MOST_RUNNING = 100
"""Running phases that are listed one by one: a metric has a bounded number of series."""

_State = TypeVar("_State", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class RunningPhase:
    recovery_id: str
    phase: Phase
    started_at: datetime


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts as of one moment; every state is there, also with 0. ``records``, ``bytes``: of published recoveries."""

    recoveries: Mapping[RecoveryState, int]
    attempts: Mapping[AttemptState, int]
    checkpoints: Mapping[RecoveryCheckpointState, int]
    drills: Mapping[DrillOutcome, int]
    records: int
    bytes: int
    running: tuple[RunningPhase, ...]


@dataclass(frozen=True, slots=True)
class DrillCount:
    """How often a plan's drills of a job ended so; ``None`` = still running, or abandoned without a result."""

    plan: str
    job: str
    result: DrillOutcome | None
    count: int


class StatisticsReader:
    _database: Database

    def statistics(self) -> Statistics:
        with self._database.read() as session:
            records, size = _published(session)
            return Statistics(
                recoveries=_counts(session, RecoveryRow.state, RecoveryState),
                attempts=_counts(session, AttemptRow.state, AttemptState),
                checkpoints=_counts(session, RecoveryCheckpointRow.state, RecoveryCheckpointState),
                drills=_counts(session, DrillResultRow.result, DrillOutcome),
                records=records,
                bytes=size,
                running=_running(session),
            )

    def drill_counts(self) -> tuple[DrillCount, ...]:
        """All drills there ever were, by plan, job and result."""
        columns = (func.coalesce(DrillRow.plan, ""), func.coalesce(DrillRow.job, ""), DrillResultRow.result)
        counted = (
            select(*columns, func.count())
            .select_from(DrillRow)
            .outerjoin(DrillResultRow, DrillResultRow.drill_id == DrillRow.id)
            .group_by(*columns)
        )
        with self._database.read() as session:
            return tuple(DrillCount(row[0], row[1], row[2], row[3]) for row in session.execute(counted))


def _counts(session: Session, column: InstrumentedAttribute[_State], kind: type[_State]) -> dict[_State, int]:
    found = {row[0]: row[1] for row in session.execute(select(column, func.count()).group_by(column))}
    return {state: found.get(state, 0) for state in kind}


def _published(session: Session) -> tuple[int, int]:
    sums = select(func.sum(PhaseRow.records_done), func.sum(PhaseRow.bytes_done)).where(
        PhaseRow.name == Phase.COMMIT, PhaseRow.state == PhaseState.DONE
    )
    records, size = session.execute(sums).one()
    return int(records or 0), int(size or 0)


def _running(session: Session) -> tuple[RunningPhase, ...]:
    rows = session.scalars(
        select(PhaseRow).where(PhaseRow.state == PhaseState.RUNNING).order_by(PhaseRow.started_at).limit(MOST_RUNNING)
    )
    return tuple(RunningPhase(row.recovery_id, row.name, row.started_at) for row in rows if row.started_at is not None)
