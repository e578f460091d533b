"""Restore drills: what was tried, and what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from cdr_core.metadata.models.base import Base, utc_now
from cdr_core.metadata.states import DrillOutcome


class DrillRow(Base):
    """``recovery_id`` is null until the drill has a recovery; some never get that far.

    ``job`` and ``plan`` say what ``args`` says, to be found by: the history of one plan is asked for at every start.
    """

    __tablename__ = "drill"
    __table_args__ = (Index(None, "plan", "started_at"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    checkpoint: Mapped[str]
    args: Mapped[dict[str, Any]]
    job: Mapped[str | None]
    plan: Mapped[str | None]
    recovery_id: Mapped[str | None] = mapped_column(ForeignKey("recovery.id"), index=True)
    started_at: Mapped[datetime] = mapped_column(default=utc_now, index=True)


class DrillResultRow(Base):
    """At most one per drill, never changed. ``None`` seconds = it was not measured."""

    __tablename__ = "drill_result"

    drill_id: Mapped[str] = mapped_column(ForeignKey("drill.id"), primary_key=True)
    result: Mapped[DrillOutcome]
    checks: Mapped[list[dict[str, Any]]]
    rto_s: Mapped[float | None]
    rpo_s: Mapped[float | None]
    error: Mapped[str | None]
    ended_at: Mapped[datetime] = mapped_column(default=utc_now)
