"""The DAG ``cdr_recover`` as Airflow reads it: its tasks, its form, and what parsing it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError

from cdr_airflow import form
from cdr_airflow.demo_checkpoint import shipped

ROOT = Path(__file__).resolve().parents[2]

PARSE = """
import json, os, sys, time
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
import airflow.sdk.definitions.param, airflow.sdk.bases.operator, airflow.sdk.definitions.dag
heavy = "pyspark pyarrow numba numpy pandas boto3 cdr_core.metadata cdr_core.phases cdr_core.flink".split()
found = []
for more in json.loads(sys.argv[2]):
    os.environ.update(more)
    begun = time.process_time()
    bag = DagBag(sys.argv[1])
    took = time.process_time() - begun
    dag = bag.dags["cdr_recover"]
    found.append({
        "took": took,
        "errors": bag.import_errors,
        "heavy": [name for name in heavy if name in sys.modules],
        "tasks": {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks},
        "retries": {task.task_id: task.retries for task in dag.tasks},
        "params": dag.params.dump(),
        "serialised": len(json.dumps(DagSerialization.serialize_dag(dag))),
    })
print(json.dumps(found))
"""


def parse(*environments: dict[str, str]) -> list[dict[str, Any]]:
    """Read the DAG under one environment after the other, in a process of its own, as the DAG processor does."""
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(ROOT / "dags" / "cdr_recover.py"), json.dumps(environments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    parsed: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])  # Airflow prints of its own accord, too
    return parsed


DEFAULTS, DEMO, APPROVAL, UNKNOWN = "defaults", "with a demo", "approval wanted", "settings that do not load"


@pytest.fixture(scope="module")
def home_with_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("demo")
    shipped(home).unpack()
    return home


@pytest.fixture(scope="module")
def all_parsed(tmp_path_factory: pytest.TempPathFactory, home_with_demo: Path) -> dict[str, dict[str, Any]]:
    environments = {
        DEFAULTS: {"CDR_HOME": str(tmp_path_factory.mktemp("home"))},
        APPROVAL: {"CDR_APPROVAL": "true"},
        UNKNOWN: {"CDR_APPROVAL": "perhaps"},
        DEMO: {"CDR_HOME": str(home_with_demo), "CDR_APPROVAL": "false"},
    }
    return dict(zip(environments, parse(*environments.values()), strict=True))


@pytest.fixture(scope="module")
def parsed(all_parsed: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return all_parsed[DEFAULTS]


def test_the_dag_is_the_five_phases_in_order(parsed: dict[str, Any]) -> None:
    assert parsed["errors"] == {}
    assert parsed["tasks"] == {
        "read": ["filter"],
        "filter": ["spill"],
        "spill": ["drain"],
        "drain": ["commit"],
        "commit": [],
    }
    assert set(parsed["retries"].values()) == {3}
    assert parsed["serialised"] > 0


def test_parsing_is_quick_and_imports_nothing_heavy(parsed: dict[str, Any]) -> None:
    assert parsed["heavy"] == []
    assert parsed["took"] < 1.0


def test_without_a_demo_the_form_asks_for_everything(parsed: dict[str, Any]) -> None:
    assert parsed["params"]["checkpoint"] is None
    assert parsed["params"]["to"] is None
    assert parsed["params"]["on_corrupt"] == "fail"


def test_with_a_demo_the_form_can_be_sent_as_it_is(all_parsed: dict[str, dict[str, Any]], home_with_demo: Path) -> None:
    shown = all_parsed[DEMO]["params"]
    assert ParamsDict(form.recovery_params(form.NO_EXAMPLE)).keys() == shown.keys()
    params = ParamsDict(form.recovery_params(form.NO_EXAMPLE))
    params.update(shown)
    assert params.validate()["checkpoint"] == str(shipped(home_with_demo).checkpoint)


@pytest.mark.parametrize("settings", [APPROVAL, UNKNOWN])
def test_a_person_is_asked_before_commit_where_the_setting_says_so_and_where_nobody_knows(
    all_parsed: dict[str, dict[str, Any]], settings: str
) -> None:
    # Settings that do not load do not break the parsing; the first task says what is wrong.
    parsed = all_parsed[settings]
    assert parsed["errors"] == {}
    assert parsed["tasks"]["drain"] == ["approve"]
    assert parsed["tasks"]["approve"] == ["commit"]
    assert parsed["retries"]["approve"] == 0
    assert parsed["heavy"] == []


GOOD: dict[str, list[Any]] = {
    "checkpoint": ["/checkpoints/chk-1", "file:///c/chk-1", "/with space/chk-1", "s3://bucket/c/chk-1"],
    "spec": ["/specs/a.yaml", "job: a\nexchanges: []"],
    "parallelism": ["2", 2, "same", "slow=2,gen=3", "Source: gen=4", "32768"],
    "to": [
        *("parquet:/out", "parquet:file:///out", "parquet:s3://bucket/out", "none:", "checkpoint:/out"),
        *("iceberg:lake/db.rows", "iceberg:lake/a.b.rows", "paimon:/warehouse/db.rows"),
        *("paimon:s3://bucket/warehouse/db.rows", "paimon:s3://bucket/db.rows"),
    ],
    "checkpoint_interval": [None, "10s", "1.5m", "250ms"],
    "rto": [None, "15m", "1h"],
    "on_corrupt": ["fail", "quarantine"],
}
BAD: dict[str, list[Any]] = {
    "checkpoint": [None, "", "relative/chk-1", "http://host/chk-1", "s3://bucket", "s3:///chk-1"],
    "spec": [None, ""],
    "parallelism": [None, "", "0", 0, "-1", "two", "slow=", "slow=2,", "slow=2;gen=3", 2.5, 40000],
    "to": [
        None,
        "",
        "/out",
        "parquet:",
        "parquet:out",
        "kafka:topic",
        "iceberg:cat",
        "iceberg:cat/t",
        "paimon:warehouse/db.t",
        "paimon:/warehouse/t",
        "paimon:s3://db.t",
        "none:here",
        "checkpoint:out",
    ],
    "checkpoint_interval": ["", "soon", "10", "-1s"],
    "rto": ["", "soon", "15"],
    "on_corrupt": ["ignore", "", None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in GOOD.items() for value in values])
def test_the_form_takes(name: str, value: Any) -> None:
    assert form.recovery_params(form.NO_EXAMPLE)[name].resolve(value) == value


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_the_form_itself_refuses(name: str, value: Any) -> None:
    with pytest.raises(ParamValidationError):
        form.recovery_params(form.NO_EXAMPLE)[name].resolve(value)


def test_every_field_has_a_section_a_title_and_a_description() -> None:
    for param in form.recovery_params(form.NO_EXAMPLE).values():
        assert {"section", "title", "description_md"} <= param.schema.keys()


def test_the_request_is_made_of_all_params_but_the_deadline_which_is_the_runs_own() -> None:
    assert form.REQUEST.keys() == form.recovery_params(form.NO_EXAMPLE).keys() - {"rto"}
