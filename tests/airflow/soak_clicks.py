"""Clicks of impatient users on an embedded Airflow that is busy; no click may end with a server error.

    .venv/bin/python -m tests.airflow.soak_clicks --minutes 30 --bytes 1GB --seed 7 --record docs/soak-clicks.json

``make soak-clicks`` is the same. The command starts an Airflow in a temporary home, recovers a generated checkpoint
over and over, drills the shipped one every minute, and meanwhile clicks Clear and Trigger through the REST API as
Airflow's UI does, with the requests that its open pages repeat. It counts the status codes and exits with 1 where
Airflow answered with 5xx or not at all. ``--seed`` fixes the order of the clicks of each user, not their timing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import yaml

from cdr_airflow.demo_checkpoint import Shipped, shipped
from cdr_airflow.embedded.services import API_SERVER, log_file
from tests.airflow.live import Live

ROOT = Path(__file__).resolve().parents[2]
RECOVER, DRILL, SWEEP = "cdr_recover", "cdr_restore_drill__minutely", "cdr_sweep"
PHASES = ("read", "filter", "spill", "drain", "commit")
USERS = 3
PATIENCE_SECONDS = 150.0
"""Longer than Airflow may wait for its database; a browser would still show a spinner."""
MOST_ACTIVE = 4
"""Runs of one DAG that wait or run before the users stop to trigger more: the machine has to get through them."""
NO_ANSWER = 0
CAUSE = re.compile(r"^(?:sqlalchemy|sqlite3)[\w.]*(?:Error|Exception): .{1,200}", re.MULTILINE)

POLLS = (
    "api/v2/monitor/health",
    "api/v2/importErrors",
    "ui/dags?dag_runs_limit=14",
    "ui/dashboard/dag_stats",
    f"ui/grid/structure/{RECOVER}",
    f"ui/grid/runs/{RECOVER}",
    f"ui/grid/runs/{DRILL}",
    f"ui/dags/{RECOVER}/latest_run",
    f"api/v2/dags/{RECOVER}/details",
    f"api/v2/dags/{DRILL}/dagRuns?limit=14&order_by=-run_after",
    "cdr/api/v1/recoveries",
    "cdr/api/v1/drills",
    "cdr/metrics",
)
"""What the open pages of Airflow and of cdr ask for again and again."""


@dataclass
class Tally:
    """The answers by request and status code, the slowest of each request, and the first words of each failure."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, status: int, seconds: float, text: str) -> None:
        with self.lock:
            self.answers[name, status] += 1
            self.slowest[name] = max(seconds, self.slowest.get(name, 0.0))
            if (status == NO_ANSWER or status >= 500) and len(self.failures) < 50:
                self.failures.append(f"{datetime.now(UTC):%H:%M:%S} {name}: {status} {' '.join(text.split())[:400]}")

    @property
    def bad(self) -> int:
        return sum(n for (_, status), n in self.answers.items() if status == NO_ANSWER or status >= 500)


@dataclass(frozen=True)
class User:
    """A browser that is signed in."""

    http: httpx.Client
    tally: Tally
    draw: random.Random

    def ask(self, name: str, method: str, path: str, body: Any = None) -> Any:
        """The answer's value, or ``None`` where Airflow refused or failed."""
        began = time.monotonic()
        try:
            answer = self.http.request(method, f"/{path}", json=body)
            status, text = answer.status_code, answer.text
        except httpx.HTTPError as error:
            status, text = NO_ANSWER, f"{type(error).__name__}: {error}"
        self.tally.add(name, status, time.monotonic() - began, text)
        return json.loads(text) if status == 200 and text.startswith(("{", "[")) else None

    def poll(self) -> None:
        path = self.draw.choice(POLLS)
        self.ask(f"GET {path.partition('?')[0]}", "GET", path)

    def runs(self, dag: str, *states: str) -> list[str]:
        chosen = "".join(f"&state={state}" for state in states)
        path = f"api/v2/dags/{dag}/dagRuns?limit=20&order_by=-run_after{chosen}"
        found = self.ask("GET dagRuns", "GET", path)
        return [str(run["dag_run_id"]) for run in found["dag_runs"]] if found else []

    def trigger(self, dag: str, conf: dict[str, Any]) -> None:
        if len(self.runs(dag, "queued", "running")) < MOST_ACTIVE:
            body = {"logical_date": None, "conf": conf}
            self.ask(f"POST dagRuns {dag}", "POST", f"api/v2/dags/{dag}/dagRuns", body)

    def clear(self, dag: str, tasks: tuple[str, ...], *, only_over: bool) -> None:
        """Clear a task with those after it: first the dialog's dry run, then in earnest."""
        runs = self.runs(dag, *(("success", "failed") if only_over else ()))
        if not runs:
            return
        run, task = self.draw.choice(runs[:5]), self.draw.choice(tasks)
        self.ask("GET taskInstances", "GET", f"api/v2/dags/{dag}/dagRuns/{quote(run, safe='')}/taskInstances")
        body = {"dag_run_id": run, "task_ids": [task], "include_downstream": True, "only_failed": False}
        for dry_run in (True, False):
            words = f"POST clearTaskInstances {'dry run' if dry_run else dag}"
            self.ask(words, "POST", f"api/v2/dags/{dag}/clearTaskInstances", {**body, "dry_run": dry_run})


@dataclass(frozen=True)
class Stage:
    """What there is to recover."""

    large: Path
    spec: Path
    demo: Shipped
    output: Path

    def conf(self, number: int) -> dict[str, Any]:
        """A recovery of the large checkpoint to a table of its own."""
        target = f"parquet:{self.output / f'large-{number}'}"
        return {"checkpoint": str(self.large), "spec": self.spec.read_text(), "parallelism": 2, "to": target}

    @property
    def small(self) -> dict[str, Any]:
        """Always the same recovery, which is soon done: every run after the first attaches to it."""
        target = f"parquet:{self.output / 'small'}"
        spec = self.demo.spec.read_text()
        return {"checkpoint": str(self.demo.checkpoint), "spec": spec, "parallelism": 2, "to": target}


def click(user: User, stage: Stage, until: float, pause: float) -> None:
    """One user's clicks until the time is over. Runs that are going are cleared now and then, ended ones often."""
    actions = (
        (12, user.poll),
        (2, lambda: user.trigger(RECOVER, stage.small)),
        (2, lambda: user.trigger(DRILL, {})),
        (1, lambda: user.trigger(SWEEP, {})),
        (3, lambda: user.clear(RECOVER, PHASES, only_over=True)),
        (3, lambda: user.clear(DRILL, (*PHASES, "verdict"), only_over=True)),
        (1, lambda: user.clear(DRILL, ("verdict",), only_over=False)),
    )
    while time.monotonic() < until:
        user.draw.choices([action for _, action in actions], [weight for weight, _ in actions])[0]()
        time.sleep(user.draw.uniform(0, 2 * pause))


def keep_recovering(user: User, stage: Stage, until: float) -> None:
    """A recovery of the large checkpoint at any time: the next begins when the last is over."""
    number = 0
    while time.monotonic() < until:
        number += 1
        body = {"logical_date": None, "conf": stage.conf(number)}
        run = user.ask(f"POST dagRuns {RECOVER}", "POST", f"api/v2/dags/{RECOVER}/dagRuns", body)
        state = "queued"
        while run and state in {"queued", "running"} and time.monotonic() < until:
            time.sleep(2)
            path = f"api/v2/dags/{RECOVER}/dagRuns/{quote(run['dag_run_id'], safe='')}"
            state = (user.ask("GET dagRun", "GET", path) or {"state": "running"})["state"]
        time.sleep(1)


def soak(live: Live, stage: Stage, options: argparse.Namespace) -> Tally:
    tally = Tally()
    headers = {"Authorization": f"Bearer {live.client.token}"}
    until = time.monotonic() + options.minutes * 60
    with httpx.Client(base_url=live.url, headers=headers, timeout=PATIENCE_SECONDS, trust_env=False) as http:
        users = [User(http, tally, random.Random(f"{options.seed}/{number}")) for number in range(USERS + 1)]
        threads = [threading.Thread(target=click, args=(user, stage, until, options.pause)) for user in users[1:]]
        threads.append(threading.Thread(target=keep_recovering, args=(users[0], stage, until)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return tally


def outcome(live: Live) -> dict[str, Any]:
    """What became of the recoveries and the drills meanwhile, and which errors the API server logged."""
    with live.repository() as repository:
        counts = repository.statistics()
    return {
        "recoveries": {str(state): count for state, count in counts.recoveries.items() if count},
        "drills": {str(result): count for result, count in counts.drills.items() if count},
        "causes": dict(Counter(CAUSE.findall(log_file(live.home, API_SERVER).read_text(errors="replace")))),
    }


def record(options: argparse.Namespace, tally: Tally, happened: dict[str, Any]) -> dict[str, Any]:
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    requests: dict[str, dict[str, int]] = {}
    for (name, status), count in sorted(tally.answers.items()):
        requests.setdefault(name, {})[str(status)] = count
    return {
        "version": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "command": f"make soak-clicks MINUTES={options.minutes:g} BYTES={options.bytes} SEED={options.seed}",
        "seed": options.seed,
        "python": platform.python_version(),
        "airflow": version("apache-airflow-core"),
        "cores": os.cpu_count(),
        "requests": requests,
        "answers": sum(tally.answers.values()),
        "server_errors": tally.bad,
        "slowest_s": {name: round(seconds, 1) for name, seconds in sorted(tally.slowest.items()) if seconds >= 1},
        **happened,
        "failures": tally.failures,
    }


def prepare(live: Live, options: argparse.Namespace, folder: Path) -> Stage:
    demo = shipped(live.home.root)
    demo.unpack()
    plan = {"spec": str(demo.spec), "checkpoints": str(demo.checkpoint.parent), "parallelism": 2}
    plans = {"drills": {"minutely": {**plan, "schedule": "* * * * *"}}}
    (live.home.root / "drills.yaml").write_text(yaml.safe_dump(plans))
    large = folder / "large" / "chk-1"
    size = ("--parallelism", "3", "--bytes", options.bytes, "--seed", str(options.seed))
    made = live.cdr("generate", str(large), "--spec", str(demo.spec), *size)
    if made.returncode != 0:
        raise SystemExit(f"The checkpoint could not be generated: {made.stderr}")
    return Stage(large, demo.spec, demo, folder / "out")


def main() -> int:
    parser = argparse.ArgumentParser(description="Click on a busy embedded Airflow and count the answers.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--bytes", default="1GB", help="payload of the checkpoint that is recovered meanwhile")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two clicks of a user, on average")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep what happened there, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cdr-soak-") as name:
        live = Live.make(Path(name))
        stage = prepare(live, options, Path(name))
        with live.guarded():
            up = live.command("up", "--port", "0")
            if up.returncode != 0:
                raise SystemExit(f"Airflow did not start: {up.stderr}")
            tally = soak(live, stage, options)
            told = record(options, tally, outcome(live))
    print(json.dumps(told, indent=2))
    if options.record is not None:
        options.record.write_text(json.dumps(told, indent=2) + "\n")
    verdict = f"{told['answers']} answers in {options.minutes:g} minutes, {tally.bad} server errors"
    print(f"soak-clicks: {verdict}", file=sys.stderr)
    return 1 if tally.bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
