"""A recovery and how far it is: source, attempts, phases, finished units, what its user asked for."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from cdr_core.metadata.models.base import Base, RecoveryKey, RecoveryRef, Size, utc_now
from cdr_core.metadata.states import AttemptState, CommandState, Phase, PhaseState, RecoveryState


class SourceCheckpointRow(Base):
    """A checkpoint that a recovery reads; while ``pinned``, it must not be deleted."""

    __tablename__ = "source_checkpoint"
    __table_args__ = (UniqueConstraint("metadata_sha256", "uri"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    uri: Mapped[str]
    metadata_sha256: Mapped[str]
    flink_checkpoint_id: Mapped[Size | None]
    pinned: Mapped[bool]


class RecoveryRow(Base):
    """The row every fenced transaction starts with.

    ``identity`` is null for targets that are never unique, and for a generation that was replaced: of all generations
    of a checkpoint and target, only the newest can be found by it.
    """

    __tablename__ = "recovery"
    # With the id in it, a page far down the list is found without reading a single row before it.
    __table_args__ = (Index("ix_recovery_created_at", "created_at", "id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    source_checkpoint_id: Mapped[int] = mapped_column(ForeignKey("source_checkpoint.id"), index=True)
    target: Mapped[str]
    identity: Mapped[str | None] = mapped_column(unique=True)
    spec: Mapped[str]
    spec_sha256: Mapped[str]
    parallelism: Mapped[str]
    options: Mapped[dict[str, Any]]
    settings: Mapped[dict[str, Any]]
    workspace: Mapped[str]
    host_id: Mapped[str | None]
    state: Mapped[RecoveryState] = mapped_column(index=True)
    epoch: Mapped[int]
    plan_hash: Mapped[str | None]
    plan_uri: Mapped[str | None]
    plan_summary: Mapped[dict[str, Any] | None]
    server: Mapped[dict[str, Any] | None]
    error: Mapped[str | None]
    generation: Mapped[int] = mapped_column(default=1, server_default="1")
    replaced_by: Mapped[str | None]
    cdr_version: Mapped[str] = mapped_column(server_default="0.1.0")
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)


class AttemptRow(Base):
    __tablename__ = "attempt"
    __table_args__ = (Index("ix_attempt_runner", "recovery_id", "run", "task"), Index("ix_attempt_run", "run"))

    recovery_id: Mapped[RecoveryKey]
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    phase: Mapped[Phase]
    run: Mapped[str]
    task: Mapped[str]
    try_number: Mapped[int]
    host: Mapped[str]
    pid: Mapped[int]
    state: Mapped[AttemptState]
    started_at: Mapped[datetime] = mapped_column(default=utc_now)
    ended_at: Mapped[datetime | None]
    error: Mapped[str | None]


class PhaseRow(Base):
    """``units_total`` null = unknown, which is not zero. ``running``: how far units are."""

    __tablename__ = "phase"

    recovery_id: Mapped[RecoveryKey]
    name: Mapped[Phase] = mapped_column(primary_key=True)
    state: Mapped[PhaseState]
    units_total: Mapped[int | None]
    units_done: Mapped[int] = mapped_column(default=0)
    bytes_total: Mapped[Size | None]
    bytes_done: Mapped[Size] = mapped_column(default=0)
    records_done: Mapped[Size] = mapped_column(default=0)
    running: Mapped[dict[str, Any] | None]
    result: Mapped[dict[str, Any] | None]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]


class UnitResultRow(Base):
    __tablename__ = "unit_result"

    recovery_id: Mapped[RecoveryKey]
    phase: Mapped[Phase] = mapped_column(primary_key=True)
    unit: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int]
    manifest: Mapped[str]
    records: Mapped[Size]
    bytes: Mapped[Size]
    result: Mapped[dict[str, Any]]
    recorded_at: Mapped[datetime] = mapped_column(default=utc_now)


class CommandRow(Base):
    """A user's request. ``epoch`` = the attempt that accepted it."""

    __tablename__ = "command"

    id: Mapped[int] = mapped_column(primary_key=True)
    recovery_id: Mapped[RecoveryRef]
    kind: Mapped[str]
    args: Mapped[dict[str, Any]]
    state: Mapped[CommandState]
    answer: Mapped[dict[str, Any] | None]
    epoch: Mapped[int | None]
    requested_at: Mapped[datetime] = mapped_column(default=utc_now)
    answered_at: Mapped[datetime | None]
