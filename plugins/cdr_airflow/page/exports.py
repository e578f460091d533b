"""Exports of recovery checkpoints, below one root: a web user chooses a checkpoint, never a path.

An export may take minutes, longer than a browser waits. It runs in a process of its own; ``_metadata`` is written last
and exclusively, so every worker sees in the directory itself whether it is finished, even after a restart. Only this
process remembers failures.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any

from cdr_airflow.page.export_process import Written, export_in_child
from cdr_core.errors import CdrError, NotReady
from cdr_core.storage import join, storage_for

WAIT_SECONDS = 20.0
"""Seconds that a request waits for its export before the answer is to ask again."""

METADATA_FILE = "_metadata"
WRITING = "…"

Work = Callable[[str, int, str], Written]


class Exports:
    """At most one export at a time: they copy whole spill sets, and the api-server has other things to do."""

    def __init__(self, work: Work = export_in_child, patience: float = WAIT_SECONDS) -> None:
        self._work, self._patience = work, patience
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._running: tuple[str, Future[Written]] | None = None
        self._failed: dict[str, str] = {}

    def start(self, root: str, recovery: str, number: int) -> dict[str, Any]:
        """Return the finished export, or ``RUNNING``; an export that failed in time is raised."""
        directory = place(root, recovery, number)
        future = self._submit(directory, lambda: self._export(recovery, number, directory))
        try:
            exported = future.result(self._patience)
        except NotYet:
            return {"state": "RUNNING", "directory": directory}
        return {
            "state": "DONE",
            "directory": exported.directory,
            "records": exported.records,
            "bytes": exported.bytes,
        }

    def state_of(self, root: str, recovery: str, number: int) -> str | None:
        """Return where the finished export lies, ``WRITING`` while it is written here, ``None`` if there is none."""
        directory = place(root, recovery, number)
        with self._lock:
            if self._running is not None and self._running[0] == directory and not self._running[1].done():
                return WRITING
        target = join(directory, METADATA_FILE)
        return directory if storage_for(target).exists(target) else None

    def failure_of(self, root: str, recovery: str, number: int) -> str | None:
        with self._lock:
            return self._failed.get(place(root, recovery, number))

    def _submit(self, directory: str, work: Callable[[], Written]) -> Future[Written]:
        with self._lock:
            if self._running is not None and not self._running[1].done():
                if self._running[0] == directory:
                    return self._running[1]
                raise NotReady("another export is running", hint="wait for it, or use: cdr checkpoint --to DIR")
            self._failed.pop(directory, None)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="cdr-export")
            future = self._pool.submit(work)
            self._running = (directory, future)
            return future

    def _export(self, recovery: str, number: int, directory: str) -> Written:
        try:
            return self._work(recovery, number, directory)
        except CdrError as error:
            self._remember(directory, str(error))
            raise
        except Exception as error:
            self._remember(directory, f"the export failed: {type(error).__name__}.")
            raise

    def _remember(self, directory: str, sentence: str) -> None:
        with self._lock:
            self._failed[directory] = sentence


def place(root: str, recovery: str, number: int) -> str:
    """Return the directory of an export; made of a known id and a number, so it cannot leave the root."""
    return join(root, f"{recovery}-chk-{number}")
