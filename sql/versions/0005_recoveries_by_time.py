"""Recoveries are listed by when they were made, and found by the run that worked on them."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_recovery_created_at", "recovery", ["created_at", "id"])
    op.create_index("ix_attempt_run", "attempt", ["run"])
