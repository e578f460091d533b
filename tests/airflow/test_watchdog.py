"""A test process that is killed leaves no Airflow behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.airflow.live import wait_for
from tests.airflow.watchdog import processes_of

SESSION = """
import os, subprocess, sys, time
from pathlib import Path
from tests.airflow.watchdog import watched

DEAF = '''
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
'''
home = Path(sys.argv[1])
environment = os.environ | {"CDR_HOME": str(home)}
with watched(environment, home / "watchdog.log"):
    # As a service of Airflow: a session of its own, deaf to the polite signal, known to nobody by a file.
    service = subprocess.Popen(
        [sys.executable, "-c", DEAF], env=environment, start_new_session=True, stdout=subprocess.PIPE
    )
    service.stdout.readline()
    if sys.argv[2] == "hold":
        print("up", flush=True)
        time.sleep(600)
    service.kill()
    service.wait()
"""


def session(home: Path, verb: str) -> subprocess.Popen[bytes]:
    home.mkdir()
    command = [sys.executable, "-c", SESSION, str(home), verb]
    return subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.PIPE)


def test_a_killed_test_process_takes_its_airflow_with_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with session(home, "hold") as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"up\n"
        watchdog, service = sorted(processes_of(str(home)), key=psutil.Process.create_time)
        os.kill(killed.pid, signal.SIGKILL)
    wait_for("the service's end", lambda: not service.is_running(), 60)
    wait_for("the watchdog's end", lambda: not watchdog.is_running(), 60)
    assert processes_of(str(home)) == []
    assert f"killing {service.pid}" in (home / "watchdog.log").read_text()


def test_the_watchdog_ends_with_what_it_watches(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with session(home, "end") as ended:
        assert ended.wait(60) == 0
    assert processes_of(str(home)) == []
