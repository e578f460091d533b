"""The four processes of an Airflow, started and stopped by cdr.

``airflow standalone`` leaves half of them running when it is stopped. Each service leads a session of its own, which
also holds everything it forks; a driver leaves that session but is tied to its task.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGTERM

from cdr_airflow.embedded.home import Home, write_private
from cdr_core.spark import processes

API_SERVER, SCHEDULER, DAG_PROCESSOR, TRIGGERER = "api-server", "scheduler", "dag-processor", "triggerer"

SERVICES: dict[str, tuple[str, ...]] = {
    API_SERVER: (),
    # Logs are read from the disk they are written to; serving them would only take ports that others may need.
    SCHEDULER: ("--skip-serve-logs",),
    DAG_PROCESSOR: (),
    TRIGGERER: ("--skip-serve-logs",),
}

MODULES = {API_SERVER: "cdr_airflow.embedded.api_server"}
"""Modules that run a service instead of Airflow's own."""

STOP_ORDER = ((SCHEDULER,), (DAG_PROCESSOR, TRIGGERER), (API_SERVER,))
"""Tasks first, while the API they report to still answers; they get the time that their ``on_kill`` takes."""

STOP_SECONDS = {SCHEDULER: 8.0, DAG_PROCESSOR: 4.0, TRIGGERER: 4.0, API_SERVER: 4.0}


@dataclass(frozen=True, slots=True)
class Service:
    """A started service: its process, distinguished from a later one with the same id."""

    name: str
    pid: int
    started: str

    @property
    def is_running(self) -> bool:
        return processes.is_running(self.pid, self.started)

    @property
    def members(self) -> list[int]:
        """Return every living process of it, also those that outlived their leader."""
        return processes.session_members(self.pid, self.started)


def log_file(home: Home, name: str) -> Path:
    return home.logs / f"{name}.log"


def start(home: Home, name: str) -> Service:
    """Start a service and record its process."""
    home.logs.mkdir(parents=True, exist_ok=True)
    with log_file(home, name).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULES.get(name, "airflow"), name, *SERVICES[name]],
            env=home.environment(),
            cwd=home.airflow,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    service = Service(name, process.pid, processes.start_time(process.pid) or "ended at once")
    write_private(home.run / f"{name}.json", json.dumps(asdict(service)))
    return service


def known(home: Home) -> list[Service]:
    """Return the services that were started here and not stopped since, running or not."""
    found = []
    for name in SERVICES:
        file = home.run / f"{name}.json"
        if file.is_file():
            found.append(Service(**json.loads(file.read_text())))
    return found


def running(home: Home) -> list[Service]:
    """Return the services with a living process."""
    return [service for service in known(home) if service.members]


def stop(home: Home) -> int:
    """End all services with everything they forked; return how many processes that were. None is left."""
    services = {service.name: service for service in known(home)}
    ended = 0
    for names in STOP_ORDER:
        together = [services[name] for name in names if name in services]
        ended += _stop(together)
        for service in together:
            (home.run / f"{service.name}.json").unlink(missing_ok=True)
    return ended


def _stop(services: Iterable[Service]) -> int:
    services = list(services)
    members = {service.name: service.members for service in services}
    for pids in members.values():
        for pid in pids:
            processes.send(pid, SIGTERM)
    deadline = time.monotonic() + max((STOP_SECONDS[service.name] for service in services), default=0)
    while any(service.members for service in services) and time.monotonic() < deadline:
        time.sleep(0.1)
    for service in services:
        processes.kill_session(service.pid, service.started)
    return sum(map(len, members.values()))
