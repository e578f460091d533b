"""The database's schema: bringing it up to date, and refusing to work on another one."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

import cdr_core
from cdr_core.errors import Refused
from cdr_core.metadata.database import Database
from cdr_core.metadata.failures import UPGRADE_HINT

HEAD = "0007"
"""The revision this code needs. A constant, so that opening a repository does not have to load the migrations."""

VERSION_TABLE = "alembic_version"
_UPGRADE_LOCK = 0x63647200
"""PostgreSQL's advisory lock of an upgrade; SQLite's write lock does the same."""


def scripts() -> Path:
    """Return the folder of migrations: inside an installed package, beside the package in a checkout."""
    package = Path(cdr_core.__file__).resolve().parent
    folder = next((each for each in (package / "_sql", package.parent / "sql") if (each / "env.py").is_file()), None)
    if folder is None:
        raise Refused(f"{package} has no migrations", hint="install cdr again")
    return folder


def upgrade(url: str) -> str:
    """Brings the schema to this code's revision and returns it. In one transaction; safe when several do it at once.

    Creates a SQLite file, but not its directory. A schema of a newer cdr is refused.
    """
    # Not at the top: only this command needs it, and it takes as long to load as the rest.
    from alembic import command
    from alembic.config import Config

    database = Database(url)
    try:
        database.check_file(must_exist=False)
        config = Config()
        config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
        with database.migration() as connection:
            if not database.is_sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
            _refuse_newer(_revision(connection), database.name)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        database.close()
    return HEAD


def current_revision(url: str) -> str | None:
    """The schema's revision; ``None`` when the database has no schema. An absent SQLite file is refused."""
    database = Database(url)
    try:
        database.check_file(must_exist=True)
        return revision_of(database)
    finally:
        database.close()


def revision_of(database: Database) -> str | None:
    with database.read() as session:
        return _revision(session.connection())


def check(database: Database) -> None:
    """Refuses a database whose schema is missing, older or newer than this code."""
    database.check_file(must_exist=True)
    revision = revision_of(database)
    if revision is None:
        raise Refused(f"the metadata database {database.name} has no schema", hint=UPGRADE_HINT)
    _refuse_newer(revision, database.name)
    if revision != HEAD:
        raise Refused(
            f"the metadata database {database.name} has schema {revision}, this cdr needs {HEAD}", hint=UPGRADE_HINT
        )


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if found is None else str(found)


def _refuse_newer(revision: str | None, name: str) -> None:
    # Revisions are numbers with leading zeros, so their order is that of the words.
    if revision is not None and revision > HEAD:
        raise Refused(
            f"the metadata database {name} has schema {revision}, newer than the {HEAD} of this cdr",
            hint="use the newer cdr",
        )
