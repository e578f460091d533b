"""The phase operator against a stand-in driver: what becomes of exit codes, lines, kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from structlog.testing import capture_logs

from cdr_airflow import metrics, recoveries
from cdr_airflow.die_with_parent import tethered
from cdr_airflow.operator import PhaseOperator
from cdr_core.errors import CdrError, DatabaseUnavailable, Fenced, SpecRefused

HERE = Path(__file__).resolve().parent
TERMINAL = {
    2: "a ledger differs",
    3: "the plan is refused",
    4: "a newer attempt",
    5: "bytes do not frame",
    6: "partial",
}


class FakeTask:
    """The little of a task instance that the operator uses."""

    run_id, try_number = "manual__1", 2

    def __init__(self, task_id: str, pulled: str | None = None) -> None:
        self.task_id = task_id
        self.pulled = pulled
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    def xcom_pull(self, task_ids: str, key: str) -> str | None:
        assert (task_ids, key) == ("read", "recovery")
        return self.pulled


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """cdr's own side, replaced: recovery ``r1`` exists, every phase may begin with epoch 7; asks are noted."""
    notes: list[Any] = []

    def note(answer: Any, *ask: Any) -> Any:
        notes.append(ask[0] if len(ask) == 1 else ask)
        return answer

    monkeypatch.setattr(recoveries, "checked_spec", lambda request: request)
    monkeypatch.setattr(recoveries, "what_if", lambda request: ([], None))
    monkeypatch.setattr(recoveries, "spark_ui", lambda recovery, epoch: "")
    monkeypatch.setattr(recoveries, "create", partial(note, "r1"))
    monkeypatch.setattr(recoveries, "begin", partial(note, recoveries.Begun(7)))
    monkeypatch.setattr(recoveries, "start_interrupt", partial(note, None, "interrupt"))
    monkeypatch.setattr(PhaseOperator, "driver_module", "stand_in")
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("STAND_IN", "ok")
    return notes


def run(operator: PhaseOperator, task: FakeTask) -> Any:
    """Execute as the task runner does, which alone may."""
    token = ExecutorSafeguard.tracker.set(operator)
    try:
        return operator.execute({"ti": task})  # type: ignore[typeddict-item]
    finally:
        ExecutorSafeguard.tracker.reset(token)


def spill() -> tuple[PhaseOperator, FakeTask]:
    return PhaseOperator(task_id="spill", phase="spill"), FakeTask("spill", "r1")


def wait_for(condition: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_the_first_task_creates_the_recovery_and_names_it_to_the_others(asked: list[Any]) -> None:
    operator = PhaseOperator(task_id="read", phase="read", request={"checkpoint": "/c", "to": "none:"})
    task = FakeTask("read")
    result = run(operator, task)
    assert asked[0] == {"checkpoint": "/c", "to": "none:"}
    assert asked[1] == ("r1", "read", recoveries.TaskTry("manual__1", "read", 2))
    assert task.pushed["recovery"] == "r1"
    assert result["arguments"] == ["read", "--recovery", "r1", "--epoch", "7"]


def test_the_first_task_says_the_plan_first_and_refuses_before_anything_exists(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recoveries, "what_if", lambda _: (["in flight: 295 KiB"], SpecRefused("it does not fit")))
    monkeypatch.setattr("cdr_airflow.operator.Driver.start", lambda *_: pytest.fail("a driver was started"))
    with capture_logs() as lines, pytest.raises(AirflowFailException, match="it does not fit"):
        run(PhaseOperator(task_id="read", phase="read", request={}), FakeTask("read"))
    assert "in flight: 295 KiB" in {line["event"] for line in lines}
    assert asked == []


def test_the_spark_ui_is_linked_while_the_driver_works(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "exit:1:spill: 1/2 units, 7 records")
    monkeypatch.setattr(recoveries, "spark_ui", lambda recovery, epoch: f"http://localhost:4040/{epoch}")
    operator, task = spill()
    with pytest.raises(AirflowException):
        run(operator, task)
    assert task.pushed["_link_SparkLink"] == "http://localhost:4040/7"


def test_the_ui_of_an_older_attempts_driver_is_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster each attempt has a driver of its own; the embedded server is everybody's."""
    servers: dict[str, Any] = {
        "embedded": {"ui": "http://localhost:1", "directory": "/d"},
        "cluster": {"ui": "http://driver:2", "epoch": 7},
        "none": None,
    }
    monkeypatch.setattr("cdr_core.metadata.Repository.open", lambda _: nullcontext(SimpleNamespace(recovery=server_of)))

    def server_of(recovery: str) -> Any:
        return SimpleNamespace(server=servers[recovery])

    assert recoveries.spark_ui("embedded", 8) == "http://localhost:1"
    assert recoveries.spark_ui("cluster", 7) == "http://driver:2"
    assert recoveries.spark_ui("cluster", 8) == recoveries.spark_ui("none", 8) == ""
    assert recoveries.start_interrupt("cluster") is None, "its job ends with its driver"


def test_a_driver_on_a_cluster_says_where_its_ui_is() -> None:
    from cdr_core.runtime.executor_backend import driver_ui

    session = SimpleNamespace(sparkContext=SimpleNamespace(uiWebUrl="http://driver:4041"))
    assert driver_ui(session, 3) == {"ui": "http://driver:4041", "epoch": 3}
    session.sparkContext.uiWebUrl = None
    assert driver_ui(session, 3) is None


@pytest.mark.parametrize(
    ("stand_in", "outcome"),
    [("ok", "done"), ("exit:5:bytes do not frame", "Corrupt"), ("exit:1:disk full", "CdrError")],
)
def test_a_task_tells_how_its_phase_ended(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, stand_in: str, outcome: str
) -> None:
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(metrics, "phase_ended", lambda phase, how, *_, **__: told.append((phase, how)))
    monkeypatch.setenv("STAND_IN", stand_in)
    with suppress(AirflowException):
        run(*spill())
    assert told == [("spill", outcome)]


def test_the_epoch_is_taken_before_the_driver_exists(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise Fenced("try 1 is older than try 2")

    monkeypatch.setattr(recoveries, "begin", refuse)
    monkeypatch.setattr("cdr_airflow.operator.Driver.start", lambda *_: pytest.fail("a driver was started"))
    with pytest.raises(AirflowFailException, match="older than try 2"):
        run(*spill())


def test_a_done_phase_takes_no_epoch_and_returns_its_stored_result(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recoveries, "begin", lambda *_: recoveries.AlreadyDone({"records": 1878}))
    monkeypatch.setattr("cdr_airflow.operator.Driver.start", lambda *_: pytest.fail("a driver was started"))
    assert run(*spill()) == {"records": 1878}


def test_without_a_named_recovery_a_task_refuses_with_a_sentence(asked: list[Any]) -> None:
    with pytest.raises(AirflowFailException, match="has not named a recovery"):
        run(PhaseOperator(task_id="spill", phase="spill"), FakeTask("spill", None))


@pytest.mark.parametrize(("code", "sentence"), TERMINAL.items())
def test_what_a_retry_cannot_help_fails_at_once(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, code: int, sentence: str
) -> None:
    monkeypatch.setenv("STAND_IN", f"exit:{code}:{sentence}")
    with pytest.raises(AirflowFailException, match=sentence):
        run(*spill())


def test_a_usage_error_is_never_retried(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "exit:64:no such phase")
    with pytest.raises(AirflowFailException, match="no such phase"):
        run(*spill())


def test_what_a_retry_may_help_is_retried(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "exit:1:the disk is full")
    with pytest.raises(AirflowException, match="the disk is full") as caught:
        run(*spill())
    assert not isinstance(caught.value, AirflowFailException)


@pytest.mark.parametrize(("error", "kind"), [(SpecRefused, AirflowFailException), (DatabaseUnavailable, Exception)])
def test_refusals_before_the_driver_are_mapped_alike(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, error: type[CdrError], kind: type[Exception]
) -> None:
    def refuse(_: Any) -> None:
        raise error("it is so")

    monkeypatch.setattr(recoveries, "create", refuse)
    with pytest.raises(kind, match="it is so") as caught:
        run(PhaseOperator(task_id="read", phase="read", request={}), FakeTask("read"))
    assert isinstance(caught.value, AirflowFailException) == (not error.retry_helps)


def test_every_line_of_the_driver_is_in_the_task_log(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    operator, task = spill()
    with capture_logs() as lines:
        run(operator, task)
    said = [line for line in lines if line.get("recovery") == "r1"]
    assert {"phase spill begins", "1 of 2 units"} <= {line["event"] for line in said}
    assert {(line["phase"], line["epoch"]) for line in said} == {("spill", 7)}


def test_the_driver_does_not_see_the_secrets_of_airflow(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "secret")
    monkeypatch.setenv("AIRFLOW_CONN_ELSEWHERE", "postgres://user:secret@host/db")
    assert run(*spill())["airflow"] == []


def test_a_task_ends_with_its_driver_even_if_a_grandchild_holds_the_pipes(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STAND_IN", "litter")
    monkeypatch.setenv("STAND_IN_PIDS", str(tmp_path / "pids"))
    begun = time.monotonic()
    run(*spill())
    assert time.monotonic() - begun < 10
    assert not any(alive(int(pid)) for pid in (tmp_path / "pids").read_text().split())


@pytest.mark.parametrize(("driver", "limit"), [("sleep", 2.0), ("stubborn", 4.5)])
def test_on_kill_interrupts_spark_and_leaves_nothing_alive(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: str, limit: float
) -> None:
    monkeypatch.setenv("STAND_IN", driver)
    monkeypatch.setenv("STAND_IN_PIDS", str(tmp_path / "pids"))
    operator, task = spill()
    took: list[float] = []

    def kill() -> None:
        wait_for((tmp_path / "pids").exists, 20)
        begun = time.monotonic()
        operator.on_kill()
        took.append(time.monotonic() - begun)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(AirflowException, match="stopped from outside"):
        run(operator, task)
    killer.join()
    assert ("interrupt", "r1") in asked
    assert took[0] < limit, "Airflow kills the task after five seconds"
    assert not any(alive(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_a_task_stopped_before_its_driver_starts_none(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    operator, task = spill()

    def begin_and_be_killed(*_: Any) -> recoveries.Begun:
        operator.on_kill()
        return recoveries.Begun(7)

    monkeypatch.setattr(recoveries, "begin", begin_and_be_killed)
    monkeypatch.setattr("cdr_airflow.operator.Driver.start", lambda *_: pytest.fail("a driver was started"))
    with pytest.raises(AirflowException, match="stopped from outside"):
        run(operator, task)


TASK = """
import os, sys
from cdr_airflow.driver import Driver
work = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
driver = Driver.start([sys.executable, "-c", work], os.environ)
driver.follow(lambda line: print(line, flush=True))
"""


def test_a_driver_dies_with_a_task_that_is_killed() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    task = subprocess.Popen([sys.executable, "-c", TASK], stdout=subprocess.PIPE, env=environment)
    assert task.stdout is not None
    driver = int(task.stdout.readline())  # said by the driver itself: it is past being tied
    assert alive(driver)
    task.send_signal(signal.SIGKILL)
    task.wait()
    task.stdout.close()
    wait_for(lambda: not alive(driver), 2)


def test_a_driver_whose_task_is_gone_before_it_is_tied_never_runs() -> None:
    command = tethered([sys.executable, "-c", "raise SystemExit(42)"])
    command[4] = "1"  # a parent that is not the caller: it died and init took over
    assert subprocess.run(command, check=False).returncode == 1
