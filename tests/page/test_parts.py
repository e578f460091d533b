"""The parts of the page that need no server: pictures, metrics, exports, and what loading the plugin costs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdr_airflow.page import flow, prometheus, views
from cdr_airflow.page import recovery as recovery_page
from cdr_airflow.page.export_process import Written
from cdr_airflow.page.exports import Exports, place
from cdr_core.drill.history import PlanStatus
from cdr_core.errors import CdrError, NotReady, Refused, StorageError
from cdr_core.metadata import (
    NOT_READY,
    AttemptState,
    Command,
    CommandState,
    DrillOutcome,
    Phase,
    PhaseProgress,
    PhaseState,
    PlannedEnds,
    PlanSummary,
    RecoveryCheckpoint,
    RecoveryCheckpointState,
    RecoveryOptions,
    RecoveryState,
    Repository,
    upgrade,
)
from cdr_core.metadata.recovery_list import Flow
from cdr_core.metadata.statistics import DrillCount, Statistics
from tests.metadata.steps import new_recovery

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


@pytest.mark.parametrize(("age", "state"), [(1, "REQUESTED"), (601, "REFUSED")])
def test_a_request_for_which_no_drain_started_in_time_is_shown_as_refused(age: int, state: str) -> None:
    """Also where no driver runs that would refuse it."""
    asked_at = datetime.now(UTC) - timedelta(seconds=age)
    why = {"reason": "the drain has not started", NOT_READY: True}
    row = Command(1, "r-1", "checkpoint", {}, CommandState.REQUESTED, why, asked_at, None)
    shown = views.command(row, timeout=600.0)
    assert (shown["state"], shown["not_ready"], shown["reason"]) == (state, True, "the drain has not started")
    assert (shown["waits_until"] is None) == (state == "REFUSED")


def exchange(old: int, new: int) -> PlanSummary:
    return PlanSummary(exchanges=(PlannedEnds("e", (old, old), (old, new), "hash"),))


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


COUNTED = {"by_reference": 70, "handed_over": 90, "spilled": 30, "replayed": 10}


@pytest.mark.parametrize(
    ("state", "result", "shown"),
    [
        (PhaseState.DONE, {"records": 5, "routing": COUNTED}, COUNTED),
        (PhaseState.DONE, {"records": 5}, None),
        (PhaseState.RUNNING, {"records": 5, "routing": COUNTED}, None),
        (PhaseState.PENDING, None, None),
    ],
    ids=["counted", "earlier version", "running", "pending"],
)
def test_routing_is_told_once_a_drain_that_counts_is_done(
    state: PhaseState, result: dict[str, Any] | None, shown: dict[str, int] | None
) -> None:
    def row(phase: Phase) -> PhaseProgress:
        mine = (state, result) if phase is Phase.DRAIN else (PhaseState.DONE, {"records": 5})
        return PhaseProgress(phase, mine[0], 2, 2, 100, 100, 5, {}, mine[1], None, None)

    assert views.routing([row(phase) for phase in Phase]) == shown


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
    job = 'a "b"\n\\'
    status = PlanStatus("x", job, True, None, DrillOutcome.PASSED, now, 0.0, 1.0, 12.5, None)
    counts = [DrillCount("x", job, DrillOutcome.PASSED, 1)]
    text = prometheus.render(prometheus.metrics(statistics, [status], counts, now + timedelta(hours=1)))
    assert 'cdr_drill_rto_seconds{job="a \\"b\\"\\n\\\\",plan="x"} 12.5\n' in text
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


def test_exports_are_looked_for_as_far_as_the_page_shows_them_and_a_storage_that_is_away_costs_one_question() -> None:
    now = datetime.now(UTC)
    rows = [
        RecoveryCheckpoint(number, 4, RecoveryCheckpointState.COMPLETED, None, None, None, None, now, now)
        for number in range(1, 51)
    ]
    asked: list[int] = []

    class Counting(Exports):
        def state_of(self, root: str, recovery: str, number: int) -> str | None:
            asked.append(number)
            if root.startswith("s3:"):
                raise StorageError("the object store does not answer")
            return place(root, recovery, number)

    shown = recovery_page._checkpoints(rows, SimpleNamespace(export_root="/e"), Counting(), "r-1")  # type: ignore[arg-type]
    assert asked == list(range(50, 30, -1))
    assert [each["id"] for each in shown] == list(range(1, 51))
    assert (shown[-1]["exported"], shown[0]["exported"]) == ("/e/r-1-chk-50", None)
    asked.clear()
    away = recovery_page._checkpoints(rows, SimpleNamespace(export_root="s3://b"), Counting(), "r-1")  # type: ignore[arg-type]
    assert asked == [50]
    assert "does not answer" in away[-1]["export_error"]
    assert "does not answer" in away[-20]["export_error"]
    assert away[-21]["export_error"] is None


def test_a_recovery_that_leaves_records_out_is_started_over_on_the_shell(tmp_path: Path) -> None:
    """The form has no field for these records: a start-over by it would publish them."""
    url = f"sqlite:///{tmp_path / 'cdr.db'}"
    upgrade(url)
    with Repository.open(url) as repository:
        whole, _ = repository.create_recovery(new_recovery())
        options = RecoveryOptions(on_corrupt="fail", drop_records=("main:0:0:2",))
        lacking, _ = repository.create_recovery(new_recovery(target="parquet:/b", options=options))
    why_not = partial(recovery_page._why_not_start_over, log=(), drill=None)
    assert why_not(whole, may_act=True) is None
    assert f"run: cdr resume {lacking.id} --replace" in (why_not(lacking, may_act=True) or "")
    assert "not act" in (why_not(whole, may_act=False) or "")


def test_an_export_that_fails_says_so_now_and_later(tmp_path: Path) -> None:
    def refused(*_: Any) -> Written:
        raise Refused("the spill is on another host")

    exports = Exports(refused)
    with pytest.raises(CdrError, match="another host"):
        exports.start(str(tmp_path), "r-1", 1)
    assert exports.failure_of(str(tmp_path), "r-1", 1) == "the spill is on another host."
    assert exports.state_of(str(tmp_path), "r-1", 1) is None


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_can_be_read_on_every_ground_it_lies_on(theme: str) -> None:
    """4.5 to 1 is what WCAG 2 asks of text of this size."""
    light, _, dark = (ROOT / "plugins/cdr_airflow/page/static/base.css").read_text().partition('[data-theme="dark"]')
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", light if theme == "light" else dark))
    pairs = [(text, ground) for text in ("ink", "soft", "faint") for ground in ("back", "card", "sunken")]
    pairs += [(name, f"{name}-soft") for name in ("good", "bad", "warn", "accent")] + [("soft", "idle-soft")]
    found = {(text, ground): contrast(colours[text], colours[ground]) for text, ground in pairs}
    assert {pair: value for pair, value in found.items() if value < 4.5} == {}
