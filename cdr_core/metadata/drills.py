"""Restore drills. They write no recovery's rows, so no epoch guards them; a result is written once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec
from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from cdr_core.drill_values import DrillArgs, DrillCheck
from cdr_core.errors import NotFound, Refused
from cdr_core.metadata import convert
from cdr_core.metadata.database import Database
from cdr_core.metadata.models import DrillResultRow, DrillRow, RecoveryRow
from cdr_core.metadata.models.base import utc_now
from cdr_core.metadata.rows import insert_unless_there, unknown_recovery
from cdr_core.metadata.states import DrillOutcome
from cdr_core.metadata.values import Drill


class Drills:
    _database: Database

    def begin_drill(self, checkpoint: str, args: DrillArgs, drill_id: str | None = None) -> Drill:
        """A new drill. Where its id is given, the drill that has it already is returned as it is: a retry goes
        on with what the first try chose.
        """
        columns = {
            "id": drill_id or new_drill_id(),
            "checkpoint": checkpoint,
            "args": msgspec.to_builtins(args),
            "job": args.job,
            "plan": args.plan,
            "started_at": utc_now(),
        }
        with self._database.write() as session:
            insert_unless_there(session, DrillRow, columns, ["id"])
            return _with_result(session, session.get_one(DrillRow, columns["id"]))

    def set_drill_recovery(self, drill_id: str, recovery_id: str) -> None:
        """The recovery this drill runs; another one than the first is refused."""
        with self._database.write() as session:
            row = _known(session, drill_id)
            if session.get(RecoveryRow, recovery_id) is None:
                raise unknown_recovery(recovery_id)
            if row.recovery_id not in (None, recovery_id):
                raise Refused(f"drill {drill_id} runs recovery {row.recovery_id}, not {recovery_id}")
            row.recovery_id = recovery_id

    def end_drill(
        self,
        drill_id: str,
        result: DrillOutcome,
        *,
        checks: Sequence[DrillCheck] = (),
        rto_s: float | None = None,
        rpo_s: float | None = None,
        error: str | None = None,
    ) -> Drill:
        """What came of it. Refused when the drill has a result already: history does not change."""
        columns = {
            "drill_id": drill_id,
            "result": result,
            "checks": msgspec.to_builtins(checks),
            "rto_s": rto_s,
            "rpo_s": rpo_s,
            "error": error,
            "ended_at": utc_now(),
        }
        with self._database.write() as session:
            row = _known(session, drill_id)
            if not insert_unless_there(session, DrillResultRow, columns, ["drill_id"]):
                raise Refused(f"drill {drill_id} has a result already")
            return convert.drill(row, session.get_one(DrillResultRow, drill_id))

    def drill(self, drill_id: str) -> Drill:
        with self._database.read() as session:
            return _with_result(session, _known(session, drill_id))

    def find_drill(self, drill_id: str) -> Drill | None:
        """The drill of this id, if it was begun."""
        with self._database.read() as session:
            row = session.get(DrillRow, drill_id)
            return None if row is None else _with_result(session, row)

    def drill_of(self, recovery_id: str) -> Drill | None:
        """The drill that runs, or ran, this recovery; ``None`` for a recovery in earnest."""
        with self._database.read() as session:
            row = session.scalars(select(DrillRow).where(DrillRow.recovery_id == recovery_id)).first()
            return None if row is None else _with_result(session, row)

    def drills(
        self, limit: int = 100, offset: int = 0, *, plan: str | None = None, unfinished: bool = False
    ) -> tuple[Drill, ...]:
        """Newest first, by the clocks of those who ran them; of one plan, or only those without a result."""
        page = select(DrillRow, DrillResultRow).outerjoin(DrillResultRow, DrillResultRow.drill_id == DrillRow.id)
        if plan is not None:
            page = page.where(DrillRow.plan == plan)
        if unfinished:
            page = page.where(DrillResultRow.drill_id.is_(None))
        page = page.order_by(DrillRow.started_at.desc(), DrillRow.id).limit(limit).offset(offset)
        with self._database.read() as session:
            return tuple(convert.drill(drill, result) for drill, result in session.execute(page))

    def newest_drills(self) -> tuple[Drill, ...]:
        """Newest first, of every plan (drills without one: of every job) the newest drill, the newest that ended, the
        newest that passed, and the newest that measured an RTO or an RPO.
        """
        group = (DrillRow.plan, DrillRow.job)
        ended = DrillResultRow.drill_id == DrillRow.id
        last = select(*group, func.max(DrillRow.started_at).label("at")).group_by(*group)
        of_ended = last.join(DrillResultRow, ended)
        wanted = (
            last,
            of_ended,
            of_ended.where(DrillResultRow.result == DrillOutcome.PASSED),
            of_ended.where(DrillResultRow.rto_s.is_not(None)),
            of_ended.where(DrillResultRow.rpo_s.is_not(None)),
        )
        found: dict[str, Drill] = {}
        with self._database.read() as session:
            for newest in (each.subquery() for each in wanted):
                same = and_(
                    DrillRow.plan.is_not_distinct_from(newest.c.plan),
                    DrillRow.job.is_not_distinct_from(newest.c.job),
                    DrillRow.started_at == newest.c.at,
                )
                rows = select(DrillRow, DrillResultRow).outerjoin(DrillResultRow, ended).join(newest, same)
                found |= {row.id: convert.drill(row, result) for row, result in session.execute(rows)}
        return tuple(sorted(found.values(), key=lambda drill: (drill.started_at, drill.id), reverse=True))


def new_drill_id() -> str:
    return f"d-{secrets.token_hex(5)}"


def _with_result(session: Session, row: DrillRow) -> Drill:
    return convert.drill(row, session.get(DrillResultRow, row.id))


def _known(session: Session, drill_id: str) -> DrillRow:
    row = session.get(DrillRow, drill_id)
    if row is None:
        raise NotFound(f"there is no drill {drill_id}", hint="run: cdr drill list")
    return row
