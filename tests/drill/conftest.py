"""What the tests of drills share: a database, settings, and a drill on a shipped checkpoint whose units run here."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdr_core import settings as settings_module
from cdr_core.drill.plan import DrillPlan, parse_plan
from cdr_core.drill.run import by_this_process, run_drill
from cdr_core.metadata import Drill, Repository, upgrade
from cdr_core.settings import Settings
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.inline import InlineWorkers


@dataclass(frozen=True)
class Rehearsal:
    """A home with a copy of the shipped checkpoint, ready to be drilled."""

    repository: Repository
    checkpoint: Path
    spec: str

    @property
    def settings(self) -> Settings:
        """As they are now: a test may change the environment."""
        return settings_module.load()

    def plan(self, **fields: Any) -> DrillPlan:
        least = {"spec": self.spec, "checkpoints": str(self.checkpoint.parent), "parallelism": "2"}
        return parse_plan("nightly", {**least, **fields})

    def drill(self, plan: DrillPlan | None = None, workers: InlineWorkers | None = None, seed: int = 7) -> Drill:
        return run_drill(
            self.repository,
            self.settings,
            plan or self.plan(),
            by_this_process(seed),
            workers or InlineWorkers(),
            lambda _: None,
        )

    def left(self) -> list[Path]:
        """Files in the drills' scratch."""
        scratch = Path(self.settings.drill_scratch)
        return [path for path in scratch.rglob("*") if path.is_file()] if scratch.is_dir() else []


@pytest.fixture
def rehearsal(tmp_path: Path, fixture_checkpoint: FixtureCheckpoints) -> Iterator[Rehearsal]:
    settings = settings_module.load()
    settings.home.mkdir(parents=True)
    upgrade(settings.database_url)
    shipped = fixture_checkpoint("a_p3_thr0", 2)
    (tmp_path / "job").mkdir()
    copy = shipped.copy(tmp_path / "job" / "chk-2")
    with Repository.open(settings.database_url) as repository:
        yield Rehearsal(repository, copy, shipped.spec.read_text())


@pytest.fixture
def damage(rehearsal: Rehearsal) -> Callable[[], None]:
    """Cuts the largest file of the checkpoint in half."""

    def cut() -> None:
        largest = max(rehearsal.checkpoint.iterdir(), key=lambda path: path.stat().st_size)
        data = largest.read_bytes()
        largest.write_bytes(data[: len(data) // 2])

    return cut


@pytest.fixture
def another(rehearsal: Rehearsal) -> Callable[[int], Path]:
    """A further checkpoint beside the first."""

    def make(number: int) -> Path:
        return Path(shutil.copytree(rehearsal.checkpoint, rehearsal.checkpoint.parent / f"chk-{number}"))

    return make
