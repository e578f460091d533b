"""What the operator asks of cdr's own side: create or attach, take an epoch, find the Spark server.

Every import of that side is inside a function: a DAG is parsed every few seconds, a task runs once.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cdr_core


@dataclass(frozen=True, slots=True)
class TaskTry:
    """Which try of which task of which run asks; a newer try fences every older one."""

    run: str
    task: str
    number: int


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt that may start its driver: it owns ``epoch`` until a newer attempt takes the next."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """The phase finished in an earlier attempt; its stored result is the answer and no epoch was taken."""

    result: dict[str, Any]


def create(request: Mapping[str, str]) -> str:
    """The recovery that the request names, made or attached to; raises a :class:`cdr_core.errors.CdrError`."""
    from cdr_core import settings
    from cdr_core.phases import request as requests

    wished = requests.RecoveryRequest(
        checkpoint=request["checkpoint"],
        spec=request["spec"],
        parallelism=request["parallelism"],
        to=request["to"],
        checkpoint_interval=request.get("checkpoint_interval", ""),
        on_corrupt=request.get("on_corrupt", "fail"),
    )
    return requests.create(wished, settings.load())


def begin(recovery: str, phase: str, task_try: TaskTry) -> Begun | AlreadyDone:
    """Take the next epoch for this try, or learn that there is nothing left to do."""
    from cdr_core import settings
    from cdr_core.metadata import Phase, Repository, Runner

    runner = Runner(task_try.run, task_try.task, task_try.number, socket.gethostname(), os.getpid())
    with Repository.open(settings.load().database_url) as repository:
        attempt = repository.begin_attempt(recovery, Phase(phase), runner)
        if attempt is not None:
            return Begun(attempt.epoch)
        stored = next(row for row in repository.phases(recovery) if row.name == phase)
        return AlreadyDone(dict(stored.result or {}))


def start_interrupt(recovery: str) -> subprocess.Popen[bytes] | None:
    """Stop the recovery's Spark jobs from a process of its own; ``None`` when it has no server.

    Not tied to the task: Airflow kills a task that takes five seconds to end, and the interruption must outlive that.
    It bounds itself.
    """
    from cdr_core import settings
    from cdr_core.metadata import Repository

    with Repository.open(settings.load().database_url) as repository:
        server = repository.recovery(recovery).server
    if not server:
        return None
    return subprocess.Popen(
        [sys.executable, "-m", "cdr_core.spark.interrupt", server["directory"]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=driver_environment(),
        start_new_session=True,
    )


def driver_environment() -> dict[str, str]:
    """The task's environment as a driver may see it.

    Airflow's own variables stay behind: they hold its secrets, and its channels mean nothing to a driver.
    """
    hidden = ("AIRFLOW__", "__AIRFLOW", "_AIRFLOW")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    library = str(Path(cdr_core.__file__).resolve().parent.parent)
    paths = [library, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    environment["PYTHONUNBUFFERED"] = "1"  # a progress line is worth something only while it is true
    return environment
