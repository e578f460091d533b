"""``cdr recover --one-pass`` as a user runs it, on a real Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.phases.test_thread import compare
from tests.support import output
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.onepass import set_flags, set_small, spilled_files

CDR = [sys.executable, "-m", "cdr_core.cli.main"]


def cdr(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CDR, *arguments], capture_output=True, text=True, env=os.environ, check=False, timeout=280)


@pytest.mark.timeout(600)
def test_one_job_on_spark_survives_a_killed_task_and_publishes_each_record_once(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, warm_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """000-03, 000-04, 000-11, E18: a task dies by kill -9 while it spills, Spark does it again, nothing is left over;
    asked again, with or without ``--one-pass``, the stored result is returned.
    """
    set_flags(monkeypatch, tmp_path / "spill")
    set_small(monkeypatch, 2)
    monkeypatch.setenv("CDR_FAULTS_LOG", str(tmp_path / "fired"))
    monkeypatch.setenv("CDR_FAULTS", f"onepass.spilled=once:{tmp_path / 'once'}:kill,onepass.page=sleep:0.002")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    arguments = [str(checkpoint.path), "--spec", str(checkpoint.spec), "--parallelism", "2"]
    arguments += ["--to", f"parquet:{tmp_path}/out", "--json"]
    done = cdr("recover", *arguments, "--one-pass")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "fired").read_text() == "onepass.spilled kill\n"
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["state"], summary["verdict"], summary["records"]) == ("DONE", "balanced", 1878)
    assert set(summary["seconds"]) == {"one_pass", "commit"}
    counters = summary["one_pass"]
    assert min(counters["memory_bytes"], counters["disk_bytes"], counters["spill_files"], counters["pages"]) > 0
    assert counters["read_page_bytes"] > 0
    compare(output.rows(tmp_path / "out"), checkpoint, 2)
    assert spilled_files(tmp_path / "spill") == []
    assert list(warm_home.rglob("set-*")) == []
    again = cdr("recover", *arguments)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["recovery"] == summary["recovery"]


def test_both_flags_without_spill_directories_are_refused_with_status_3(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """002-11, 002-27, E16: one sentence that names the setting; nothing was made."""
    set_flags(monkeypatch, tmp_path / "spill")
    monkeypatch.delenv("CDR_SPILL_DIRS")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    arguments = [str(checkpoint.path), "--spec", str(checkpoint.spec), "--parallelism", "2"]
    done = cdr("recover", *arguments, "--to", f"parquet:{tmp_path}/out", "--one-pass")
    assert done.returncode == 3
    assert done.stderr.count("\n") <= 2
    assert "CDR_SPILL_DIRS" in done.stderr
    assert not (tmp_path / "out").exists()
