"""Canaries: secrets that a real recovery on a real Spark is given, and that must be found nowhere afterwards."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdr_airflow import recoveries
from cdr_airflow.operator import PhaseOperator
from cdr_core import settings
from cdr_core.metadata import Repository, upgrade
from tests.airflow.executing import execute
from tests.support.checkpoints import FixtureCheckpoints

CANARIES = {
    "AWS_SECRET_ACCESS_KEY": "canary-of-aws-0f3e1c",
    "AWS_SESSION_TOKEN": "canary-of-session-77aa",
    "CDR_NOTIFY_WEBHOOK": "https://hooks.example/canary-of-webhook-5d21",
    "AIRFLOW__CORE__FERNET_KEY": "canary-of-airflow-9b44",
}
MARK = "canary-of"


def environment_shown_by(ui: str) -> str:
    """What the Spark UI, and so an event log, tells of the environment."""
    (application,) = json.load(urllib.request.urlopen(f"{ui}/api/v1/applications", timeout=30))
    address = f"{ui}/api/v1/applications/{application['id']}/environment"
    return urllib.request.urlopen(address, timeout=30).read().decode()


def event_log(folder: Path) -> list[tuple[str, str]]:
    """Settings of Spark with which it writes one there, as text."""
    return [
        ("spark.eventLog.enabled", "true"),
        ("spark.eventLog.dir", f"file://{folder / 'events'}"),
        ("spark.eventLog.compress", "false"),
    ]


def found_in(folder: Path) -> list[str]:
    """Files that hold a canary: the database, the workspace, the receipts, the server's files and logs."""
    files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
    assert files
    return [str(file) for file in files if MARK.encode() in file.read_bytes()]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_no_secret_of_a_recovery_is_found_anywhere(
    warm_home: Path, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CDR_DATABASE_URL", f"sqlite:///{warm_home}/cdr.db")
    (tmp_path / "events").mkdir()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", " ".join(f"-D{name}={value}" for name, value in event_log(tmp_path)))
    upgrade(settings.load().database_url)
    source = fixture_checkpoint("a_p3_thr0", 2)
    request = {
        "checkpoint": str(source.path),
        "spec": str(source.spec),
        "parallelism": "2",
        "to": f"parquet:{tmp_path / 'out'}",
    }
    xcoms: dict[str, Any] = {}
    with capture_logs() as lines:
        results = [execute("read", xcoms, request)]
        results += [execute(phase, xcoms) for phase in ("filter", "spill", "drain")]
        ui = recoveries.spark_ui(xcoms["recovery"])
        shown = environment_shown_by(ui)
        assert "spark.master" in shown
        assert MARK not in shown
        assert found_in(warm_home) == []
        events = b"".join(file.read_bytes() for file in (tmp_path / "events").rglob("*") if file.is_file())
        assert b"SparkListenerEnvironmentUpdate" in events
        assert b"SparkListenerTaskEnd" in events
        assert MARK.encode() not in events
        results.append(execute("commit", xcoms))
    assert results[-1]["verdict"] == "balanced"
    with Repository.open(settings.load().database_url) as repository:
        said = [repository.receipt(xcoms["recovery"]), repository.recovery(xcoms["recovery"])]
    assert MARK not in str([lines, xcoms, results, said])
    assert found_in(warm_home) == []
    assert found_in(tmp_path / "out") == []
    assert xcoms["_link_SparkLink"] == ui
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == CANARIES["AWS_SECRET_ACCESS_KEY"]  # they were there all the time


def test_a_driver_that_gives_a_secret_away_is_not_heard(
    warm_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "talkative.py").write_text(
        "import json, os, sys\n"
        "print('key', os.environ['AWS_SECRET_ACCESS_KEY'], file=sys.stderr)\n"
        "print(json.dumps({'error': 'denied for ' + os.environ['AWS_SECRET_ACCESS_KEY'], 'kind': 'StorageError'}))\n"
        "sys.exit(1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARIES["AWS_SECRET_ACCESS_KEY"])
    monkeypatch.setattr(PhaseOperator, "driver_module", "talkative")
    monkeypatch.setattr(recoveries, "begin", lambda *_: recoveries.Begun(1))
    with capture_logs() as lines, pytest.raises(Exception, match=r"denied for \*\*\*") as raised:
        execute("spill", {"recovery": "r-1"})
    assert any(line["event"] == "key ***" for line in lines)
    assert MARK not in str([lines, raised.value])
