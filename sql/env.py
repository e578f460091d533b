"""Alembic's entry: runs the migrations on the connection ``cdr_core.metadata.migrate`` hands over."""

from __future__ import annotations

from alembic import context

from cdr_core.metadata.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # SQLite can: the connection begins its transactions itself, so a failed migration leaves nothing behind.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
