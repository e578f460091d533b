"""The driver's errors as ours: one sentence each, without statement, values or credentials."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from cdr_core.errors import CdrError, DatabaseUnavailable, DiskFull, Refused

UPGRADE_HINT = "run: cdr db upgrade"

_SQLITE: tuple[tuple[str, type[CdrError], str, str], ...] = (
    ("SQLITE_BUSY", DatabaseUnavailable, "is held by another process", ""),
    ("SQLITE_LOCKED", DatabaseUnavailable, "is held by another connection", ""),
    ("SQLITE_IOERR", DatabaseUnavailable, "could not be read or written", ""),
    ("SQLITE_CANTOPEN", Refused, "cannot be opened", "check its directory and the permissions"),
    ("SQLITE_READONLY", Refused, "cannot be written", "check the permissions"),
    ("SQLITE_PERM", Refused, "cannot be written", "check the permissions"),
    ("SQLITE_FULL", DiskFull, "has no room left", ""),
    ("SQLITE_NOTADB", Refused, "is not a SQLite database", "set CDR_DATABASE_URL"),
    ("SQLITE_CORRUPT", Refused, "is damaged", "restore it from a backup"),
)
"""By the beginning of SQLite's name for the error."""

_UNDEFINED = {"42P01", "42703"}
"""PostgreSQL's codes for a table or a column that is not there; SQLite only has words for it."""


def translate(error: SQLAlchemyError, name: str) -> CdrError:
    """Our error for the driver's. What may pass is ``DatabaseUnavailable``: then a retry helps."""
    database = f"the metadata database {name}"
    if isinstance(error, PoolTimeout):
        return DatabaseUnavailable(f"{database} has no free connection for this process")
    if not isinstance(error, DBAPIError):
        return CdrError(f"{database} was used wrongly: {first_line(error)}")
    reason = first_line(error.orig or error)
    if _schema_differs(error.orig, reason):
        return Refused(f"{database} has another schema ({reason})", hint=UPGRADE_HINT)
    code = getattr(error.orig, "sqlite_errorname", None)
    if code is not None:
        return _from_sqlite(code, database, reason)
    if isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated:
        return DatabaseUnavailable(f"{database} did not answer ({reason})")
    return CdrError(f"{database} refused a statement ({reason})")


def _from_sqlite(code: str, database: str, reason: str) -> CdrError:
    for prefix, kind, sentence, hint in _SQLITE:
        if code.startswith(prefix):
            return kind(f"{database} {sentence} ({reason})", hint=hint)
    return CdrError(f"{database} refused a statement ({reason})")


def _schema_differs(error: BaseException | None, reason: str) -> bool:
    undefined = reason.startswith(("no such table", "no such column")) or "has no column named" in reason
    return undefined or getattr(error, "sqlstate", None) in _UNDEFINED


def first_line(error: BaseException) -> str:
    """What follows the first line may quote the statement and its values."""
    text = str(error).strip().splitlines()
    return text[0].strip().rstrip(".") if text else type(error).__name__
