"""A recovery can be started over: generations of it, and the version of cdr that created each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("recovery") as recovery:
        recovery.add_column(sa.Column("generation", sa.Integer(), nullable=False, server_default="1"))
        recovery.add_column(sa.Column("replaced_by", sa.Text(), nullable=True))
        # Rows from before this column were created by 0.1.0, the only version that there was.
        recovery.add_column(sa.Column("cdr_version", sa.Text(), nullable=False, server_default="0.1.0"))


def downgrade() -> None:
    with op.batch_alter_table("recovery") as recovery:
        recovery.drop_column("cdr_version")
        recovery.drop_column("replaced_by")
        recovery.drop_column("generation")
