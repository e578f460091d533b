"""The drill's operators with cdr's own side behind them; only Airflow's task instance is a stand-in."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import pytest
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from sqlalchemy import update

from cdr_airflow import connections, drills, links, metrics, notify
from cdr_airflow.drill_operators import DrillPhaseOperator, VerdictOperator
from cdr_airflow.page import runs
from cdr_core import settings as settings_module
from cdr_core.errors import DatabaseUnavailable, Refused, SettingsRefused, StorageError, Unbalanced
from cdr_core.metadata import DrillArgs, DrillOutcome, Phase, Repository, Runner, upgrade
from cdr_core.metadata.models import DrillRow
from cdr_core.storage.local import host_id
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.inline import run as run_inline

PHASES = ("read", "filter", "spill", "drain", "commit")
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class FakeTask:
    """The little of a task instance that the operators use; tasks of one run share what they push."""

    dag_id, run_id, try_number = "cdr_restore_drill__nightly", "scheduled__1", 1

    def __init__(self, task_id: str, pushed: dict[tuple[str, str], Any]) -> None:
        self.task_id, self.pushed = task_id, pushed

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[self.task_id, key] = value

    def xcom_pull(self, task_ids: str, key: str) -> Any:
        return self.pushed.get((task_ids, key))


class Told:
    def __init__(self) -> None:
        self.metrics: list[tuple[Any, ...]] = []
        self.alerts: list[tuple[str, str, str]] = []


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()
    monkeypatch.setattr(metrics, "drill_ended", lambda *facts: told.metrics.append(facts))
    monkeypatch.setattr(
        notify, "drill_ended", lambda result, plan, text, **facts: told.alerts.append((result, plan, text))
    )
    return told


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    settings = settings_module.load()
    settings.home.mkdir(parents=True)
    upgrade(settings.database_url)
    with Repository.open(settings.database_url) as opened:
        yield opened


@pytest.fixture
def shipped(fixture_checkpoint: FixtureCheckpoints) -> FixtureCheckpoint:
    return fixture_checkpoint("a_p3_thr0", 2)


def write_plan(text: str) -> None:
    settings_module.load().drills.write_text(f"drills: {{nightly: {text}}}")


def execute(operator: Any, pushed: dict[tuple[str, str], Any]) -> Any:
    token = ExecutorSafeguard.tracker.set(operator)
    try:
        return operator.execute({"ti": FakeTask(operator.task_id, pushed)})
    finally:
        ExecutorSafeguard.tracker.reset(token)


def first(**request: str) -> DrillPhaseOperator:
    return DrillPhaseOperator(task_id="read", phase="read", request={"plan": "nightly", **request})


def verdict(**request: str) -> VerdictOperator:
    return VerdictOperator(task_id="verdict", request={"plan": "nightly", **request}, phases=PHASES)


def test_the_first_task_begins_the_drill_and_the_verdict_passes_it(
    repository: Repository, shipped: FixtureCheckpoint, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(f"{{spec: {shipped.spec}, checkpoints: {shipped.path}, parallelism: 2, rto: 1h}}")
    monkeypatch.setattr(DrillPhaseOperator, "driver_module", "stand_in")
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("STAND_IN", "ok")
    pushed: dict[tuple[str, str], Any] = {}
    execute(first(), pushed)
    drill = pushed["read", "drill"]
    recovery = pushed["read", "recovery"]
    assert repository.drill(drill).recovery_id == recovery
    for phase in Phase:
        run_inline(repository, recovery, phase, settings_module.load())
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    value = execute(verdict(), pushed)
    assert (value["drill"], value["result"], value["plan"]) == (drill, "PASSED", "nightly")
    assert told.metrics == [("PASSED", "nightly", value["rto_s"], value["rpo_s"])]
    assert told.alerts == []
    with pytest.raises(AirflowFailException, match="a result does not change"):
        execute(first(), pushed)
    assert repository.drill(drill).result is DrillOutcome.PASSED


def test_a_drill_that_hangs_in_a_phase_is_given_up_there(
    repository: Repository, shipped: FixtureCheckpoint, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(f"{{spec: {shipped.spec}, checkpoints: {shipped.path}, parallelism: 2, give_up: 2s}}")
    monkeypatch.setattr(DrillPhaseOperator, "driver_module", "stand_in")
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("STAND_IN", "sleep")  # for a minute, and then it would have succeeded
    pushed: dict[tuple[str, str], Any] = {}
    with pytest.raises(AirflowFailException, match="is given up"):
        execute(first(), pushed)
    assert json.loads(pushed["read", "failure"])["kind"] == "GIVEN_UP"
    with pytest.raises(AirflowFailException, match="TIMED_OUT"):
        execute(verdict(), pushed)


@pytest.mark.parametrize(("run_type", "removes"), [("scheduled", True), ("manual", False)])
def test_a_sweep_by_its_schedule_removes_and_one_by_hand_does_not(
    repository: Repository, run_type: str, removes: bool
) -> None:
    drill = repository.begin_drill("/c", DrillArgs(plan="nightly", host=host_id()))
    scratch = Path(settings_module.load().drill_scratch) / drill.id
    with repository._database.write() as session:
        args = msgspec.to_builtins(drill.args) | {"scratch": str(scratch)}
        session.execute(update(DrillRow).where(DrillRow.id == drill.id).values(args=args))
    repository.end_drill(drill.id, DrillOutcome.PASSED, checks=[], rto_s=1.0, rpo_s=1.0, error=None)
    scratch.mkdir(parents=True)
    operator = runpy.run_path(str(ROOT / "dags" / "cdr_sweep.py"))["remove"]
    dag_run = SimpleNamespace(run_type=run_type)
    operator.render_template_fields({"params": {"remove": False, "keep": None}, "dag_run": dag_run})
    with nullcontext() if removes else pytest.raises(AirflowSkipException, match="Nothing is removed"):
        execute(operator, {})
    assert scratch.exists() is not removes


def test_a_failed_task_tells_the_verdict_whom_to_blame(
    repository: Repository, shipped: FixtureCheckpoint, told: Told
) -> None:
    write_plan(f"{{spec: {shipped.spec}, checkpoints: {shipped.path}, parallelism: nobody=2}}")
    pushed: dict[tuple[str, str], Any] = {}
    with pytest.raises(AirflowFailException):
        execute(first(), pushed)
    assert '"kind": "CHECKPOINT"' in pushed["read", "failure"]
    with pytest.raises(AirflowFailException, match=r"FAILED: recovered: .*nobody"):
        execute(verdict(), pushed)
    ((result, plan, text),) = told.alerts
    assert (result, plan) == ("FAILED", "nightly")
    assert "cannot be recovered as planned" in text
    assert "cdr inspect" in text


@pytest.mark.parametrize("plan", ["{spec: /none.yaml, checkpoints: /none}", "{spec: /none.yaml}"])
def test_a_drill_that_could_not_begin_is_in_the_history_all_the_same(
    repository: Repository, told: Told, plan: str
) -> None:
    write_plan(plan)
    pushed: dict[tuple[str, str], Any] = {}
    with pytest.raises(AirflowFailException):
        execute(first(), pushed)
    with pytest.raises(AirflowFailException, match="COULD_NOT_RUN"):
        execute(verdict(), pushed)
    (drill,) = repository.drills(plan="nightly")
    assert drill.result is DrillOutcome.COULD_NOT_RUN
    assert told.metrics[0][0] == "COULD_NOT_RUN"


@pytest.mark.parametrize(
    "request_",
    [{"plan": ""}, {"plan": "unknown"}, {"rto": "soon"}, {"plan": "", "checkpoints": "/c", "spec": "exchanges: ["}],
    ids=["empty", "unknown plan", "wrong limit", "wrong spec"],
)
def test_a_malformed_request_fails_at_once_and_leaves_no_history(
    repository: Repository, told: Told, request_: dict[str, str]
) -> None:
    write_plan("{spec: /none.yaml, checkpoints: /none}")
    pushed: dict[tuple[str, str], Any] = {}
    with pytest.raises(AirflowFailException):
        execute(first(**request_), pushed)
    with pytest.raises(AirflowFailException):
        execute(verdict(**request_), pushed)
    assert repository.drills() == ()
    assert (told.metrics, told.alerts) == ([], [])


def test_a_drill_that_was_begun_gets_its_verdict_after_its_plan_is_gone(
    repository: Repository, shipped: FixtureCheckpoint, told: Told
) -> None:
    write_plan(f"{{spec: {shipped.spec}, checkpoints: {shipped.path}}}")
    drill = drills.record({"plan": "nightly"}, FakeTask.dag_id, FakeTask.run_id)
    settings_module.load().drills.unlink()
    assert drills.record({"plan": "nightly"}, FakeTask.dag_id, FakeTask.run_id) == drill


def test_without_a_new_checkpoint_everything_is_skipped_and_no_drill_exists(
    repository: Repository, shipped: FixtureCheckpoint, told: Told
) -> None:
    write_plan(f"{{spec: {shipped.spec}, checkpoints: {shipped.path}, schedule: {{new_checkpoint: 5m}}}}")
    modified = (shipped.path / "_metadata").stat().st_mtime
    seen = DrillArgs(plan="nightly", modified=_iso(modified))
    repository.begin_drill(str(shipped.path), seen)
    pushed: dict[tuple[str, str], Any] = {}
    with pytest.raises(AirflowSkipException):
        execute(first(only_newer="1"), pushed)
    with pytest.raises(AirflowSkipException):
        execute(verdict(only_newer="1"), pushed)
    assert len(repository.drills()) == 1
    assert told.metrics == []


def _iso(timestamp: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(timestamp, UTC).isoformat()


def test_a_spec_of_the_form_may_not_name_any_module_of_this_host(
    repository: Repository, shipped: FixtureCheckpoint
) -> None:
    spec = shipped.spec.read_text().replace("partitioner: hash", "partitioner: custom\n    owner: os:system")
    with pytest.raises(Refused, match="CDR_OWNER_MODULES"):
        drills.plan_of({"plan": "", "checkpoints": "/c", "spec": spec})


def test_a_drill_runs_on_its_share_whatever_the_connection_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDR_DRILL_CORES", "3")
    assert drills.share_environment({}) == {"CDR_SPARK_CORES": "3", "CDR_SPARK": "connect"}
    assert drills.share_environment({"CDR_SPARK": "local[8,4]"})["CDR_SPARK"] == "local[3,4]"


@pytest.mark.parametrize(
    ("error", "ended_as", "kind"),
    [
        (Refused("x"), "PlanRefused", "CHECKPOINT"),
        (Refused("x"), "SettingsRefused", "SURROUNDINGS"),
        (SettingsRefused("x"), "SettingsRefused", "SURROUNDINGS"),
        (StorageError("x"), "StorageError", "SURROUNDINGS"),
        (Refused("x"), "PhaseRefused", "SURROUNDINGS"),
        (Unbalanced("x"), "done", "BALANCE"),
    ],
)
def test_a_driver_that_was_refused_for_another_reason_blames_no_checkpoint(
    repository: Repository, error: Any, ended_as: str, kind: str
) -> None:
    repository.begin_drill("/c", DrillArgs(modified="2026-01-01T00:00:00+00:00"), drills.drill_id("dag", "run"))
    assert f'"kind": "{kind}"' in drills.failure(error, ended_as, "dag", "run")


def test_a_database_that_is_away_is_told_to_the_verdict_without_asking_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDR_DATABASE_URL", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    said = drills.failure(DatabaseUnavailable("it is away"), "DatabaseUnavailable", "dag", "run")
    assert json.loads(said) == {"kind": "SURROUNDINGS", "sentence": "it is away."}


def test_a_fault_of_any_kind_is_told_to_the_verdict(
    repository: Repository, shipped: FixtureCheckpoint, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(f"{{spec: {shipped.spec}, checkpoints: {shipped.path}, parallelism: 2}}")
    known: dict[str, str] = {}
    monkeypatch.setattr(drills, "begin", lambda *asked: known["no such thing"])
    pushed: dict[tuple[str, str], Any] = {}
    with pytest.raises(KeyError):
        execute(first(), pushed)
    assert json.loads(pushed["read", "failure"])["sentence"] == "KeyError: 'no such thing'."
    with pytest.raises(AirflowFailException, match="COULD_NOT_RUN: recovered: KeyError: 'no such thing'"):
        execute(verdict(), pushed)


def test_without_its_connection_a_drill_still_gets_its_row_and_verdict(
    repository: Repository, shipped: FixtureCheckpoint, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(f"{{spec: {shipped.spec}, checkpoints: {shipped.path}, parallelism: 2}}")
    monkeypatch.setattr(connections, "environment", _deleted)
    pushed: dict[tuple[str, str], Any] = {}
    with pytest.raises(AirflowFailException, match="no connection 'lake'"):
        execute(first(), pushed)
    with pytest.raises(AirflowFailException, match="COULD_NOT_RUN: recovered: Airflow has no connection 'lake'"):
        execute(verdict(), pushed)
    (drill,) = repository.drills(plan="nightly")
    assert drill.result is DrillOutcome.COULD_NOT_RUN
    assert [alert[0] for alert in told.alerts] == ["COULD_NOT_RUN"]


def _deleted(spark_conn: str, aws_conn: str) -> NoReturn:
    raise Refused("Airflow has no connection 'lake'")


def test_the_verdict_hides_what_its_connection_brings(
    repository: Repository, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*asked: object) -> NoReturn:
        raise StorageError("key hunter2-of-the-lake is wrong")

    monkeypatch.setattr(connections, "environment", lambda *ids: {"AWS_SECRET_ACCESS_KEY": "hunter2-of-the-lake"})
    monkeypatch.setattr(drills, "record", refuse)
    with pytest.raises(AirflowException) as raised:
        execute(verdict(), {})
    assert str(raised.value) == "key *** is wrong."


def test_a_link_that_cannot_be_published_fails_no_try(
    repository: Repository, shipped: FixtureCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*asked: object) -> NoReturn:
        raise RuntimeError("no XCom today")

    write_plan(f"{{spec: {shipped.spec}, checkpoints: {shipped.path}, parallelism: 2}}")
    monkeypatch.setattr(DrillPhaseOperator, "driver_module", "stand_in")
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("STAND_IN", "ok")
    monkeypatch.setattr(links, "publish", away)
    pushed: dict[tuple[str, str], Any] = {}
    execute(first(), pushed)
    assert ("read", "failure") not in pushed


def test_runs_of_two_plans_with_the_same_id_lead_to_their_own_recoveries(
    repository: Repository, shipped: FixtureCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_named_by_task", lambda dag_id, run_id: None)
    text = f"{{spec: {shipped.spec}, checkpoints: {shipped.path}, parallelism: 2}}"
    settings_module.load().drills.write_text(f"drills: {{nightly: {text}, other: {text}}}")
    own = {}
    for plan in ("nightly", "other"):
        dag = f"cdr_restore_drill__{plan}"
        own[plan] = drills.begin({"plan": plan}, dag, "scheduled__1")
        repository.begin_attempt(own[plan] or "", Phase.READ, Runner("scheduled__1", "read", 1, "host", 1))
    assert own["nightly"] != own["other"]
    for plan, recovery in own.items():
        assert runs.recovery_of_run(repository, f"cdr_restore_drill__{plan}", "scheduled__1") == recovery
    assert runs.recovery_of_run(repository, "cdr_restore_drill__third", "scheduled__1") is None
    assert runs.recovery_of_run(repository, "cdr_recover", "scheduled__1") in own.values()


def test_secrets_do_not_reach_the_verdict(repository: Repository) -> None:
    said = drills.failure(
        StorageError("key hunter2 is wrong"), "x", "dag", "run", lambda text: text.replace("hunter2", "*")
    )
    assert "hunter2" not in said
