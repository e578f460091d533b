"""Drills in a real Airflow: one that its schedule starts, one that fails, one that is late, one that cannot run.

``make test-airflow ARGS=tests/airflow/test_drill_live.py`` runs it. One instance for all; the drills wait for nothing
but the database's history, as a user's alert would.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from cdr_airflow.demo_checkpoint import shipped
from cdr_core.metadata import Drill, DrillOutcome
from tests.airflow.alerts import Alerts
from tests.airflow.live import Live, wait_for

pytestmark = [
    pytest.mark.timeout(2400),
    pytest.mark.soak,
]

QUERY = {"name": "all on two subtasks", "query": "SELECT count(DISTINCT new_down) = 2 FROM recovered", "expect": True}


@pytest.fixture(scope="module")
def alerts() -> Iterator[Alerts]:
    with Alerts.open() as opened:
        yield opened


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, alerts: Alerts) -> Iterator[Live]:
    instance = Live.make(tmp_path_factory.mktemp("drills"), CDR_NOTIFY_WEBHOOK=alerts.url)
    demo = shipped(instance.home.root)
    demo.unpack()
    broken = instance.home.root / "broken" / "chk-2"
    shutil.copytree(demo.checkpoint, broken)
    largest = max(broken.iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    least = {"spec": str(demo.spec), "checkpoints": str(demo.checkpoint.parent), "parallelism": 2}
    plans = {
        "minutely": {**least, "schedule": "* * * * *", "rto": "1h", "checks": {"sql": [QUERY]}},
        "late": {**least, "rto": "1ms"},
        "broken": {**least, "checkpoints": str(broken.parent)},
        "lost": {**least, "checkpoints": str(instance.home.root / "nowhere")},
        "eager": {**least, "schedule": {"new_checkpoint": "20s"}, "checks": {"rows": False}},
    }
    (instance.home.root / "drills.yaml").write_text(yaml.safe_dump({"drills": plans}))
    with instance.guarded():
        up = instance.command("up", "--port", "0")
        assert up.returncode == 0, up.stderr
        yield instance


def ended(live: Live, plan: str) -> Drill:
    """The plan's oldest drill that has its verdict."""

    def find() -> Drill | None:
        with live.repository() as repository:
            found = [drill for drill in repository.drills(plan=plan) if drill.result is not None]
        return found[-1] if found else None

    drill: Drill = wait_for(f"a verdict of {plan}", find, every=1.0)
    return drill


def pause(live: Live, dag: str) -> None:
    live.client.call("PATCH", f"dags/{dag}", {"is_paused": True})


def trigger(live: Live, dag: str, **conf: Any) -> str:
    run = live.client.call("POST", f"dags/{dag}/dagRuns", {"logical_date": None, "conf": conf})
    return str(run["dag_run_id"])


def states(live: Live, dag: str, run: str) -> dict[str, str]:
    rows = live.client.call("GET", f"dags/{dag}/dagRuns/{quote(run)}/taskInstances")["task_instances"]
    return {row["task_id"]: row["state"] for row in rows}


def wait_until_over(live: Live, dag: str, run: str) -> str:
    def final() -> str | None:
        state = str(live.client.call("GET", f"dags/{dag}/dagRuns/{quote(run)}")["state"])
        return state if state in {"success", "failed"} else None

    return str(wait_for("the run's end", final, every=1.0))


def scratch(live: Live) -> list[Path]:
    folder = live.home.root / "drills"
    return list(folder.iterdir()) if folder.is_dir() else []


def test_a_scheduled_drill_fires_by_itself_and_passes(live: Live) -> None:
    drill = ended(live, "minutely")
    pause(live, "cdr_restore_drill__minutely")
    assert drill.result is DrillOutcome.PASSED, drill.checks
    assert {check.name for check in drill.checks} >= {"rows", f"sql: {QUERY['name']}", "rto", "rpo"}
    assert "scheduled__" in drill.args.run
    assert drill.args.cores == max((os.cpu_count() or 1) // 2, 1)


def test_a_new_checkpoint_is_drilled_once_and_every_later_look_is_skipped(live: Live) -> None:
    drill = ended(live, "eager")
    assert drill.result is DrillOutcome.PASSED, drill.checks
    dag = "cdr_restore_drill__eager"

    def skipped() -> list[dict[str, Any]]:
        rows = live.client.call("GET", f"dags/{dag}/dagRuns?order_by=-run_after&limit=50")["dag_runs"]
        over = [row for row in rows if row["state"] in {"success", "failed"}]
        return [row for row in over if set(states(live, dag, row["dag_run_id"]).values()) == {"skipped"}]

    wait_for("a look that finds nothing new", skipped, every=2.0)
    pause(live, dag)
    with live.repository() as repository:
        assert len(repository.drills(plan="eager")) == 1


@pytest.mark.parametrize(
    ("plan", "result", "green"),
    [
        ("late", DrillOutcome.TIMED_OUT, {"read", "filter", "spill", "drain", "commit"}),
        ("broken", DrillOutcome.FAILED, set()),
        ("lost", DrillOutcome.COULD_NOT_RUN, set()),
    ],
)
def test_a_drill_that_does_not_pass_is_red_told_and_leaves_nothing(
    live: Live, alerts: Alerts, plan: str, result: DrillOutcome, green: set[str]
) -> None:
    run = trigger(live, "cdr_restore_drill", plan=plan)
    assert wait_until_over(live, "cdr_restore_drill", run) == "failed"
    drill = ended(live, plan)
    assert drill.result is result, drill.checks
    found = states(live, "cdr_restore_drill", run)
    assert {task for task, state in found.items() if state == "success"} == green
    assert found["verdict"] == "failed"
    (alert,) = [posted for posted in alerts.posted if posted.get("drill") == drill.id]
    assert (alert["result"], alert["plan"]) == (str(result), plan)
    assert drill.error is not None
    assert drill.error in alert["text"]
    assert drill.id not in {path.name for path in scratch(live)}


def test_the_page_and_the_metrics_say_what_the_notifier_said(live: Live) -> None:
    """After the drills above: each result is where a person and a monitoring system look for it."""
    shown = json.loads(live.page("api/v1/drills"))
    wanted = {"minutely": "PASSED", "late": "TIMED_OUT", "broken": "FAILED", "lost": "COULD_NOT_RUN"}
    assert {row["plan"]: row["last_result"] for row in shown["plans"]}.items() >= wanted.items()
    metrics = live.page("metrics").splitlines()
    for plan, result in wanted.items():
        (line,) = [x for x in metrics if x.startswith("cdr_drills{") and f'plan="{plan}"' in x and f'"{result}"' in x]
        assert float(line.rpartition(" ")[2]) >= 1


def test_what_the_form_brings_alone_is_a_drill_too(live: Live) -> None:
    demo = shipped(live.home.root)
    run = trigger(
        live, "cdr_restore_drill", checkpoints=str(demo.checkpoint), spec=demo.spec.read_text(), parallelism=2
    )
    assert wait_until_over(live, "cdr_restore_drill", run) == "success"
    with live.repository() as repository:
        (drill,) = [drill for drill in repository.drills() if drill.args.plan is None]
    assert drill.result is DrillOutcome.PASSED


def test_a_sweep_by_hand_lists_and_removes_only_when_told(live: Live) -> None:
    run = trigger(live, "cdr_sweep")
    assert wait_until_over(live, "cdr_sweep", run) == "success"
    assert states(live, "cdr_sweep", run) == {"dry_run": "success", "sweep": "skipped"}
    run = trigger(live, "cdr_sweep", remove=True, keep="0s")
    assert wait_until_over(live, "cdr_sweep", run) == "success"
    assert states(live, "cdr_sweep", run) == {"dry_run": "success", "sweep": "success"}
    assert scratch(live) == []
