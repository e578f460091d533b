"""A connection to the metadata database: SQLite by default, PostgreSQL in earnest.

Write transactions take their lock when they begin (SQLite: ``BEGIN IMMEDIATE``; PostgreSQL: the row lock of the first
``UPDATE``), so that what they read stays true until they commit. Every error of the driver leaves as one of ours, in
one sentence and without credentials.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.orm import Session

from cdr_core.errors import CdrError, Refused
from cdr_core.extras import require_extra
from cdr_core.metadata.failures import UPGRADE_HINT, translate

BUSY_TIMEOUT_SECONDS = 30
"""How long a writer waits for another one: longer than any of our transactions, shorter than a person's patience."""
CONNECT_TIMEOUT_SECONDS = 10
CONNECTIONS_AT_REST = 2
CONNECTIONS_ABOVE = 6
"""Per process; a server's usual limit is 100 connections for everybody."""

_WRITE = "cdr_write"
_MIGRATES = "cdr_migrates"


class Database:
    """Where the rows are. ``read`` and ``write`` give one transaction each; an exception inside rolls it back."""

    def __init__(self, url: str) -> None:
        self._url = parse_url(url)
        self.name = display_name(self._url)
        self._readers = _engine(self._url)
        self._writers = self._readers.execution_options(**{_WRITE: True})

    @contextmanager
    def read(self) -> Iterator[Session]:
        with self._translated(), Session(self._readers) as session, session.begin():
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        with self._translated(), Session(self._writers) as session, session.begin():
            yield session

    @contextmanager
    def migration(self) -> Iterator[Connection]:
        """One write transaction around all migrations. SQLite's foreign keys are checked at its end, not in between."""
        migrators = self._writers.execution_options(**{_MIGRATES: True})
        try:
            with self._translated(), migrators.begin() as connection:
                yield connection
                if self.is_sqlite and connection.exec_driver_sql("PRAGMA foreign_key_check").first() is not None:
                    raise CdrError(f"a migration of {self.name} would leave rows that refer to nothing")
        finally:
            self._readers.dispose()  # no other query may get the connection that has them off

    def close(self) -> None:
        self._readers.dispose()

    @property
    def is_sqlite(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    def check_file(self, *, must_exist: bool) -> None:
        """Refuses a SQLite file that cannot be, before SQLite says so less clearly (or creates an empty one)."""
        if not self.is_sqlite:
            return
        path = Path(str(self._url.database))
        if not path.parent.is_dir():
            raise Refused(
                f"the metadata database {self.name} cannot be opened: the directory {path.parent} does not exist",
                hint="create it, or set CDR_DATABASE_URL",
            )
        if must_exist and not path.exists():
            raise Refused(f"the metadata database {self.name} does not exist", hint=UPGRADE_HINT)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            # The driver's error holds the statement and its values, so it is not chained to ours.
            raise translate(error, self.name) from None


def parse_url(url: str) -> URL:
    """The URL with the driver we ship; anything but a SQLite file or PostgreSQL is refused."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise Refused("the metadata database's URL cannot be parsed", hint="set CDR_DATABASE_URL") from None
    backend = parsed.get_backend_name()
    if backend in {"postgresql", "postgres"}:
        require_extra("postgres", "a metadata database on PostgreSQL")
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise Refused(f"{backend} cannot hold the metadata", hint="use sqlite:///FILE or postgresql+psycopg://…")
    if not parsed.database or parsed.database == ":memory:":
        # Every connection would see a database of its own, so nothing could be fenced.
        raise Refused("SQLite in memory cannot hold the metadata", hint="use sqlite:///FILE")
    return parsed


def display_name(url: URL) -> str:
    """The URL as it may appear in a message: no password, no query (which may hold one)."""
    return url.set(query={}).render_as_string(hide_password=True)


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = create_engine(
            url,
            # One stays open: when the last one closes, SQLite merges its log into the file, which takes three times as
            # long as the transaction itself.
            pool_size=1,
            max_overflow=-1,
            connect_args={"timeout": BUSY_TIMEOUT_SECONDS},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    engine = create_engine(
        url,
        pool_size=CONNECTIONS_AT_REST,
        max_overflow=CONNECTIONS_ABOVE,
        pool_timeout=BUSY_TIMEOUT_SECONDS,
        pool_pre_ping=True,
        # The fence is right at this level: an UPDATE that waited for the row's lock looks at the row again.
        isolation_level="READ COMMITTED",
        connect_args={"connect_timeout": CONNECT_TIMEOUT_SECONDS},
    )
    event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver would begin transactions by itself, later and weaker than we want
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_SECONDS * 1000}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = FULL")  # a row is the only proof that a file exists: it survives a power cut
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get(_MIGRATES):
        # SQLite changes a table by making another and dropping the first, which a foreign key to it would forbid. The
        # switch works only outside of a transaction.
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get(_WRITE) else "BEGIN")


def _prepare_postgresql(connection: Any, _record: object) -> None:
    # A process that was stopped in the middle of a transaction holds the recovery's row. The server ends it before
    # those who wait for the row give up.
    milliseconds = BUSY_TIMEOUT_SECONDS * 1000
    with connection.cursor() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = {milliseconds // 2}")
        cursor.execute(f"SET lock_timeout = {milliseconds}")
    connection.commit()
