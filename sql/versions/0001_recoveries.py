"""Recoveries: source, attempts, phases, units, commands; spilled data and the drain."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _source_checkpoint()
    _recovery()
    _attempt()
    _phase()
    _unit_result()
    _command()
    _spill_set()
    _spill_file()
    _spill_grant()
    _drain_cursor()
    _recovery_checkpoint()


def _source_checkpoint() -> None:
    op.create_table(
        "source_checkpoint",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("metadata_sha256", sa.Text(), nullable=False),
        sa.Column("flink_checkpoint_id", sa.BigInteger(), nullable=True),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_source_checkpoint"),
        sa.UniqueConstraint("metadata_sha256", "uri", name="uq_source_checkpoint_metadata_sha256_uri"),
    )


def _recovery() -> None:
    op.create_table(
        "recovery",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("source_checkpoint_id", sa.Integer(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=True),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("spec_sha256", sa.Text(), nullable=False),
        sa.Column("parallelism", sa.Text(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("host_id", sa.Text(), nullable=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("plan_hash", sa.Text(), nullable=True),
        sa.Column("plan_uri", sa.Text(), nullable=True),
        sa.Column("plan_summary", sa.JSON(), nullable=True),
        sa.Column("server", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["source_checkpoint_id"], ["source_checkpoint.id"], name="fk_recovery_source_checkpoint_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_recovery"),
        sa.UniqueConstraint("identity", name="uq_recovery_identity"),
    )
    op.create_index("ix_recovery_source_checkpoint_id", "recovery", ["source_checkpoint_id"])
    op.create_index("ix_recovery_state", "recovery", ["state"])


def _attempt() -> None:
    op.create_table(
        "attempt",
        sa.Column("recovery_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("try_number", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["recovery_id"], ["recovery.id"], name="fk_attempt_recovery_id"),
        sa.PrimaryKeyConstraint("recovery_id", "epoch", name="pk_attempt"),
    )
    op.create_index("ix_attempt_runner", "attempt", ["recovery_id", "run", "task"])


def _phase() -> None:
    op.create_table(
        "phase",
        sa.Column("recovery_id", sa.Text(), nullable=False),
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("units_total", sa.Integer(), nullable=True),
        sa.Column("units_done", sa.Integer(), nullable=False),
        sa.Column("bytes_total", sa.BigInteger(), nullable=True),
        sa.Column("bytes_done", sa.BigInteger(), nullable=False),
        sa.Column("records_done", sa.BigInteger(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["recovery_id"], ["recovery.id"], name="fk_phase_recovery_id"),
        sa.PrimaryKeyConstraint("recovery_id", "name", name="pk_phase"),
    )


def _unit_result() -> None:
    op.create_table(
        "unit_result",
        sa.Column("recovery_id", sa.Text(), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["recovery_id"], ["recovery.id"], name="fk_unit_result_recovery_id"),
        sa.PrimaryKeyConstraint("recovery_id", "phase", "unit", name="pk_unit_result"),
    )


def _command() -> None:
    op.create_table(
        "command",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("recovery_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("answer", sa.JSON(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("answered_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["recovery_id"], ["recovery.id"], name="fk_command_recovery_id"),
        sa.PrimaryKeyConstraint("id", name="pk_command"),
    )
    op.create_index("ix_command_recovery_id", "command", ["recovery_id"])


def _spill_set() -> None:
    op.create_table(
        "spill_set",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("recovery_id", sa.Text(), nullable=False),
        sa.Column("subtask", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("sealed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["recovery_id"], ["recovery.id"], name="fk_spill_set_recovery_id"),
        sa.PrimaryKeyConstraint("id", name="pk_spill_set"),
        sa.UniqueConstraint("recovery_id", "subtask", "epoch", name="uq_spill_set_recovery_id_subtask_epoch"),
    )
    op.create_index("ix_spill_set_recovery_id", "spill_set", ["recovery_id"])


def _spill_file() -> None:
    op.create_table(
        "spill_file",
        sa.Column("set_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["set_id"], ["spill_set.id"], name="fk_spill_file_set_id"),
        sa.PrimaryKeyConstraint("set_id", "position", name="pk_spill_file"),
    )


def _spill_grant() -> None:
    op.create_table(
        "spill_grant",
        sa.Column("set_id", sa.Integer(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("durable", sa.Boolean(), nullable=False),
        sa.Column("released", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["set_id"], ["spill_set.id"], name="fk_spill_grant_set_id"),
        sa.PrimaryKeyConstraint("set_id", "holder", name="pk_spill_grant"),
    )


def _drain_cursor() -> None:
    op.create_table(
        "drain_cursor",
        sa.Column("recovery_id", sa.Text(), nullable=False),
        sa.Column("subtask", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("file", sa.Integer(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("gate", sa.Integer(), nullable=True),
        sa.Column("channel", sa.Integer(), nullable=True),
        sa.Column("remaining", sa.BigInteger(), nullable=False),
        sa.Column("moved_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["recovery_id"], ["recovery.id"], name="fk_drain_cursor_recovery_id"),
        sa.PrimaryKeyConstraint("recovery_id", "subtask", name="pk_drain_cursor"),
    )


def _recovery_checkpoint() -> None:
    op.create_table(
        "recovery_checkpoint",
        sa.Column("recovery_id", sa.Text(), nullable=False),
        sa.Column("checkpoint_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=True),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("triggered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["recovery_id"], ["recovery.id"], name="fk_recovery_checkpoint_recovery_id"),
        sa.PrimaryKeyConstraint("recovery_id", "checkpoint_id", name="pk_recovery_checkpoint"),
    )
