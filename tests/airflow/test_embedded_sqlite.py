"""Airflow's own connections to the embedded SQLite file: they wait for a writer that takes longer than five seconds."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cdr_airflow.embedded import config
from cdr_airflow.embedded.home import Home, keep_secrets, write_private
from cdr_airflow.embedded.sqlite import BUSY_TIMEOUT_SECONDS

HELD_SECONDS = 6.5
"""Longer than the driver's own time-out."""

WRITE = """
import asyncio, json, sqlite3, sys, threading, time
from airflow import settings
from sqlalchemy import text
settings.initialize()
path, held = sys.argv[1], float(sys.argv[2])

def hold_the_write_lock(ready):
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    ready.set()
    time.sleep(held)
    other.execute("COMMIT")

def with_a_slow_writer(write):
    ready = threading.Event()
    slow = threading.Thread(target=hold_the_write_lock, args=(ready,))
    slow.start()
    ready.wait()
    write()
    slow.join()

def write():
    with settings.Session() as session:
        session.execute(text("SELECT count(*) FROM clicks")).all()
        session.execute(text("INSERT INTO clicks VALUES ('sync')"))
        session.commit()

async def write_async():
    async with settings.AsyncSession() as session:
        await session.execute(text("INSERT INTO clicks VALUES ('async')"))
        await session.commit()

with_a_slow_writer(write)
with_a_slow_writer(lambda: asyncio.run(write_async()))
with settings.engine.connect() as connection:
    mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
    wait = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
print(json.dumps({"mode": mode, "wait": wait}))
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    write_private(home.config, config.render(config.sections(home, 8123, keep_secrets(home))))
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")  # as after Airflow has made the file
        connection.execute("CREATE TABLE clicks (who TEXT)")
    return home


def run(home: Home, script: str) -> Any:
    """Run the script in a process of this Airflow and return the object that it prints."""
    command: list[Any] = [sys.executable, "-c", script, home.database, str(HELD_SECONDS)]
    done = subprocess.run(
        command, env=home.environment(), cwd=home.airflow, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def test_both_engines_of_airflow_wait_for_a_slow_writer(home: Home) -> None:
    assert run(home, WRITE) == {"mode": "wal", "wait": BUSY_TIMEOUT_SECONDS * 1000}
    with closing(sqlite3.connect(home.database)) as connection:
        assert connection.execute("SELECT who FROM clicks").fetchall() == [("sync",), ("async",)]


LOG_ACTIONS = """
import asyncio, json, sqlite3, sys, threading, time
from types import SimpleNamespace
from airflow import settings
settings.initialize()
from airflow.api_fastapi.logging import decorators
from airflow.models.log import Log
from cdr_airflow.embedded.api_server import in_a_thread
path, held = sys.argv[1], float(sys.argv[2])
Log.__table__.create(settings.engine)
log_action = in_a_thread(decorators.action_logging)("post_clear_task_instances")
user = SimpleNamespace(get_name=lambda: "admin")

class Request:
    headers, query_params, path_params, method, scope = {}, {}, {"dag_id": "cdr_recover"}, "POST", {}

async def click_while_another_request_holds_the_lock():
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")

    async def commit_when_the_event_loop_goes_on():
        await asyncio.sleep(0.5)
        other.execute("COMMIT")

    commits = asyncio.create_task(commit_when_the_event_loop_goes_on())
    await asyncio.sleep(0)
    with settings.NonScopedSession() as session:
        await log_action(Request(), session, user)
        await commits
        try:
            sqlite3.connect(path, timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            return str(error)
    return ""

began = time.monotonic()
other = asyncio.run(click_while_another_request_holds_the_lock())
with settings.NonScopedSession() as session:
    events = [row.event for row in session.query(Log)]
print(json.dumps({"events": events, "seconds": time.monotonic() - began, "other": other}))
"""


def test_the_audit_log_of_a_click_does_not_stop_the_event_loop(home: Home) -> None:
    told = run(home, LOG_ACTIONS)
    assert told["events"] == ["post_clear_task_instances"]
    assert told["seconds"] < HELD_SECONDS
    assert told["other"] == "database is locked", "the action holds the write lock before it reads"
