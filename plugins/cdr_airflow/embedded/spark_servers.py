"""The recoveries' Spark servers of a home, found among the processes.

Handles are not enough: a server that is just starting has none yet, and ``down`` must end it too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import psutil

from cdr_core.spark import processes
from cdr_core.spark.server import ServerSpec, find_server, stop_server

SUPERVISOR = "cdr_core.spark.supervisor"


@dataclass(frozen=True, slots=True)
class Supervisor:
    """The process that watches one recovery's server and leads the session that contains all of it."""

    pid: int
    started: str
    directory: Path


def running(home: Path) -> list[Supervisor]:
    """Return every server of this home that runs or starts."""
    found = []
    for process in psutil.process_iter():
        spec = _spec_of(process)
        started = processes.start_time(process.pid)
        if spec is not None and started is not None and spec.home == home:
            found.append(Supervisor(process.pid, started, spec.directory))
    return found


def stop(home: Path) -> int:
    """End them all; return how many they were."""
    supervisors = running(home)
    for supervisor in supervisors:
        handle = find_server(supervisor.directory)
        if handle is not None:
            stop_server(handle)
        processes.kill_session(supervisor.pid, supervisor.started)
    return len(supervisors)


def _spec_of(process: psutil.Process) -> ServerSpec | None:
    try:
        command = process.cmdline()
        return ServerSpec.from_json(command[-1]) if SUPERVISOR in command else None
    except (psutil.Error, json.JSONDecodeError, KeyError, TypeError):
        return None
