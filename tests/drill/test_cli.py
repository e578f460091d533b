"""``cdr drill`` as a user's script calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.support.checkpoints import FixtureCheckpoints


def cdr(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cdr_core.cli.main", *arguments]
    return subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)


def value(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout.splitlines()[-1])


def write_plans(home: Path, **plans: Any) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "drills.yaml").write_text(yaml.safe_dump({"drills": plans}))


def test_a_drill_by_spark_with_a_query(warm_home: Path, fixture_checkpoint: FixtureCheckpoints) -> None:
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
    done = cdr("drill", "run", "nightly", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    drill = value(done)
    assert drill["result"] == "PASSED"
    names = ["recovered", "balanced", "rows", "sql: columns", "sql: owners", "rto", "rpo"]
    assert [check["name"] for check in drill["checks"]] == names
    assert drill["rto_s"] > 0
    assert drill["rpo_s"] > 0
    assert drill["checkpoint"].endswith("chk-2")
    listed = cdr("drill", "list", "--stale")
    assert listed.returncode == 0
    assert "Drill plan nightly passed last" in listed.stdout
    shown = cdr("drill", "show", drill["drill"])
    assert "PASSED          sql: owners" in shown.stdout
    assert value(cdr("drill", "show", drill["drill"], "--json")) == drill
    assert list((warm_home / "drills").iterdir()) == []
    assert list((warm_home / "spark").iterdir()) == [], "no server of it is left, nor its files"


def test_a_drill_that_could_not_run_is_exit_status_3_and_in_the_history(tmp_path: Path) -> None:
    done = cdr("drill", "run", "--checkpoints", str(tmp_path / "none"), "--spec", "exchanges: []", "--json")
    assert done.returncode == 3, done.stderr
    assert value(done)["result"] == "COULD_NOT_RUN"
    assert "is no directory" in value(done)["error"]
    stale = cdr("drill", "list", "--stale", "--json")
    assert stale.returncode == 1
    assert value(stale)["drill"] == value(done)["drill"]


def test_plans_are_listed_and_wrong_ones_are_exit_status_3(tmp_path: Path) -> None:
    assert "no plans" in cdr("drill", "plans").stdout
    good = {"spec": "/s.yaml", "checkpoints": "/c", "schedule": "0 3 * * *"}
    write_plans(tmp_path / ".cdr", good=good, bad={"spec": "/s.yaml"})
    done = cdr("drill", "plans")
    assert done.returncode == 3
    assert "good" in done.stdout
    assert "drill plan bad: checkpoints is missing" in done.stderr
    refused = cdr("drill", "run", "bad")
    assert refused.returncode == 3
    assert "drill plan bad: checkpoints is missing" in refused.stderr
    assert "there is no drill plan 'other'" in cdr("drill", "run", "other").stderr
    assert cdr("drill", "show", "d-0").returncode == 3
