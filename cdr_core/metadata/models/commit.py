"""From prepared output to publication: what is ready, who commits it, how far each commit is."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Mapped, mapped_column

from cdr_core.metadata.models.base import Base, RecoveryKey, Size, utc_now
from cdr_core.metadata.states import CommitState


class PreparedRow(Base):
    """One entry per (subtask, checkpoint), also when it is empty. ``watermark`` null = the writer has seen none."""

    __tablename__ = "prepared"

    recovery_id: Mapped[RecoveryKey]
    subtask: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    checkpoint_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    epoch: Mapped[int]
    manifest: Mapped[str]
    sha256: Mapped[str]
    records: Mapped[Size]
    bytes: Mapped[Size]
    watermark: Mapped[Size | None]
    idle: Mapped[bool]
    recorded_at: Mapped[datetime] = mapped_column(default=utc_now)


class CoordinatorStateRow(Base):
    """What must outlive the coordinator's process; ``version`` is that of the listener states' format."""

    __tablename__ = "coordinator_state"

    recovery_id: Mapped[RecoveryKey]
    commit_user: Mapped[str]
    listener_states: Mapped[dict[str, Any]]
    version: Mapped[int]
    epoch: Mapped[int]
    saved_at: Mapped[datetime] = mapped_column(default=utc_now)


class CommitLogRow(Base):
    __tablename__ = "commit_log"

    recovery_id: Mapped[RecoveryKey]
    commit_user: Mapped[str] = mapped_column(primary_key=True)
    commit_id: Mapped[Size] = mapped_column(primary_key=True, autoincrement=False)
    epoch: Mapped[int]
    state: Mapped[CommitState]
    base: Mapped[str | None]
    proof_sha256: Mapped[str]
    location: Mapped[str | None]
    uuid: Mapped[str | None]
    intended_at: Mapped[datetime] = mapped_column(default=utc_now)
    published_at: Mapped[datetime | None]
