"""The parts of the page that need no server: pictures, metrics, exports, and what loading the plugin costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cdr_airflow.page import flow, prometheus
from cdr_airflow.page.exporting import Written
from cdr_airflow.page.exports import Exports, place
from cdr_core.errors import CdrError, NotReady, Refused
from cdr_core.metadata import AttemptState, Drill, DrillOutcome, RecoveryCheckpointState, RecoveryState
from cdr_core.metadata.overview import Flow
from cdr_core.metadata.statistics import DrillCount, Statistics

ROOT = Path(__file__).resolve().parents[2]

LOAD = """
import json, sys, time
import airflow.configuration, airflow.sdk
from airflow import settings
import airflow.plugins_manager as manager
known = set(sys.modules)
begun = time.process_time()
import cdr_plugin
took = time.process_time() - begun
mine = set(sys.modules) - known
heavy = "sqlalchemy pyspark pyarrow numba numpy pandas boto3 fastapi cdr_core.metadata cdr_core.phases".split()
manager.ensure_plugins_loaded()
plugins, errors = manager._get_plugins()
print(json.dumps({
    "took": took,
    "heavy": sorted(name for name in heavy if name in mine),
    "page": [name for name in mine if name == "cdr_airflow.page.app"],
    "names": [plugin.name for plugin in plugins],
    "errors": errors,
    "views": [(view["name"], view["href"], view["destination"]) for view in cdr_plugin.CdrPlugin.external_views],
    "apps": [app["url_prefix"] for app in cdr_plugin.CdrPlugin.fastapi_apps],
}))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    environment = os.environ | {
        "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__API__BASE_URL": "https://flow.example/air/",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "plugins"), *sys.path)),
    }
    done = subprocess.run([sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return value


def test_loading_the_plugin_is_quick_and_loads_nothing_heavy(loaded: dict[str, Any]) -> None:
    assert loaded["heavy"] == []
    assert loaded["page"] == [], "the page itself is made at the first request"
    assert loaded["took"] < 0.5


def test_airflow_finds_exactly_one_plugin_and_its_views(loaded: dict[str, Any]) -> None:
    assert loaded["names"].count("cdr") == 1
    assert loaded["errors"] == {}
    assert loaded["apps"] == ["/cdr"]
    assert loaded["views"] == [
        ["Recoveries", "/air/cdr/", "nav"],
        ["Recovery", "/air/cdr/runs/{DAG_ID}/{RUN_ID}", "dag_run"],
    ], "Airflow may live below a path of its own"


def exchange(old: int, new: int) -> dict[str, Any]:
    return {"exchanges": [{"name": "e", "up": [old, old], "down": [old, new], "partitioner": "hash"}]}


def test_a_small_picture_has_a_node_for_every_subtask() -> None:
    drawn = flow.picture(exchange(3, 2), [Flow("e", 0, 0, 5, 50), Flow("e", 1, 0, 2, 20), Flow("e", 1, 1, 3, 30)])[0]
    assert (drawn["old"]["nodes"], drawn["new"]["nodes"]) == (["0", "1", "2"], ["0", "1"])
    assert [(each["from"], each["to"], each["records"]) for each in drawn["links"]] == [(0, 0, 5), (1, 0, 2), (1, 1, 3)]


@pytest.mark.parametrize(("old", "new"), [(128, 96), (96, 128), (1, 32768), (49, 48), (32768, 32768)])
def test_a_large_picture_stays_small_and_keeps_every_record(old: int, new: int) -> None:
    flows = [Flow("e", n % old, (7 * n) % new, n, 2 * n) for n in range(1, 5000)]
    drawn = flow.picture(exchange(old, new), flows)[0]
    assert max(len(drawn["old"]["nodes"]), len(drawn["new"]["nodes"])) <= flow.MOST_NODES
    assert sum(each["records"] for each in drawn["links"]) == drawn["records"] == sum(each.records for each in flows)
    assert all(each["from"] < len(drawn["old"]["nodes"]) for each in drawn["links"])
    assert all(each["to"] < len(drawn["new"]["nodes"]) for each in drawn["links"])


def test_what_nobody_has_counted_is_unknown_and_what_was_counted_as_nothing_is_zero() -> None:
    assert flow.picture(exchange(3, 2), None)[0]["records"] is None
    assert flow.picture(exchange(3, 2), [])[0]["records"] == 0
    assert flow.picture(None, None) == []


def test_labels_of_metrics_are_escaped_and_every_state_has_a_sample() -> None:
    now = datetime.now(UTC)
    statistics = Statistics(
        recoveries=dict.fromkeys(RecoveryState, 1),
        attempts=dict.fromkeys(AttemptState, 0),
        checkpoints=dict.fromkeys(RecoveryCheckpointState, 0),
        drills=dict.fromkeys(DrillOutcome, 0),
        records=2**53,
        bytes=0,
        running=(),
    )
    args = {"job": 'a "b"\n\\', "plan": ""}
    drill = Drill("d-1", "/c", args, None, now, DrillOutcome.PASSED, (), 12.5, None, None, now)
    counts = [DrillCount("", args["job"], DrillOutcome.PASSED, 1)]
    text = prometheus.render(prometheus.metrics(statistics, [drill], counts, now + timedelta(hours=1)))
    assert 'cdr_drill_rto_seconds{job="a \\"b\\"\\n\\\\",plan=""} 12.5\n' in text
    assert "cdr_recovered_records_total 9007199254740992\n" in text
    for line in text.splitlines():
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2
    assert sum(line.startswith("cdr_recoveries{") for line in text.splitlines()) == len(RecoveryState)


def test_an_export_that_takes_long_is_told_to_be_running_and_a_second_one_waits(tmp_path: Path) -> None:
    gate, root = threading.Event(), str(tmp_path)

    def slowly(_recovery: str, _number: int, directory: str) -> Written:
        assert gate.wait(30)
        Path(directory).mkdir()
        (Path(directory) / "_metadata").write_bytes(b"whole")
        return Written(directory, 5, 50)

    exports = Exports(slowly, patience=0.05)
    assert exports.start(root, "r-1", 3) == {"state": "RUNNING", "directory": f"{root}/r-1-chk-3"}
    assert exports.start(root, "r-1", 3)["state"] == "RUNNING", "asking again is not another export"
    assert exports.state_of(root, "r-1", 3) == "…"
    with pytest.raises(NotReady, match="another export"):
        exports.start(root, "r-2", 1)
    running = exports._running
    assert running is not None
    gate.set()
    running[1].result(30)
    assert exports.state_of(root, "r-1", 3) == place(root, "r-1", 3)
    assert exports.state_of(root, "r-2", 1) is None


def test_an_export_that_fails_says_so_now_and_later(tmp_path: Path) -> None:
    def refused(*_: Any) -> Written:
        raise Refused("the spill is on another host")

    exports = Exports(refused)
    with pytest.raises(CdrError, match="another host"):
        exports.start(str(tmp_path), "r-1", 1)
    assert exports.failure_of(str(tmp_path), "r-1", 1) == "the spill is on another host."
    assert exports.state_of(str(tmp_path), "r-1", 1) is None
