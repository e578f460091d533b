"""A recovery on a real Spark: by ``cdr recover`` on its embedded server, and phase by phase with ``spark-submit``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cdr_core.metadata import Phase, Repository
from cdr_core.spark.java import java_home
from tests.support import output
from tests.support.checkpoints import FixtureCheckpoints

ROOT = Path(__file__).resolve().parents[2]
CDR = [sys.executable, "-m", "cdr_core.cli.main"]


def cdr(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CDR, *arguments], capture_output=True, text=True, env=os.environ, check=False, timeout=240)


def processes_with(text: str) -> list[str]:
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if text in line and process.info["pid"] != os.getpid():
            found.append(line[:200])
    return found


ROUTING = """
def owner(values, parallelism, max_parallelism):
    return values.field("f0").to_numpy() % parallelism
"""


def test_the_five_phases_run_on_one_embedded_server_that_ends_with_them(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, warm_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner function is found by a relative PYTHONPATH, although the server works in another directory."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    (tmp_path / "routes").mkdir()
    (tmp_path / "routes" / "of_this_job.py").write_text(ROUTING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), "routes"]))
    spec = tmp_path / "spec.yaml"
    custom = checkpoint.spec.read_text().replace("partitioner: hash", "partitioner: custom")
    spec.write_text(custom.replace("key: [f0]", "owner: of_this_job:owner"))
    arguments = [str(checkpoint.path), "--spec", str(spec), "--parallelism", "2"]
    done = cdr("recover", *arguments, "--to", f"parquet:{tmp_path}/out", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["state"], summary["verdict"], summary["records"]) == ("DONE", "balanced", 1878)
    assert set(summary["seconds"]) == set(Phase)
    assert json.loads(Path(summary["receipt"]).read_text())["verdict"] == "balanced"
    rows = output.rows(tmp_path / "out")
    assert len(rows) == 1878
    assert {row["new_down"] == row["main"]["f0"] % 2 for row in rows} == {True}
    assert processes_with(str(tmp_path)) == []
    again = cdr("recover", *arguments, "--to", f"parquet:{tmp_path}/out", "--json")
    assert json.loads(again.stdout.splitlines()[-1])["recovery"] == summary["recovery"]
    assert len(output.rows(tmp_path / "out")) == 1878


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_each_phase_runs_by_plain_spark_submit(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    arguments = [str(checkpoint.path), "--spec", str(checkpoint.spec), "--parallelism", "2"]
    created = cdr("recover", *arguments, "--to", f"parquet:{tmp_path}/out", "--create-only", "--json")
    recovery = json.loads(created.stdout)["recovery"]
    home = Path(os.environ["CDR_HOME"])
    monkeypatch.setenv("JAVA_HOME", str(java_home(home)))
    # Five virtual machines that each work for a moment: compiling thoroughly would take longer than the work.
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
    for phase in Phase:
        script = str(ROOT / "cdr_core" / "phases" / f"{phase}.py")
        done = subprocess.run(
            [*submit, script, "--recovery", recovery], capture_output=True, text=True, env=os.environ, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert json.loads(done.stdout.splitlines()[-1])["records"] == 1878
    with Repository.open(f"sqlite:///{home}/cdr.db") as repository:
        states = [str(row.state) for row in repository.phases(recovery)]
    assert states == ["DONE"] * 5
    assert len(output.rows(tmp_path / "out")) == 1878


@pytest.mark.slow
def test_one_phase_runs_by_the_shell_and_the_next_but_one_is_refused(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, warm_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_SPARK_IDLE", "10s")  # no later phase uses this server
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    arguments = [str(checkpoint.path), "--spec", str(checkpoint.spec), "--parallelism", "2"]
    created = cdr("recover", *arguments, "--to", f"parquet:{tmp_path}/out", "--create-only", "--json")
    recovery = json.loads(created.stdout)["recovery"]
    done = cdr("phase", "read", recovery, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["records"] == 1878
    refused = cdr("phase", "spill", recovery)
    assert refused.returncode == 3
    assert "filter is not done" in refused.stderr
