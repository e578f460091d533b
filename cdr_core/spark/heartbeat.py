"""Clients signal the server's supervisor that they are at work, by touching a file every two seconds.

The file names the client's process (id and start time), so that a client that died without removing it is detected at
once.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from types import TracebackType

from cdr_core.spark.processes import is_running, start_time

BEAT_SECONDS = 2.0
"""Well below the shortest sensible idle time, well above the cost of one utime call."""

CLIENTS = "clients"


class Heartbeat:
    """While entered, a daemon thread keeps this process's file in the server's directory fresh.

    A missing directory is not an error here: the server is gone too, and its next use fails.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory / CLIENTS / f"{os.getpid()}-{threading.get_ident()}-{id(self)}.json"
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="cdr-spark-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._sign()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join(timeout=1)
        with contextlib.suppress(OSError):
            self._file.unlink()

    def _beat(self) -> None:
        while not self._done.wait(BEAT_SECONDS):
            self._sign()

    def _sign(self) -> None:
        """Write the file anew each time: a server that starts in this directory deletes the files that it finds."""
        with contextlib.suppress(OSError):
            self._file.write_text(json.dumps({"pid": os.getpid(), "start_time": start_time(os.getpid())}))


class Listener:
    """The supervisor's side: the time of the last sign of life, on a monotonic clock."""

    def __init__(self, directory: Path, now: float) -> None:
        self._clients = directory / CLIENTS
        self._clients.mkdir(exist_ok=True)
        self._seen: dict[str, int] = {}
        self.last_beat = now

    def listen(self, now: float) -> None:
        """Record every beat since the last call; forget clients whose process is gone."""
        seen: dict[str, int] = {}
        for file in self._files():
            try:
                beat = file.stat().st_mtime_ns
                if _is_orphan(file):
                    file.unlink()
                    continue
            except OSError:
                continue  # its client removed it between the two calls
            seen[file.name] = beat
            if self._seen.get(file.name) != beat:
                self.last_beat = now
        if self._seen.keys() - seen.keys():
            self.last_beat = now  # the removal is a sign of life too: the idle time starts with it
        self._seen = seen

    def _files(self) -> list[Path]:
        try:
            return list(self._clients.iterdir())
        except OSError:
            return []


def _is_orphan(file: Path) -> bool:
    try:
        client = json.loads(file.read_text())
        return not is_running(client["pid"], client["start_time"])
    except (ValueError, KeyError, TypeError):
        return False  # being written at this very moment
