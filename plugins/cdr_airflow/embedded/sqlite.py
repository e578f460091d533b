"""How the embedded Airflow's processes connect to their SQLite file; ``airflow.cfg`` names these values.

Airflow itself puts the file into WAL mode. Left to the default, a writer gives up after five seconds of waiting for
another one, and the API server turns that into HTTP 500: on a busy disk the scheduler's transactions take longer.
"""

from __future__ import annotations

from typing import Any

BUSY_TIMEOUT_SECONDS = 60.0
"""Longer than any transaction of Airflow's takes on a busy machine; a user sees a slow click instead of an error."""

# A transaction takes the write lock when it begins. One that begins as a reader and then writes would fail at once,
# without waiting, where another process has written in between (SQLITE_BUSY_SNAPSHOT).
_OPTIONS: dict[str, Any] = {"timeout": BUSY_TIMEOUT_SECONDS, "isolation_level": "IMMEDIATE"}

# Two dictionaries, because Airflow adds an option to the first that the asynchronous driver does not need.
connect_args = dict(_OPTIONS)
connect_args_async = dict(_OPTIONS)
