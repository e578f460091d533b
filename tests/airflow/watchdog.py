"""Ends an embedded Airflow whose test process is gone, however that went.

``python -m tests.airflow.watchdog PID`` waits for the end of process PID and then leaves nothing alive that belongs to
``CDR_HOME``, which must be a home that this very test process made. A pytest that is killed runs no clean-up of its
own, and the services lead sessions of their own, so nobody else would.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

DOWN_SECONDS = 60.0
SWEEP_SECONDS = 10.0
"""For what ``down`` cannot know, such as a service that was started but not yet written down."""


@contextmanager
def watched(environment: dict[str, str], log: Path) -> Iterator[None]:
    """Inside the block the home of ``environment`` lives no longer than this process."""
    command = [sys.executable, "-m", "tests.airflow.watchdog", str(os.getpid())]
    with log.open("wb") as output:
        # A session of its own: the signal that ends the tests' group must not end the one who cleans up after them.
        watchdog = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        watchdog.kill()
        watchdog.wait()


def processes_of(home: str) -> list[psutil.Process]:
    """Every living process whose ``CDR_HOME`` is this one, without the asking one."""
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _home_of(process) == home]


def _home_of(process: psutil.Process) -> str | None:
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else process.environ().get("CDR_HOME")
    except psutil.Error:
        return None


def clean_up(home: str) -> None:
    """Stop the instance in its own order, then whatever else is left of it."""
    down = [sys.executable, "-m", "cdr_airflow.embedded", "down"]
    try:
        subprocess.run(down, stdin=subprocess.DEVNULL, check=False, timeout=DOWN_SECONDS)
    except subprocess.TimeoutExpired:
        print("down took too long; the rest is killed", flush=True)
    deadline = time.monotonic() + SWEEP_SECONDS
    while (left := processes_of(home)) and time.monotonic() < deadline:
        for process in left:
            print(f"killing {process.pid}", flush=True)
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(left, timeout=1)


def wait_for_the_end_of(pid: int) -> None:
    """Not ``Process.wait``: a killed process that its parent has not yet asked for would seem alive to it."""
    try:
        process = psutil.Process(pid)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.2)
    except psutil.NoSuchProcess:
        return


def main() -> int:
    wait_for_the_end_of(int(sys.argv[1]))
    clean_up(os.environ["CDR_HOME"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
