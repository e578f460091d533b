"""The demo: the shipped checkpoint through the real DAG, three subtasks to two, shown on the terminal."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cdr_airflow.demo_checkpoint import PARALLELISM, shipped
from cdr_airflow.die_with_parent import tethered
from cdr_airflow.embedded import instance, rest, setup
from cdr_airflow.embedded.console import Console
from cdr_airflow.embedded.home import USER, Home, keep_password
from cdr_airflow.embedded.overhead import Overhead, of_run, phase_seconds
from cdr_airflow.embedded.progress_board import Board
from cdr_core import settings
from cdr_core.errors import JobFailed

Cost = Callable[[Mapping[str, float]], Overhead]
"""Returns Airflow's overhead of a run, given the seconds of its phases."""

POLL_SECONDS = 0.5

STOP_SECONDS = 6.0
"""Seconds that a task gets to stop its driver and its Spark job when the demo is interrupted."""


def demo(home: Home, console: Console) -> None:
    """Recover the shipped checkpoint to a fresh folder and print the outcome; :class:`JobFailed` if it failed.

    A running instance is asked to run the DAG. Otherwise Airflow runs it in a process of its own without its services,
    which saves starting them.
    """
    if url := instance.address(home):
        conf, client = _conf(home), rest.Client.login(url, USER, keep_password(home)[0])
        run = client.trigger(conf)
        # Task states are polled; the duration of each comes from Airflow.
        _show(home, console, conf, _through_services(client, run), lambda phases: of_run(client, run, phases))
        return
    with setup.locked(home, "make demo"):
        setup.prepare_airflow(home, setup.choose_port(None), console)
        with _loading_airflow(home) as process:
            setup.prepare_cdr(home, console)
            conf = _conf(home)
            _show(home, console, conf, _in_process(process, conf))


def _conf(home: Home) -> dict[str, str]:
    demo = shipped(home.root)
    demo.unpack()
    output = demo.next_output()
    return {
        "checkpoint": str(demo.checkpoint),
        "spec": str(demo.spec),
        "parallelism": PARALLELISM,
        "to": f"parquet:{output}",
    }


def _show(
    home: Home, console: Console, conf: dict[str, str], events: Iterator[dict[str, Any]], cost: Cost | None = None
) -> None:
    console.note(f"Recovering {conf['checkpoint']} through the Airflow DAG {rest.DAG}, 3 → 2 subtasks")
    board = Board(console)
    begun = time.monotonic()
    state = board.follow(events)
    if state != "success":
        reason = board.errors[-1] if board.errors else "the run ended without a message"
        raise JobFailed(f"the demo did not succeed: {reason}", hint=f"the logs are in {home.logs}")
    seconds = {task: row.elapsed for task, row in board.rows.items()}
    whole = time.monotonic() - begun
    _summarise(console, conf, seconds, whole, cost or (lambda phases: Overhead.of(seconds, phases, whole)))


@contextmanager
def _loading_airflow(home: Home) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that loads Airflow and waits for the run's conf; ended with the block."""
    home.logs.mkdir(parents=True, exist_ok=True)
    with (home.logs / "demo.log").open("wb") as log:
        process = subprocess.Popen(
            tethered([sys.executable, "-m", "cdr_airflow.embedded.in_process"]),
            env=home.environment(),
            cwd=home.airflow,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # Not the terminal's group: Ctrl-C reaches this process, which stops the task inside in order.
            start_new_session=True,
        )
    with process:
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _in_process(process: subprocess.Popen[bytes], conf: dict[str, str]) -> Iterator[dict[str, Any]]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(conf).encode() + b"\n")
    process.stdin.close()
    for line in process.stdout:
        event = json.loads(line)
        yield event
        if "run" in event:
            return  # the last event; the process need not be waited for


def _through_services(client: rest.Client, run: str) -> Iterator[dict[str, Any]]:
    while True:
        state = client.run_state(run)
        for task, row in client.tasks(run).items():
            if row["state"]:
                yield {"task": task, "state": row["state"]}
        if state in {"success", "failed"}:
            yield {"run": run, "state": state}
            return
        time.sleep(POLL_SECONDS)


def _summarise(console: Console, conf: dict[str, str], seconds: dict[str, float], whole: float, cost: Cost) -> None:
    from cdr_core.metadata import Repository

    with Repository.open(settings.load().database_url) as repository:
        # The output is a folder of its own, so no other recovery has this target.
        recovery = next(row for row in repository.recoveries() if row.target == conf["to"])
        receipt = repository.receipt(recovery.id)
        beyond = cost(phase_seconds(repository.phases(recovery.id)))
    if receipt is None:
        raise JobFailed(f"recovery {recovery.id} is done but has no receipt")
    records, size = receipt["records"], receipt["bytes"]
    console.say("")
    console.say(f"Receipt   {receipt['verdict']}: {records['source']:,} records in, {records['published']:,} out")
    console.say(
        f"          {size['source']:,} bytes in, {size['published']:,} out; proof {receipt['proof_sha256'][:16]}…"
    )
    console.say(f"          all of it: cdr receipt {recovery.id}")
    console.say(
        f"Seconds   {', '.join(f'{name} {value:.1f}' for name, value in (seconds | {'in all': whole}).items())}"
    )
    console.say(f"Airflow   {beyond}")
    console.say(f"Output    {conf['to'].removeprefix('parquet:')}")
    console.say("See it    make up   (this run is there, with its logs)")
