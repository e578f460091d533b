"""The embedded Connect server of one recovery: started once, shared by all its processes, stopped as a whole.

A server has a directory of its own. Every process that needs it calls :func:`ensure_server`; concurrent calls result in
one server, because its supervisor holds a lock in that directory for as long as it lives. The supervisor
(``cdr_core.spark.supervisor``) leads a session of processes of its own, so neither the end of the client that started
it nor a signal to that client's process group affects it; it ends the server on request, when no client has given a
sign of life for the idle time, or when the directory vanishes.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cdr_core.errors import JobFailed
from cdr_core.spark import processes
from cdr_core.spark.code_stamp import code_stamp
from cdr_core.spark.python_path import python_path
from cdr_core.spark.worker import PRELOAD_VARIABLE

log = logging.getLogger(__name__)

HANDLE_FILE = "server.json"
FAILURE_FILE = "failed.json"
STOP_FILE = "stop"
"""Creating this file ends the server, for users who can write to its directory but not signal its processes."""
LOCK_FILE = "lock"
TOKEN_FILE = "token"
LOG_FILE = "server.log"

START_TIMEOUT = 120.0
"""Seconds until a start is given up; on two quiet cores it takes 2 to 6."""

ALREADY_RUNNING = 3
"""Exit status of a supervisor that found another one in its directory."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """Parameters of a server's start; while it runs, another spec for the same directory is ignored.

    ``directory`` is the server's own (on this host, not shared), ``home`` is CDR_HOME. ``cores`` 0 means all of the
    host. ``environment`` is added to the server's and so to the Python workers' (credentials may be in here: it is
    never written down). ``preload`` names modules that the workers' daemon imports once for all of them. ``conf`` adds
    Spark settings, which are written down: no secrets. ``record`` is for set-up: the server runs without an archive and
    writes one there when it is stopped.
    """

    directory: Path
    home: Path
    cores: int = 0
    idle_seconds: float = 60.0
    ui: bool = True
    heap: str = "1g"
    record: str | None = None
    preload: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the spec for the supervisor's command line: everything but the environment."""
        return json.dumps(
            {
                "directory": str(self.directory),
                "home": str(self.home),
                "cores": self.cores,
                "idle_seconds": self.idle_seconds,
                "ui": self.ui,
                "heap": self.heap,
                "record": self.record,
                "preload": self.preload,
                "conf": dict(self.conf),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> ServerSpec:
        values: dict[str, Any] = json.loads(text)
        places = {name: Path(values[name]) for name in ("directory", "home")}
        return cls(**{**values, **places, "preload": tuple(values.get("preload", ()))})


@dataclass(frozen=True, slots=True)
class ServerHandle:
    """A running server, as it is stored in the recovery's row: no secret inside.

    ``pid`` and ``start_time`` are the supervisor's, which leads the server's session of processes. ``ui`` is the Spark
    UI's address on this host, ``None`` if it is off. ``code`` is the stamp of the code that it found when it
    came up; ``None`` in handles of releases that did not write it.
    """

    directory: str
    pid: int
    start_time: str
    port: int
    session_id: str
    ui: str | None = None
    code: str | None = None

    @property
    def is_current(self) -> bool:
        """Return whether the server runs the code of this process: another one would read its files wrongly, or not at
        all.
        """
        return self.code == code_stamp()

    @property
    def token_file(self) -> Path:
        """Return the file with the token that clients must present; readable by the server's user only."""
        return Path(self.directory) / TOKEN_FILE

    @property
    def log_file(self) -> Path:
        return Path(self.directory) / LOG_FILE

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServerHandle:
        """Return the handle that :meth:`to_json` wrote; fields of later versions are ignored."""
        values: dict[str, Any] = json.loads(text)
        known: dict[str, Any] = {name: values.get(name) for name in cls.__dataclass_fields__}
        return cls(**known)


def ensure_server(spec: ServerSpec, timeout: float = START_TIMEOUT) -> ServerHandle:
    """Return the running server of this directory, started if there is none; :class:`JobFailed` if it does
    not come up.
    """
    start_server(spec)
    return wait_ready(spec, timeout)


def start_server(spec: ServerSpec) -> None:
    """Start the server unless one runs or starts already, and return at once: :func:`wait_ready` waits.

    A server that runs other code than this process is ended first.
    """
    running = find_server(spec.directory)
    if running is not None:
        if running.is_current:
            return
        _end_outdated(running)
    spec.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (spec.directory / LOG_FILE).open("ab") as log:
        # The child takes the lock, forks the supervisor and ends: this waits for some 50 ms.
        code = subprocess.run(
            [sys.executable, "-m", "cdr_core.spark.supervisor", spec.to_json()],
            env=_environment(spec),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
            timeout=START_TIMEOUT,
        ).returncode
    if code not in (0, ALREADY_RUNNING):
        raise _start_failed(spec.directory, f"its supervisor ended with status {code}")


def _end_outdated(handle: ServerHandle) -> None:
    log.warning(
        "The Spark server %d runs other code (%s; here: %s): ending it and starting a new one.",
        handle.pid,
        handle.code or "of an older release",
        code_stamp(),
    )
    stop_server(handle)


def _environment(spec: ServerSpec) -> dict[str, str]:
    given = {**os.environ, **spec.environment}
    fixed = {
        "PYTHONPATH": python_path(given.get("PYTHONPATH", "")),
        "CDR_HOME": str(spec.home),
        "NUMBA_CACHE_DIR": given.get("NUMBA_CACHE_DIR") or str(spec.home / "numba"),
        PRELOAD_VARIABLE: ",".join(spec.preload),
    }
    return {**given, **fixed}


def wait_ready(spec: ServerSpec, timeout: float = START_TIMEOUT) -> ServerHandle:
    """Return the handle of a server that :func:`start_server` began; starts it anew if its supervisor was killed
    meanwhile.

    A server that another process was starting may run other code: it is replaced once. :class:`JobFailed` if the new
    one runs other code, too, because then the code on disk is not that of this process any more.
    """
    deadline = time.monotonic() + timeout
    is_replaced = False
    while time.monotonic() < deadline:
        handle = find_server(spec.directory)
        if handle is not None and handle.is_current:
            return handle
        if handle is not None:
            if is_replaced:
                raise JobFailed("the code of cdr changed while a phase was starting", hint="run the phase again")
            is_replaced = True
            start_server(spec)
        elif not is_supervised(spec.directory):
            failure = _read_json(spec.directory / FAILURE_FILE)
            if failure is not None:
                raise _start_failed(spec.directory, str(failure.get("reason")))
            start_server(spec)
        time.sleep(0.03)
    raise _start_failed(spec.directory, f"it was not up after {timeout:.0f} s")


def _start_failed(directory: Path, reason: str) -> JobFailed:
    return JobFailed(f"the embedded Spark server did not start: {reason}", hint=f"its log is {directory / LOG_FILE}")


def find_server(directory: Path) -> ServerHandle | None:
    """Return the running server of this directory, if there is one that is up."""
    handle = read_handle(directory)
    return handle if handle is not None and is_alive(handle) else None


def read_handle(directory: Path) -> ServerHandle | None:
    """Return the handle that lies in the directory, whether its server runs or not."""
    values = _read_json(directory / HANDLE_FILE)
    return None if values is None else ServerHandle.from_json(json.dumps(values))


def _read_json(file: Path) -> dict[str, Any] | None:
    """Return the file's JSON, ``None`` if it is not there; files here appear whole, by a rename."""
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def is_supervised(directory: Path) -> bool:
    """Return whether a supervisor holds this directory: its server runs, starts or ends."""
    try:
        with (directory / LOCK_FILE).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def is_alive(handle: ServerHandle) -> bool:
    """Return whether this very server runs: a process that merely got its id does not count."""
    return processes.is_running(handle.pid, handle.start_time)


def stop_server(handle: ServerHandle, timeout: float = 8.0) -> None:
    """End the server and every process of it; a server that is gone already is fine.

    The supervisor is asked first, because it also removes the scratch files; what is left after half the timeout is
    killed from here. :class:`JobFailed` if a process outlives that.
    """
    if is_alive(handle):
        processes.send(handle.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout / 2
    while processes.session_members(handle.pid, handle.start_time) and time.monotonic() < deadline:
        time.sleep(0.03)
    if not processes.kill_session(handle.pid, handle.start_time, timeout / 2):
        raise JobFailed(
            "a process of the embedded Spark server could not be killed",
            hint=f"look at process group {handle.pid} on this host",
        )
