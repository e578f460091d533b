"""Restore drills. They write no recovery's rows, so no epoch guards them; a result is written once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from cdr_core.errors import Refused
from cdr_core.metadata import convert
from cdr_core.metadata.database import Database
from cdr_core.metadata.models import DrillResultRow, DrillRow, RecoveryRow
from cdr_core.metadata.models.base import utc_now
from cdr_core.metadata.rows import insert_unless_there, unknown_recovery
from cdr_core.metadata.states import DrillOutcome
from cdr_core.metadata.values import Drill, Json


class Drills:
    _database: Database

    def begin_drill(self, checkpoint: str, args: Json) -> Drill:
        row = DrillRow(id=f"d-{secrets.token_hex(5)}", checkpoint=checkpoint, args=dict(args))
        with self._database.write() as session:
            session.add(row)
            session.flush()
            return convert.drill(row, None)

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
        checks: Sequence[Json] = (),
        rto_s: float | None = None,
        rpo_s: float | None = None,
        error: str | None = None,
    ) -> Drill:
        """What came of it. Refused when the drill has a result already: history does not change."""
        columns = {
            "drill_id": drill_id,
            "result": result,
            "checks": [dict(check) for check in checks],
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
            return convert.drill(_known(session, drill_id), session.get(DrillResultRow, drill_id))

    def drills(self, limit: int = 100, offset: int = 0) -> tuple[Drill, ...]:
        """Newest first, by the clocks of those who ran them."""
        page = (
            select(DrillRow, DrillResultRow)
            .outerjoin(DrillResultRow, DrillResultRow.drill_id == DrillRow.id)
            .order_by(DrillRow.started_at.desc(), DrillRow.id)
            .limit(limit)
            .offset(offset)
        )
        with self._database.read() as session:
            return tuple(convert.drill(drill, result) for drill, result in session.execute(page))


def _known(session: Session, drill_id: str) -> DrillRow:
    row = session.get(DrillRow, drill_id)
    if row is None:
        raise Refused(f"there is no drill {drill_id}", hint="run: cdr drill list")
    return row
