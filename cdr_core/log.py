"""Logging, with recovery, phase, epoch and subtask as fields of every line.

INFO tells the story of a recovery, DEBUG the decisions in it. Lines go to stderr: as text, or as a JSON object each. A
line holds what its call passes and nothing else, so no setting, address of a database or credential gets into one.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import IO

ROOT = "cdr_core"
DATA = "cdr_data"
"""The attribute of a log record that holds the fields of its call."""


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


_fields: ContextVar[Mapping[str, object]] = ContextVar("cdr_log_fields", default=MappingProxyType({}))


@contextmanager
def log_fields(**fields: object) -> Iterator[None]:
    """Add fields to every line that is logged in the block, by this thread or task."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def with_fields(**values: object) -> dict[str, object]:
    """The fields of one line: ``log.info("…", extra=with_fields(units=3))``."""
    return {DATA: values}


def configure(level: str, style: LogFormat, stream: IO[str] | None = None) -> None:
    """Send cdr's log to stderr. Without a level, everything from INFO on is logged, and only warnings on a terminal,
    where progress bars are drawn. Calling it again replaces the set-up.
    """
    chosen = level or ("warning" if (stream or sys.stderr).isatty() else "info")
    handler = _Stderr() if stream is None else logging.StreamHandler(stream)
    handler.addFilter(_add_fields)
    handler.setFormatter(JsonFormatter() if style is LogFormat.JSON else TextFormatter())
    logger = logging.getLogger(ROOT)
    logger.handlers = [handler]
    logger.setLevel(chosen.upper())
    logger.propagate = False


class _Stderr(logging.StreamHandler[IO[str]]):
    """Writes to what stderr is when a line is logged: a long-lived process may have another one by then."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> IO[str]:  # type: ignore[override] # an attribute there
        return sys.stderr


def _add_fields(record: logging.LogRecord) -> bool:
    record.__dict__[DATA] = {**_fields.get(), **record.__dict__.get(DATA, {})}
    return True


class TextFormatter(logging.Formatter):
    """``2026-11-18T17:02:45.123Z INFO message  recovery=r-1f phase=drain epoch=4``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in record.__dict__[DATA].items())
        text = f"{_time(record)} {record.levelname} {record.getMessage()}"
        return f"{text}  {fields}" if fields else text


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and the fields beside them."""

    def format(self, record: logging.LogRecord) -> str:
        head = {"time": _time(record), "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        return json.dumps({**head, **record.__dict__[DATA]}, default=str)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
