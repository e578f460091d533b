"""Code that a job spec names: through Airflow only what the operator of this Airflow listed is ever imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdr_airflow import recoveries
from cdr_core import settings
from cdr_core.cli import plan as plan_command
from cdr_core.errors import Refused, SpecRefused
from cdr_core.metadata import Repository, upgrade
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints

MODULE = "owners_of_a_test"
CODE = """
import pathlib
pathlib.Path(__file__).with_suffix(".imported").touch()
import numpy as np

def owner(values, parallelism, max_parallelism):
    return np.zeros(len(values), dtype=np.int64)
"""


@pytest.fixture
def source(fixture_checkpoint: FixtureCheckpoints) -> FixtureCheckpoint:
    return fixture_checkpoint("a_p3_thr0", 2)


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module on the path, and the file that appears when it is imported."""
    (tmp_path / f"{MODULE}.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / f"{MODULE}.imported"
    sys.modules.pop(MODULE, None)


def request(source: FixtureCheckpoint, tmp_path: Path, spec: str) -> dict[str, str]:
    return {"checkpoint": str(source.path), "spec": spec, "parallelism": "2", "to": f"parquet:{tmp_path / 'out'}"}


def custom(source: FixtureCheckpoint) -> str:
    """The fixture's spec, as if its exchange were partitioned by code of the user's."""
    document: dict[str, Any] = yaml.safe_load(source.spec.read_text())
    exchange = document["exchanges"][0]
    exchange |= {"partitioner": "custom", "owner": f"{MODULE}:owner"}
    exchange.pop("key", None)
    return yaml.safe_dump(document)


@pytest.mark.parametrize(
    ("owner", "listed", "allowed"),
    [
        ("jobs.owners:f", ("jobs",), True),
        ("jobs.owners:f", ("jobs.owners",), True),
        ("jobs:f", ("jobs",), True),
        ("jobsx:f", ("jobs",), False),
        ("os:system", ("jobs",), False),
        ("jobs.owners:f", (), False),
    ],
)
def test_a_module_is_allowed_by_itself_or_by_what_it_lies_in(
    owner: str, listed: tuple[str, ...], allowed: bool
) -> None:
    assert recoveries.is_allowed(owner, listed) == allowed


def test_an_unlisted_module_is_refused_before_it_is_imported(
    source: FixtureCheckpoint, tmp_path: Path, imported: Path
) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(custom(source))
    for spec in (custom(source), str(file)):
        with pytest.raises(SpecRefused, match="CDR_OWNER_MODULES"):
            recoveries.checked_spec(request(source, tmp_path, spec))
    assert not imported.exists()
    assert plan_command.plan(str(source.path), str(file), "2") == 0  # the shell is its user's own
    assert imported.exists()


def test_a_listed_module_is_used_and_its_spec_is_frozen_with_the_recovery(
    source: FixtureCheckpoint, tmp_path: Path, imported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_OWNER_MODULES", MODULE)
    current = settings.load()
    current.home.mkdir(parents=True)
    upgrade(current.database_url)
    file = tmp_path / "spec.yaml"
    file.write_text(custom(source))
    checked = recoveries.checked_spec(request(source, tmp_path, str(file)))
    # Between the check and the use the file may change: what was checked is what is used.
    file.write_text(custom(source).replace(MODULE, "os"))
    plan, refused = recoveries.what_if(checked)
    assert refused is None
    assert any(f"custom by {MODULE}:owner" in line for line in plan)
    recovery = recoveries.create(checked)
    with Repository.open(current.database_url) as repository:
        assert repository.recovery(recovery).spec == custom(source)
    with pytest.raises(Refused, match="spec"):
        recoveries.create(checked | {"spec": f"{custom(source)}# changed\n"})


def test_the_what_if_is_what_cdr_plan_prints_of_an_estimate(
    source: FixtureCheckpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = request(source, tmp_path, str(source.spec))
    plan, refused = recoveries.what_if(asked)
    assert refused is None
    assert plan_command.plan(asked["checkpoint"], asked["spec"], "2", asked["to"], estimate=True) == 0
    assert capsys.readouterr().out.splitlines() == plan


def test_the_what_if_of_what_cannot_work_says_so_and_why(source: FixtureCheckpoint, tmp_path: Path) -> None:
    plan, refused = recoveries.what_if(request(source, tmp_path, str(source.spec)) | {"parallelism": "300"})
    assert isinstance(refused, Refused)
    assert any("refused" in line for line in plan)
