"""``cdr drill`` as a user's script calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdr_core.cli.main import run
from tests.support.checkpoints import FixtureCheckpoints


@dataclass(frozen=True)
class Said:
    returncode: int
    stdout: str
    stderr: str

    @property
    def value(self) -> Any:
        return json.loads(self.stdout.splitlines()[-1])


def cdr(*arguments: str, capsys: pytest.CaptureFixture[str]) -> Said:
    """The command in this process: loading the libraries takes longer than what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["cdr", *arguments])
        with pytest.raises(SystemExit) as ended:
            run()
    return Said(int(str(ended.value.code or 0)), *capsys.readouterr())


def cdr_apart(*arguments: str) -> Said:
    """The command in a process of its own, for what uses Spark."""
    command = [sys.executable, "-m", "cdr_core.cli.main", *arguments]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


def write_plans(home: Path, **plans: Any) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "drills.yaml").write_text(yaml.safe_dump({"drills": plans}))


@pytest.mark.slow
def test_a_drill_by_spark_with_a_query(
    warm_home: Path, fixture_checkpoint: FixtureCheckpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = fixture_checkpoint("a_p3_thr0", 2)
    sql = [
        {
            "name": "columns",
            "query": "SELECT count(main.f0) = count(*) AND count(*) = 1878 FROM recovered",
            "expect": True,
        },
        {"name": "owners", "query": "SELECT * FROM recovered WHERE new_down NOT IN (0, 1)"},
    ]
    place = str(shipped.path.parent)
    plan = {"spec": str(shipped.spec), "checkpoints": place, "parallelism": 2, "checks": {"sql": sql}}
    write_plans(warm_home, nightly=plan)
    done = cdr_apart("drill", "run", "nightly", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    drill = done.value
    assert drill["result"] == "PASSED"
    names = ["recovered", "balanced", "rows", "sql: columns", "sql: owners", "rto", "rpo"]
    assert [check["name"] for check in drill["checks"]] == names
    assert drill["rto_s"] > 0
    assert drill["rpo_s"] > 0
    assert drill["checkpoint"].endswith("chk-2")
    listed = cdr("drill", "list", "--stale", capsys=capsys)
    assert listed.returncode == 0
    assert "Drill plan nightly passed last" in listed.stdout
    shown = cdr("drill", "show", drill["drill"], capsys=capsys)
    assert "PASSED          sql: owners" in shown.stdout
    assert cdr("drill", "show", drill["drill"], "--json", capsys=capsys).value == drill
    assert list((warm_home / "drills").iterdir()) == []
    assert list((warm_home / "spark").iterdir()) == [], "no server of it is left, nor its files"


def test_a_drill_that_could_not_run_is_exit_status_3_and_in_the_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = cdr(
        "drill", "run", "--checkpoints", str(tmp_path / "none"), "--spec", "exchanges: []", "--json", capsys=capsys
    )
    assert done.returncode == 3, done.stderr
    assert done.value["result"] == "COULD_NOT_RUN"
    assert "is no directory" in done.value["error"]
    assert done.value["plan"] is None
    listed = cdr("drill", "list", "--stale", "--json", capsys=capsys)
    assert listed.returncode == 0, "a drill by hand has no plan that could be stale"
    assert listed.value["drill"] == done.value["drill"]


def test_a_stale_plan_is_exit_status_1_until_it_is_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = {"spec": "exchanges: []", "checkpoints": str(tmp_path / "none")}
    write_plans(tmp_path / ".cdr", nightly=nowhere, new=nowhere)
    first = cdr("drill", "list", "--stale", capsys=capsys)
    assert first.returncode == 0
    assert "Drill plan new has no result yet." in first.stdout
    assert cdr("drill", "run", "nightly", capsys=capsys).returncode == 3
    assert cdr("drill", "list", "--stale", capsys=capsys).returncode == 1
    assert cdr("drill", "list", "--stale", "--plan", "new", capsys=capsys).returncode == 0
    write_plans(tmp_path / ".cdr", new=nowhere)
    last = cdr("drill", "list", "--stale", capsys=capsys)
    assert last.returncode == 0
    assert "Drill plan nightly, which drills.yaml no longer has, has never passed." in last.stdout


def test_an_empty_request_is_refused_and_not_in_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    for given in ([], ["--spec", "exchanges: []"], ["--checkpoints", "/c", "--spec", "exchanges: []", "--rto", "soon"]):
        assert cdr("drill", "run", *given, capsys=capsys).returncode == 3
    assert "no drills yet" in cdr("drill", "list", capsys=capsys).stdout


def test_plans_are_listed_and_wrong_ones_are_exit_status_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no plans" in cdr("drill", "plans", capsys=capsys).stdout
    good = {"spec": "/s.yaml", "checkpoints": "/c", "schedule": "0 3 * * *"}
    write_plans(tmp_path / ".cdr", good=good, bad={"spec": "/s.yaml"})
    done = cdr("drill", "plans", capsys=capsys)
    assert done.returncode == 3
    assert "good" in done.stdout
    assert "drill plan bad: checkpoints is missing" in done.stderr
    refused = cdr("drill", "run", "bad", capsys=capsys)
    assert refused.returncode == 3
    assert "drill plan bad: checkpoints is missing" in refused.stderr
    assert "there is no drill plan 'other'" in cdr("drill", "run", "other", capsys=capsys).stderr
    assert cdr("drill", "show", "d-0", capsys=capsys).returncode == 3
