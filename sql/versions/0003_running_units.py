"""How far the units are that are under way: a phase's progress between two finished units."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("phase") as phase:
        phase.add_column(sa.Column("running", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("phase") as phase:
        phase.drop_column("running")
