"""Drills are found by their job and plan, and by when they were started."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("drill") as drill:
        drill.add_column(sa.Column("job", sa.Text(), nullable=True))
        drill.add_column(sa.Column("plan", sa.Text(), nullable=True))
        drill.create_index("ix_drill_started_at", ["started_at"])
        drill.create_index("ix_drill_plan_started_at", ["plan", "started_at"])


def downgrade() -> None:
    with op.batch_alter_table("drill") as drill:
        drill.drop_index("ix_drill_plan_started_at")
        drill.drop_index("ix_drill_started_at")
        drill.drop_column("plan")
        drill.drop_column("job")
