"""The drill's and the sweep's DAGs as Airflow reads them: tasks, schedules, and what a bad plan costs."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cdr_airflow import drill_dags
from cdr_airflow.demo_checkpoint import shipped
from cdr_airflow.form import NO_EXAMPLE, recovery_params
from cdr_core.drill.plans import Plans

ROOT = Path(__file__).resolve().parents[2]

PARSE = """
import json, sys, time
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
import airflow.sdk.definitions.param, airflow.sdk.bases.operator, airflow.sdk.definitions.dag
bags, begun = [], time.process_time()
bags = [DagBag(file) for file in sys.argv[1:]]
took = time.process_time() - begun
heavy = "pyspark pyarrow numba numpy pandas boto3 cdr_core.metadata cdr_core.phases cdr_core.flink".split()
def about(dag):
    return {
        "tasks": {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks},
        "rules": {task.task_id: task.trigger_rule.value for task in dag.tasks},
        "pools": sorted({task.pool for task in dag.tasks}),
        "limits": sorted({str(task.execution_timeout) for task in dag.tasks}),
        "schedule": str(dag.schedule),
        "params": dag.params.dump(),
        "serialised": len(json.dumps(DagSerialization.serialize_dag(dag))),
    }
print(json.dumps({
    "took": took,
    "errors": {file.rpartition("/")[2]: text for bag in bags for file, text in bag.import_errors.items()},
    "heavy": [name for name in heavy if name in sys.modules],
    "dags": {name: about(dag) for bag in bags for name, dag in bag.dags.items()},
}))
"""

PLANS = """
drills:
  nightly: {spec: /specs/a.yaml, checkpoints: /c, schedule: "0 3 * * *", rto: 1h}
  eager: {spec: /specs/a.yaml, checkpoints: /c, schedule: {new_checkpoint: 5m}}
  wrong: {spec: /specs/a.yaml, checkpoints: /c, schedule: "61 3 * * *"}
  never: {spec: /specs/a.yaml, checkpoints: /c, schedule: "0 0 31 2 *"}
  lost: {spec: /specs/a.yaml}
"""

AWAY = "postgresql://nobody:nothing@127.0.0.1:9/none"
"""A metadata database that nobody answers for."""


def parse(home: Path, **settings: str) -> dict[str, Any]:
    """All files of drills and sweep, in a process of its own, as the DAG processor does."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "CDR_HOME": str(home)} | settings
    files = [str(ROOT / "dags" / name) for name in ("cdr_restore_drill.py", "cdr_drill_plans.py", "cdr_sweep.py")]
    done = subprocess.run(
        [sys.executable, "-c", PARSE, *files], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return parsed


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("home")
    shipped(home).unpack()
    return parse(home)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("home")
    shipped(home).unpack()
    (home / "drills.yaml").write_text(PLANS)
    return parse(home, CDR_DRILL_POOL="rehearsals", CDR_DATABASE_URL=AWAY)


SIX = {
    "read": ["filter"],
    "filter": ["spill"],
    "spill": ["drain"],
    "drain": ["commit"],
    "commit": ["verdict"],
    "verdict": [],
}


def test_a_drill_is_the_five_phases_and_a_verdict_that_runs_whatever_became_of_them(bare: dict[str, Any]) -> None:
    assert bare["errors"] == {}
    assert set(bare["dags"]) == {"cdr_restore_drill", "cdr_sweep"}
    drill = bare["dags"]["cdr_restore_drill"]
    assert drill["tasks"] == SIX
    assert drill["rules"]["verdict"] == "all_done"
    assert {rule for task, rule in drill["rules"].items() if task != "verdict"} == {"all_success"}
    assert drill["schedule"] == "None"
    assert drill["serialised"] > 0


def test_parsing_is_quick_imports_nothing_heavy_and_asks_no_database(planned: dict[str, Any]) -> None:
    assert planned["heavy"] == []
    assert planned["took"] < 1.0


def test_every_sound_plan_has_a_dag_with_its_schedule(planned: dict[str, Any]) -> None:
    dags = planned["dags"]
    assert set(dags) == {"cdr_restore_drill", "cdr_restore_drill__nightly", "cdr_restore_drill__eager", "cdr_sweep"}
    assert dags["cdr_restore_drill__nightly"]["schedule"] == "0 3 * * *"
    assert dags["cdr_restore_drill__eager"]["schedule"] == "0:05:00"
    assert dags["cdr_restore_drill__nightly"]["tasks"] == SIX
    assert dags["cdr_restore_drill__nightly"]["limits"] == ["4:00:00", "None"]
    assert dags["cdr_restore_drill__nightly"]["pools"] == ["rehearsals"]


def test_a_plan_that_cannot_be_used_is_named_and_costs_no_other_its_dag(planned: dict[str, Any]) -> None:
    assert set(planned["errors"]) == {"cdr_drill_plans.py"}
    said = planned["errors"]["cdr_drill_plans.py"]
    assert "drill plan wrong: schedule '61 3 * * *' is no cron expression" in said
    assert "drill plan never: schedule '0 0 31 2 *' is no cron expression, or one that is never due" in said
    assert "drill plan lost: checkpoints is missing" in said


@pytest.mark.parametrize("text", ["drills: [", "nonsense: 1", "drills: 7", "version: 9"])
def test_a_file_that_is_no_file_of_plans_is_one_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("CDR_HOME", str(tmp_path))
    (tmp_path / "drills.yaml").write_text(text)
    plans = drill_dags.read_plans()
    assert plans.plans == ()
    ((name, sentence),) = plans.refusals
    assert name == ""
    assert str(tmp_path / "drills.yaml") in sentence


def test_settings_that_do_not_load_are_a_refusal_and_no_failed_parse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_HOME", str(tmp_path))
    (tmp_path / "cdr.toml").write_text("no_such_setting = 1")
    plans = drill_dags.read_plans()
    assert "no_such_setting" in plans.refusals[0][1]
    assert drill_dags.manual_dag(plans, "").dag_id == "cdr_restore_drill"


def test_the_form_shows_the_example_only_where_no_plan_would_lose_against_it(
    bare: dict[str, Any], planned: dict[str, Any]
) -> None:
    assert bare["dags"]["cdr_restore_drill"]["params"]["checkpoints"].endswith("chk-2")
    assert planned["dags"]["cdr_restore_drill"]["params"]["checkpoints"] is None
    assert planned["dags"]["cdr_restore_drill"]["params"]["spec"] is None


def test_no_help_of_a_form_has_a_code_span() -> None:
    """Airflow's form draws the box of one over the lines around it; a block of code has its own place."""
    forms = [recovery_params(NO_EXAMPLE), drill_dags._params(Plans())]
    sweep = runpy.run_path(str(ROOT / "dags" / "cdr_sweep.py"))["dag"].params
    forms.append({name: sweep.get_param(name) for name in sweep})
    for params in forms:
        for name, param in params.items():
            text = str(param.schema["description_md"])
            assert "`" not in re.sub(r"```.*?```", "", text, flags=re.DOTALL), name


def test_the_form_offers_no_sql(bare: dict[str, Any]) -> None:
    fields = {"plan", "checkpoints", "spec", "choose", "parallelism", "rto", "max_age"}
    assert bare["dags"]["cdr_restore_drill"]["params"].keys() == fields


def test_the_sweep_looks_before_it_removes(bare: dict[str, Any]) -> None:
    sweep = bare["dags"]["cdr_sweep"]
    assert sweep["tasks"] == {"dry_run": ["sweep"], "sweep": []}
    assert sweep["schedule"] == "@daily"
    assert sweep["params"] == {"remove": False, "keep": None}
