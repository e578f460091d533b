"""The import contract catches what it is there for: each rule is broken once in a copy of the layout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.conftest import ROOT

LINTER = Path(sys.executable).with_name("lint-imports")


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """Every package of the project, empty, under the project's own contract."""
    shutil.copy(ROOT / ".importlinter", tmp_path)
    for package in ("cdr_core", "plugins/cdr_airflow"):
        for init in (ROOT / package).rglob("__init__.py"):
            copy = tmp_path / init.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.touch()
    modules = ("errors", "addresses", "api", "drill_values", "extras", "log", "targets", "settings", "faults")
    for module in (*(f"cdr_core/{name}.py" for name in modules), "dags/cdr_recover.py"):
        (tmp_path / module).parent.mkdir(exist_ok=True)
        (tmp_path / module).touch()
    return tmp_path


def lint(layout: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(layout), str(layout / "plugins"), str(ROOT / ".make")))
    return subprocess.run(
        [LINTER, "--no-logo", "--no-cache"],
        cwd=layout,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_empty_layout_keeps_the_contract(layout: Path) -> None:
    done = lint(layout)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "imports", "rule"),
    [
        ("cdr_core/errors", "cdr_core.settings", "each layer"),
        ("cdr_core/addresses", "cdr_core.settings", "each layer"),
        ("cdr_core/kernels/x", "cdr_core.flink", "each layer"),
        ("cdr_core/flink/x", "cdr_core.storage", "each layer"),
        ("cdr_core/storage/x", "cdr_core.kernels", "does not look into them"),
        ("cdr_core/spill/x", "cdr_core.drain", "each layer"),
        ("cdr_core/spill/x", "cdr_core.commit", "each layer"),
        ("cdr_core/commit/x", "cdr_core.spill", "each layer"),
        ("cdr_core/planning/x", "cdr_core.channels", "each layer"),
        ("cdr_core/planning/x", "cdr_core.metadata", "each layer"),
        ("cdr_core/commit/x", "cdr_core.drain", "each layer"),
        ("cdr_core/runtime/x", "cdr_core.drain", "each layer"),
        ("cdr_core/drain/x", "cdr_core.phases", "each layer"),
        ("cdr_core/spark/x", "cdr_core.phases", "each layer"),
        ("cdr_core/phases/x", "cdr_core.recovery", "each layer"),
        ("cdr_core/phases/x", "cdr_core.cli", "each layer"),
        ("cdr_core/surprise/__init__", "os", "each layer"),
        ("cdr_core/cli/x", "cdr_airflow", "knows neither"),
        ("cdr_core/verify/x", "cdr_core.flink", "the independent reader"),
        ("cdr_core/verify/x", "cdr_core.settings", "the independent reader"),
        ("cdr_core/channels/x", "pyspark.sql", "import pyspark"),
        ("cdr_core/phases/x", "pyspark", "import pyspark"),
        ("plugins/cdr_airflow/x", "pyspark", "import pyspark"),
        ("cdr_core/cli/x", "sqlalchemy", "imports SQLAlchemy"),
        ("dags/x", "sqlalchemy.orm", "imports SQLAlchemy"),
        ("cdr_core/phases/x", "airflow.sdk", "import airflow"),
        ("cdr_core/commit/x", "boto3", "imports boto3"),
    ],
)
def test_a_planted_violation_is_caught(layout: Path, module: str, imports: str, rule: str) -> None:
    file = layout / f"{module}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"def late() -> None:\n    import {imports}\n")
    done = lint(layout)
    assert done.returncode != 0
    (broken,) = [line for line in done.stdout.splitlines() if line.rstrip().endswith("BROKEN")]
    assert rule in broken


@pytest.mark.parametrize(
    ("module", "imports"),
    [
        ("cdr_core/runtime/x", "pyspark"),
        ("cdr_core/metadata/x", "sqlalchemy"),
        ("cdr_core/storage/x", "boto3"),
        ("cdr_core/verify/x", "cdr_core.storage"),
        ("cdr_core/verify/x", "cdr_core.verify.y"),
        ("cdr_core/channels/x", "cdr_core.planning"),
        ("cdr_core/drain/x", "cdr_core.commit"),
        ("dags/x", "cdr_airflow"),
    ],
)
def test_what_the_contract_allows_passes(layout: Path, module: str, imports: str) -> None:
    (layout / "cdr_core/verify/y.py").touch()
    (layout / f"{module}.py").write_text(f"import {imports}\n")
    done = lint(layout)
    assert done.returncode == 0, done.stdout
