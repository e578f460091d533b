"""A real Airflow for the tests, and what they ask of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import psutil

from cdr_airflow.demo_checkpoint import shipped
from cdr_airflow.die_with_parent import tethered
from cdr_airflow.embedded import rest, services
from cdr_airflow.embedded.home import USER, Home, keep_password
from cdr_airflow.embedded.instance import is_healthy
from cdr_airflow.embedded.overhead import Overhead, of_run, phase_seconds
from cdr_airflow.embedded.rest import DAG, Client
from cdr_core.errors import StorageError
from cdr_core.metadata import Phase, Repository
from cdr_core.spark import processes
from tests.airflow import watchdog
from tests.conftest import link_spark_archive
from tests.support import lanes
from tests.support.output import rows

IDLE_SECONDS = 10
"""After which a Spark server without work ends: longer than the gap between two tasks, short enough to wait for."""

PATIENCE = 900.0
"""Seconds until a test gives up waiting; other work may share the machine."""

START_SERVICE = """
import sys
from pathlib import Path
from cdr_airflow.embedded import services
from cdr_airflow.embedded.home import Home
services.start(Home(Path(sys.argv[1])), sys.argv[2])
"""


def wait_for(what: str, condition: Callable[[], Any], seconds: float = PATIENCE, every: float = 0.3) -> Any:
    """The first true value of the condition."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(every)
    return value


@dataclass(frozen=True, slots=True)
class Live:
    """An embedded Airflow in a home of its own, whose units can be made to wait."""

    home: Home
    pauses: Path
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, **settings: str) -> Live:
        lanes.require("airflow")
        live = cls(Home(folder / "home"), folder / "pauses", settings)
        live.pauses.mkdir()
        for phase in Phase:
            live.spent(phase).touch()
        link_spark_archive(live.home.root)
        return live

    def spent(self, phase: str) -> Path:
        """While this file exists the phase's driver does not fail; the failing driver itself creates it."""
        return self.pauses / f"{phase}.failed"

    @property
    def environment(self) -> dict[str, str]:
        """Of the instance and so of every driver and Spark worker it starts."""
        faults = [f"{phase}.unit=pause:{self.pauses / phase}" for phase in Phase]
        faults += [f"{phase}.before-done=once:{self.spent(phase)}:raise" for phase in Phase]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "CDR_"))}
        return kept | {
            "CDR_HOME": str(self.home.root),
            "CDR_SPARK_IDLE": f"{IDLE_SECONDS}s",
            "CDR_FAULTS": ",".join(faults),
            "CDR_FAULTS_LOG": str(self.pauses / "log"),
            **self.settings,
        }

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Inside the block nothing of this instance outlives the test process; after it, nothing of it is left."""
        with watchdog.watched(self.environment, self.pauses / "watchdog.log"):
            try:
                yield
            finally:
                down = self.command("down")
            assert down.returncode == 0, down.stderr
        assert self.leftovers() == []

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of the embedded commands to its end."""
        return self._run(["-m", "cdr_airflow.embedded", *arguments], 2 * PATIENCE)

    def cdr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``cdr`` in this home."""
        return self._run(["-m", "cdr_core.cli.main", *arguments], PATIENCE)

    def phase(self, name: str, recovery: str, epoch: int) -> subprocess.CompletedProcess[str]:
        """A driver started by hand under a given epoch."""
        return self._run(["-m", "cdr_core.phases", name, "--recovery", recovery, "--epoch", str(epoch)], PATIENCE)

    def _run(self, arguments: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
        command = tethered([sys.executable, *arguments])
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=seconds
        )

    @property
    def url(self) -> str:
        return str(json.loads((self.home.run / "address.json").read_text())["url"])

    @property
    def password(self) -> str:
        return keep_password(self.home)[0]

    @property
    def client(self) -> Client:
        return _signed_in(self.url, self.password)

    def page(self, path: str) -> str:
        """What the Recoveries page's own address answers to somebody who is signed in."""
        request = Request(f"{self.url}/cdr/{path}", headers={"Authorization": f"Bearer {self.client.token}"})
        with urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())

    @contextmanager
    def paused(self, phase: str) -> Iterator[Callable[[], None]]:
        """Units of this phase wait inside the block; what it gives returns once the first of them does."""
        log, file = self.pauses / "log", self.pauses / phase

        def reached() -> int:
            return log.read_text().count(f"{phase}.unit ") if log.is_file() else 0

        before = reached()
        file.touch()
        try:
            yield lambda: wait_for(f"a unit of {phase}", lambda: reached() > before)
        finally:
            file.unlink()

    def repository(self) -> Repository:
        return Repository.open(f"sqlite:///{self.home.root}/cdr.db")

    def processes_of(self, recovery: str) -> list[psutil.Process]:
        """Every living process whose command line names the recovery: its drivers and its Spark server."""
        return [process for process in psutil.process_iter() if recovery in " ".join(_command(process))]

    def drivers_of(self, recovery: str) -> list[psutil.Process]:
        return [process for process in self.processes_of(recovery) if "cdr_core.phases" in _command(process)]

    def fail_once(self, phase: str) -> None:
        """Let the next driver of this phase fail when all its work is done and nothing of it is recorded."""
        self.spent(phase).unlink()

    def service(self, name: str) -> services.Service:
        return next(service for service in services.known(self.home) if service.name == name)

    def end(self, service: services.Service) -> None:
        """Kill it with everything it forked; nobody is asked first."""
        for pid in service.members:
            processes.send(pid, signal.SIGKILL)
        wait_for(f"the end of {service.name}", lambda: not service.members, 10)

    def start_service(self, name: str) -> None:
        """Start one service of a running instance again, and wait until Airflow calls itself healthy."""
        started = self._run(["-c", START_SERVICE, str(self.home.root), name], PATIENCE)
        assert started.returncode == 0, started.stderr
        wait_for("a healthy Airflow", lambda: is_healthy(rest.health(self.url)))

    def leftovers(self) -> list[str]:
        """Command lines of processes that belong to this home, whoever started them."""
        return [" ".join(_command(process))[:200] for process in watchdog.processes_of(str(self.home.root))]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the DAG on the shipped checkpoint."""

    live: Live
    id: str
    output: Path

    @classmethod
    def trigger(cls, live: Live, output: str, **wishes: Any) -> Run:
        demo = shipped(live.home.root)
        folder = live.home.root / "out" / output
        conf = {"checkpoint": str(demo.checkpoint), "spec": demo.spec.read_text(), "parallelism": 2, **wishes}
        return cls(live, live.client.trigger(conf | {"to": f"parquet:{folder}"}), folder)

    @property
    def recovery(self) -> str:
        path = f"dags/{DAG}/dagRuns/{quote(self.id)}/taskInstances/read/xcomEntries/recovery"
        return str(self.live.client.call("GET", path)["value"])

    def task(self, name: str) -> dict[str, Any]:
        return self.live.client.tasks(self.id)[name]

    def wait_for_task(self, name: str, *states: str) -> dict[str, Any]:
        """The task's row once it is in one of the states."""

        def row() -> dict[str, Any] | None:
            found = self.task(name)
            return found if found["state"] in states else None

        return dict(wait_for(f"{name} to be {' or '.join(states)}", row))

    def wait_until_over(self) -> str:
        return str(wait_for("the run's end", lambda: _final(self.live.client.run_state(self.id))))

    def mark(self, task: str, state: str) -> None:
        """As a person does in the UI."""
        path = f"dags/{DAG}/dagRuns/{quote(self.id)}/taskInstances/{task}"
        self.live.client.call("PATCH", path, {"new_state": state})

    def clear(self, *tasks: str) -> None:
        body = {"dry_run": False, "dag_run_id": self.id, "task_ids": list(tasks), "only_failed": False}
        self.live.client.call("POST", f"dags/{DAG}/clearTaskInstances", body)

    def log(self, task: str, attempt: int = 1) -> str:
        path = f"dags/{DAG}/dagRuns/{quote(self.id)}/taskInstances/{task}/logs/{attempt}"
        return json.dumps(self.live.client.call("GET", path), ensure_ascii=False)

    def overhead(self) -> Overhead:
        """What Airflow cost this run, which is over."""
        with self.live.repository() as repository:
            return of_run(self.live.client, self.id, phase_seconds(repository.phases(self.recovery)))

    def links(self, task: str) -> dict[str, str | None]:
        path = f"dags/{DAG}/dagRuns/{quote(self.id)}/taskInstances/{task}/links"
        return dict(self.live.client.call("GET", path)["extra_links"])

    def events(self) -> list[dict[str, Any]]:
        """The asset events of this run."""
        found = self.live.client.call("GET", f"assets/events?source_run_id={quote(self.id, safe='')}")
        return list(found["asset_events"])

    def answer(self, option: str) -> None:
        """*Approve* or *Reject*, as a person does in the UI, once the run asks.

        Not before the scheduler has heard that the task waits: Airflow fails a task whose answer is faster than that.
        """
        self.wait_for_task("approve", "awaiting_input", "deferred")
        heard = re.compile(rf"Received executor event .*task_id='approve', run_id='{re.escape(self.id)}'")
        log = self.live.home.logs / "scheduler.log"
        wait_for("the scheduler to hear that it waits", lambda: heard.search(log.read_text(errors="replace")))
        path = f"dags/{DAG}/dagRuns/{quote(self.id)}/taskInstances/approve/-1/hitlDetails"
        self.live.client.call("PATCH", path, {"chosen_options": [option]})

    def published(self) -> Counter[tuple[int, int, int, int]]:
        """What a reader of the highest manifest sees, as (up, down, pos, new subtask); one manifest is all there is."""
        assert [path.name for path in (self.output / "_cdr").glob("manifest-*")] == ["manifest-1.json"]
        return Counter((row["up"], row["down"], row["pos"], row["new_down"]) for row in rows(self.output))


class PatientClient(Client):
    """Asks again where nobody answers: an api-server that is away for a while is part of some tests."""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return Client.call(self, method, path, body)
            except StorageError:
                # Only a question may be repeated: an order may have been carried out all the same.
                if method != "GET" or time.monotonic() > deadline:
                    raise
                time.sleep(1)


@cache
def _signed_in(url: str, password: str) -> PatientClient:
    """Once per instance: signing in for each look would be half of what the api-server has to do."""
    client = wait_for("an api-server that lets us in", lambda: _try_to_sign_in(url, password))
    return PatientClient(client.url, client.token)


def _try_to_sign_in(url: str, password: str) -> Client | None:
    try:
        return Client.login(url, USER, password)
    except StorageError:
        return None


def _final(state: str) -> str | None:
    return state if state in {"success", "failed"} else None


def _command(process: psutil.Process) -> list[str]:
    try:
        return [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()
    except psutil.Error:
        return []
