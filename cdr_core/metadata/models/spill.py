"""Spilled data and the drain: sets and files, who still needs them, how far the drain is, its checkpoints."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from cdr_core.metadata.models.base import Base, RecoveryKey, RecoveryRef, Size, utc_now
from cdr_core.metadata.states import RecoveryCheckpointState, SpillSetState


class SpillSetRow(Base):
    __tablename__ = "spill_set"
    __table_args__ = (UniqueConstraint("recovery_id", "subtask", "epoch"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    recovery_id: Mapped[RecoveryRef]
    subtask: Mapped[int]
    epoch: Mapped[int]
    manifest: Mapped[str]
    host: Mapped[str | None]
    bytes: Mapped[Size]
    state: Mapped[SpillSetState]
    sealed_at: Mapped[datetime] = mapped_column(default=utc_now)


class SpillFileRow(Base):
    """``position`` is the file's place in the set: the order of the bytes is the order of the files."""

    __tablename__ = "spill_file"

    set_id: Mapped[int] = mapped_column(ForeignKey("spill_set.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    path: Mapped[str]
    bytes: Mapped[Size]


class GrantRow(Base):
    """A holder that still needs a spill set. One that is not ``durable`` is void once its epoch is over."""

    __tablename__ = "spill_grant"

    set_id: Mapped[int] = mapped_column(ForeignKey("spill_set.id"), primary_key=True)
    holder: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int]
    durable: Mapped[bool]
    released: Mapped[bool]


class RecoveryCheckpointRow(Base):
    __tablename__ = "recovery_checkpoint"

    recovery_id: Mapped[RecoveryKey]
    checkpoint_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    epoch: Mapped[int]
    state: Mapped[RecoveryCheckpointState]
    manifest: Mapped[str | None]
    sha256: Mapped[str | None]
    result: Mapped[dict[str, Any] | None]
    reason: Mapped[str | None]
    triggered_at: Mapped[datetime] = mapped_column(default=utc_now)
    ended_at: Mapped[datetime | None]
