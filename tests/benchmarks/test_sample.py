"""Every benchmark runs and reports, with sizes at which its figures mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.__main__ import GROUPS, ROOT, main
from tests.benchmarks.figures import NO_BAR, Bar, Figure
from tests.benchmarks.report import page

EXPECTED = {
    "formats": {"decode-100", "scan-1k", "inspect"},
    "kernels": {
        "filter-1k",
        "read-1k",
        "read-and-filter-1k",
        "pass-through-1k",
        "filter-100-long",
        "filter-100-string",
        "filter-100-rowdata",
        "two-cores-1k",
    },
    "phases": {"read-and-filter-work"},
    "spill": {
        f"{name}{crew}"
        for crew in ("", "-two-cores")
        for name in (
            *("spill-and-drain-memory", "spill-and-drain-memory-decoded", "spill-disk", "spill-and-drain-disk"),
            *("drain-parquet-1k", "drain-parquet-150"),
        )
    },
    "checkpoints": {"first-checkpoint", "checkpoint-cost", "stuck-checkpoint"},
    "recoveries": {"five-phases-parquet"},
    "memory": {"read-and-filter-memory", "five-phases-in-a-budget", "five-phases-in-a-budget-s3"},
    "page": {"page-list", "page-last", "page-search", "page-recovery", "page-drills"},
}


@pytest.mark.phases
@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.seed("002-16")
def test_every_benchmark_runs_reports_and_cleans_up(tmp_path: Path) -> None:
    scratch, results = tmp_path / "scratch", tmp_path / "benchmarks"
    places = ["--scratch", str(scratch), "--memory", str(tmp_path), "--results", str(results)]
    command = [sys.executable, "-m", "tests.benchmarks", "--tiny", "--runs", "1", *places]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = EXPECTED
    if "no figure of a frozen target" in done.stdout:  # this user may not mount a file system
        expected = {**EXPECTED, "checkpoints": EXPECTED["checkpoints"] - {"stuck-checkpoint"}}
    found = {group: json.loads((results / f"{group}.json").read_text()) for group in GROUPS}
    assert {group: {figure["name"] for figure in value["figures"]} for group, value in found.items()} == expected
    for value in found.values():
        assert {"machine", "load_average", "date", "versions", "command", "not_measured"} <= value.keys()
        assert all(_is_measured(figure) for figure in value["figures"])
    written = (tmp_path / "benchmarks.md").read_text()
    assert written == page(results)
    assert all(f"`{name}`" in written for names in expected.values() for name in names)
    assert list(scratch.iterdir()) == [], "a benchmark leaves nothing behind"
    assert not list(tmp_path.glob("cdr-bench-*"))


def _is_measured(figure: dict[str, Any]) -> bool:
    counted = figure["name"] == "inspect" or figure["median"] > 0
    return bool(counted and figure["baseline_median"] > 0 and figure["verdict"] == "")


def test_a_disk_without_room_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"GB are needed; give --scratch"):
        main(["checkpoints", "--large", str(10**18), "--scratch", str(tmp_path), "--results", str(tmp_path / "r")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("bar", "measured", "verdict"),
    [
        (Bar(low=0.4), (50.0, 40.0, 30.0), "held"),
        (Bar(low=0.4), (50.0, 39.0, 30.0), "missed"),
        (Bar(high=0), (0.0, 0.0, 0.0), "held"),
        (Bar(0.9, 1.1), (111.0, 112.0, 113.0), "missed"),
        (NO_BAR, (1.0, 1.0, 1.0), ""),
    ],
)
def test_a_verdict_is_by_the_ratio_of_medians(bar: Bar, measured: tuple[float, ...], verdict: str) -> None:
    assert Figure("n", "what", "beside", "MB/s", measured, (100.0, 100.0, 100.0), bar).verdict == verdict


def test_a_goal_that_was_not_reached_is_a_miss_also_where_the_ratio_holds() -> None:
    figure = Figure("n", "what", "beside", "s", (1.0,), (1.0,), Bar(high=2), goal="≤ 5 s", reached=False)
    assert figure.verdict == "missed"
