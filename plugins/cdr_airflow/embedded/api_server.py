"""Airflow's API server on SQLite: ``python -m cdr_airflow.embedded.api_server api-server``.

Airflow commits its audit log of Clear, Trigger and other actions in the event loop. Meanwhile a request in a thread may
hold SQLite's write lock, and it can only commit when the event loop goes on: both wait until the busy time-out, every
other request with them, and the action ends with HTTP 500. This module lets Airflow write the log in a thread instead
and then runs Airflow's own command. It relies on ``airflow.api_fastapi.logging.decorators`` of the pinned Airflow; the
test ``test_embedded_sqlite`` fails where that changes. PostgreSQL locks rows and needs none of this.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.api_fastapi.logging import decorators
from fastapi import Request
from fastapi.concurrency import run_in_threadpool

LogAction = Callable[[Request, Any, Any], Awaitable[None]]


class KeptRows:
    """Replaces a session: keeps added rows and commits nothing."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def add(self, row: Any) -> None:
        self.rows.append(row)

    def commit(self) -> None:
        """Do nothing: the rows are written later."""


def in_a_thread(action_logging: Callable[..., LogAction]) -> Callable[..., LogAction]:
    """Return Airflow's ``action_logging`` with its rows written outside of the event loop."""

    def logging(event: str | None = None) -> LogAction:
        log = action_logging(event)

        async def log_action(request: Request, session: SessionDep, user: GetUserDep) -> None:
            kept = KeptRows()
            await log(request, kept, user)
            if kept.rows:
                await run_in_threadpool(_write, session, kept.rows)

        return log_action

    return logging


def _write(session: Any, rows: list[Any]) -> None:
    """Commit the log, then begin the transaction of the action itself with SQLite's write lock.

    SQLite has no row locks: an action that reads first and writes later would otherwise fail where the scheduler or
    another user changed the rows in between.
    """
    session.add_all(rows)
    session.commit()
    session.connection().exec_driver_sql("BEGIN IMMEDIATE")


def main() -> None:
    # Before any route is imported: each of them takes the function when it is defined.
    decorators.action_logging = in_a_thread(decorators.action_logging)
    from airflow.__main__ import main as airflow

    sys.argv[0] = "airflow"
    airflow()  # type: ignore[no-untyped-call] # Airflow does not annotate it


if __name__ == "__main__":
    main()
