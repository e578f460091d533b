"""What leaves a recovery: prepared output, commits, ledger, proof, receipt; drills."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _prepared()
    _coordinator_state()
    _commit_log()
    _ledger()
    _proof()
    _receipt()
    _drill()
    _drill_result()


def _prepared() -> None:
    op.create_table(
        "prepared",
        sa.Column("recovery_id", sa.Text(), nullable=False),
        sa.Column("subtask", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("checkpoint_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("watermark", sa.BigInteger(), nullable=True),
        sa.Column("idle", sa.Boolean(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["recovery_id"], ["recovery.id"], name="fk_prepared_recovery_id"),
        sa.PrimaryKeyConstraint("recovery_id", "subtask", "checkpoint_id", name="pk_prepared"),
    )


def _coordinator_state() -> None:
    op.create_table(
        "coordinator_state",
        sa.Column("recovery_id", sa.Text(), nullable=False),
        sa.Column("commit_user", sa.Text(), nullable=False),
        sa.Column("listener_states", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("saved_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["recovery_id"], ["recovery.id"], name="fk_coordinator_state_recovery_id"),
        sa.PrimaryKeyConstraint("recovery_id", name="pk_coordinator_state"),
    )


def _commit_log() -> None:
    op.create_table(
        "commit_log",
        sa.Column("recovery_id", sa.Text(), nullable=False),
        sa.Column("commit_user", sa.Text(), nullable=False),
        sa.Column("commit_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("base", sa.Text(), nullable=True),
        sa.Column("proof_sha256", sa.Text(), nullable=False),
        sa.Column("location", sa.Text(), nullable=True),
        sa.Column("uuid", sa.Text(), nullable=True),
        sa.Column("intended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["recovery_id"], ["recovery.id"], name="fk_commit_log_recovery_id"),
        sa.PrimaryKeyConstraint("recovery_id", "commit_user", "commit_id", name="pk_commit_log"),
    )


def _ledger() -> None:
    op.create_table(
        "ledger",
        sa.Column("recovery_id", sa.Text(), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("entry", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["recovery_id"], ["recovery.id"], name="fk_ledger_recovery_id"),
        sa.PrimaryKeyConstraint("recovery_id", "phase", "entry", name="pk_ledger"),
    )


def _proof() -> None:
    op.create_table(
        "proof",
        sa.Column("recovery_id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("saved_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["recovery_id"], ["recovery.id"], name="fk_proof_recovery_id"),
        sa.PrimaryKeyConstraint("recovery_id", "sha256", name="pk_proof"),
    )


def _receipt() -> None:
    op.create_table(
        "receipt",
        sa.Column("recovery_id", sa.Text(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("saved_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["recovery_id"], ["recovery.id"], name="fk_receipt_recovery_id"),
        sa.PrimaryKeyConstraint("recovery_id", name="pk_receipt"),
    )


def _drill() -> None:
    op.create_table(
        "drill",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.Column("recovery_id", sa.Text(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["recovery_id"], ["recovery.id"], name="fk_drill_recovery_id"),
        sa.PrimaryKeyConstraint("id", name="pk_drill"),
    )
    op.create_index("ix_drill_recovery_id", "drill", ["recovery_id"])


def _drill_result() -> None:
    op.create_table(
        "drill_result",
        sa.Column("drill_id", sa.Text(), nullable=False),
        sa.Column("result", sa.String(16), nullable=False),
        sa.Column("checks", sa.JSON(), nullable=False),
        sa.Column("rto_s", sa.Double(), nullable=True),
        sa.Column("rpo_s", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["drill_id"], ["drill.id"], name="fk_drill_result_drill_id"),
        sa.PrimaryKeyConstraint("drill_id", name="pk_drill_result"),
    )
