"""How far a drain is stands in its recovery checkpoints; nobody ever wrote the table that was meant for it."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("drain_cursor")
