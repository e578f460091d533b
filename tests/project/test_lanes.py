"""Markers say what a test starts: they come from its fixtures, and a service refuses a test without its marker."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from tests.project.conftest import ROOT
from tests.support import lanes

NOT_STARTED = {"seed", "slow", "soak", "thorough"}


def collected(expression: str, *files: str) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        expression,
        *files,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return [line.removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line]


def registered() -> set[str]:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    return {re.split("[(:]", line)[0] for line in options["markers"]}


def test_a_parameter_and_a_fixture_bring_their_markers() -> None:
    chosen, others = (collected(lane, "tests/storage/test_storage.py") for lane in ("s3", "not s3"))
    assert "storage/test_storage.py::test_a_name_is_created_once[s3]" in chosen
    assert "storage/test_storage.py::test_a_name_is_created_once[local]" in others
    assert not set(chosen) & set(others)


def test_every_marker_that_is_set_is_registered() -> None:
    tables = (lanes.OF_FIXTURE, lanes.OF_FOLDER, lanes.OF_HELPER)
    assert {name for table in tables for names in table.values() for name in names} <= registered()


@pytest.mark.slow
def test_every_case_that_is_kept_from_the_slow_lane_is_there() -> None:
    files = sorted({f"tests/{test.partition('::')[0]}" for test in lanes.KEPT})
    wanted = {f"{test}[{case}]" for test, cases in lanes.KEPT.items() for case in cases}
    assert wanted <= set(collected("", *files))


def test_every_test_whose_duration_is_listed_is_there() -> None:
    for test in (*lanes.KEPT, *lanes.THOROUGH):
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), test


def test_the_fast_lane_leaves_out_whatever_starts_something() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    named = " ".join(line for line in lines if line.startswith(("services =", "fast =")))
    assert registered() - NOT_STARTED <= set(re.findall(r"\w+", named))


@pytest.mark.parametrize("marker", sorted(registered() - NOT_STARTED - {"tools"}))
def test_a_service_that_starts_without_its_marker_is_an_error(marker: str) -> None:
    with pytest.raises(AssertionError, match=f"only tests marked '{marker}' may start"):
        lanes.require(marker)


@pytest.mark.s3
def test_a_service_that_starts_with_its_marker_is_none() -> None:
    lanes.require("s3")
