"""The embedded Airflow's home, and its processes as far as they can be shown without Airflow."""

from __future__ import annotations

import configparser
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdr_airflow.demo_checkpoint import shipped
from cdr_airflow.embedded import config, demo, instance, rest, services, setup
from cdr_airflow.embedded.__main__ import main
from cdr_airflow.embedded.console import Console
from cdr_airflow.embedded.home import Home, keep_password, keep_secrets
from cdr_airflow.embedded.overhead import Overhead, of_run, phase_seconds
from cdr_airflow.embedded.progress_board import TASKS, Board
from cdr_core.errors import Refused
from cdr_core.spark import processes

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) > 1:
    subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_secrets_and_password_are_kept_and_private(home: Home) -> None:
    secrets = keep_secrets(home)
    password, is_new = keep_password(home)
    assert is_new
    assert keep_secrets(home) == secrets
    assert keep_password(home) == (password, False)
    assert len(password) >= 12
    for file in (home.secrets, home.passwords):
        assert file.stat().st_mode & 0o077 == 0


def test_the_configuration_is_for_this_host_with_a_password(tmp_path: Path) -> None:
    home = Home(tmp_path / "100%")
    text = config.render(config.sections(home, 8123, keep_secrets(home)))
    parsed = configparser.ConfigParser()
    parsed.read_string(text)
    assert parsed["api"]["host"] == "127.0.0.1"
    assert parsed["database"]["sql_alchemy_conn"] == f"sqlite:///{tmp_path}/100%/airflow/airflow.db"
    assert "simple_auth_manager_all_admins" not in text
    assert parsed["core"]["dags_are_paused_at_creation"] == "False"


def test_another_airflow_of_the_user_is_not_mixed_in(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW_HOME", "/elsewhere")
    environment = home.environment()
    assert "AIRFLOW__CORE__EXECUTOR" not in environment
    assert environment["AIRFLOW_HOME"] == str(home.airflow)


def test_compiled_code_is_kept_even_where_the_tree_is_to_stay_clean(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    environment = home.environment()
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert environment["PYTHONPYCACHEPREFIX"].startswith(str(home.root))


def test_two_commands_at_once_are_refused_with_a_sentence(home: Home) -> None:
    script = (
        "import sys; from pathlib import Path; from cdr_airflow.embedded import setup, home\n"
        "with setup.locked(home.Home(Path(sys.argv[1])), 'make demo'): print('up', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(home.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(Refused, match="make demo is running"), setup.locked(home, "make up"):
            pass
    with setup.locked(home, "make up"):
        pass


def test_stopping_leaves_nothing_of_a_service_that_ignores_the_signal(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(services.STOP_SECONDS, services.SCHEDULER, 0.5)
    command = [sys.executable, "-c", STUBBORN, STUBBORN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == [b"up\n", b"up\n"]
        service = services.Service(services.SCHEDULER, process.pid, processes.start_time(process.pid) or "")
        home.run.mkdir(parents=True)
        (home.run / "scheduler.json").write_text(json.dumps(asdict(service)))
        assert len(services.running(home)[0].members) == 2
        begun = time.monotonic()
        assert services.stop(home) == 2
        assert time.monotonic() - begun < 5
        assert service.members == []
    assert services.known(home) == []


def test_a_later_process_with_the_same_id_is_not_touched(home: Home) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as process:
        home.run.mkdir(parents=True)
        stale = services.Service(services.TRIGGERER, process.pid, "an earlier start")
        (home.run / "triggerer.json").write_text(json.dumps(asdict(stale)))
        assert services.stop(home) == 0
        assert process.poll() is None


def test_a_taken_port_is_refused_when_wished_and_avoided_otherwise() -> None:
    with socket.socket() as taken:
        taken.bind((config.LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match=f"port {port} is taken"):
            setup.choose_port(port)
        assert setup.choose_port(None) != port


def test_the_shipped_checkpoint_is_unpacked_once_and_each_demo_has_its_own_output(tmp_path: Path) -> None:
    demo = shipped(tmp_path)
    assert not demo.is_unpacked
    demo.unpack()
    stamp = (demo.checkpoint / "_metadata").stat().st_mtime_ns
    demo.unpack()
    assert (demo.checkpoint / "_metadata").stat().st_mtime_ns == stamp
    first = demo.next_output()
    first.mkdir()
    assert demo.next_output() != first


def test_the_board_follows_a_run_and_keeps_what_went_wrong() -> None:
    board = Board(Console())
    events = [
        {"task": "read", "state": "running"},
        {"task": "read", "line": "1 of 2 units"},
        {"task": "read", "state": "up_for_retry", "line": "the disk is full"},
        {"task": "read", "state": "running"},
        {"task": "read", "state": "success"},
        {"run": "manual__1", "state": "failed"},
    ]
    assert board.follow(events) == "failed"
    assert board.errors == ["read: the disk is full"]
    assert board.rows["read"].state == "success"


def test_what_is_not_a_phase_is_airflows_own() -> None:
    cost = Overhead.of({"read": 12.0, "filter": 5.0}, {"read": 9.5, "filter": 4.0}, whole=18.5)
    assert (cost.within, cost.between, cost.seconds) == (3.5, 1.5, 5.0)
    assert str(cost) == "5.0 s beyond the phases: 3.5 s in the tasks, 1.5 s between them"


def test_the_overhead_of_a_run_is_taken_from_airflows_own_times() -> None:
    def row(task: str, start: int, end: int) -> dict[str, Any]:
        return {
            "task_id": task,
            "start_date": f"2026-05-04T03:02:{start:02}Z",
            "end_date": f"2026-05-04T03:02:{end:02}Z",
        }

    rows = {"read": row("read", 1, 11), "filter": row("filter", 13, 20), "late": row("late", 0, 0) | {"end_date": None}}
    client = SimpleNamespace(tasks=lambda run: rows)
    begun = datetime(2026, 5, 4, tzinfo=UTC)
    phases = [
        SimpleNamespace(name="read", started_at=begun, ended_at=begun + timedelta(seconds=8)),
        SimpleNamespace(name="filter", started_at=begun, ended_at=begun + timedelta(seconds=6)),
        SimpleNamespace(name="commit", started_at=begun, ended_at=None),
    ]
    cost = of_run(client, "manual__1", phase_seconds(phases))  # type: ignore[arg-type] # the little of them it uses
    assert (cost.within, cost.between) == (3.0, 2.0)


def test_the_demo_on_a_running_instance_takes_the_times_of_airflow(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks now and then; Airflow knows when each task began and ended."""
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    rows = {
        task: {
            "task_id": task,
            "state": "success",
            "start_date": begun.isoformat(),
            "end_date": begun + timedelta(seconds=9),
        }
        for task in TASKS
    }
    client = SimpleNamespace(trigger=lambda conf: "manual__1", run_state=lambda run: "success", tasks=lambda run: rows)
    monkeypatch.setattr(instance, "address", lambda home: "http://localhost:1")
    monkeypatch.setattr(rest.Client, "login", lambda *_: client)
    costs: list[Overhead] = []
    monkeypatch.setattr(demo, "_summarise", lambda *_: costs.append(_[-1]({"read": 5.0, "drain": 9.0})))
    demo.demo(home, Console())
    assert costs == [Overhead(4.0 + 3 * 9.0, 0.0)]


def test_a_command_line_that_cannot_be_understood_has_its_own_exit_code() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sideways"])
    assert ended.value.code == 64


def test_broken_settings_are_one_sentence_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CDR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CDR_PAGE_SIZE", "1KiB")
    assert main(["up"]) == 3
    assert "CDR_PAGE_SIZE" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


def test_down_and_status_where_nothing_ever_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CDR_HOME", str(tmp_path))
    assert main(["status"]) == 0
    assert main(["down"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out.splitlines()[0])["url"] is None
    assert "Nothing was running." in out
