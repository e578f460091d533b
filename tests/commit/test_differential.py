"""However it runs, wherever things lie, and whenever it publishes: the same rows and the same watermark.

Four choices of two make 16 recoveries of one checkpoint. Those that are not slow are six in which every two choices
meet in all four ways.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import combinations, product
from pathlib import Path

import pytest

from cdr_core.drain import task
from cdr_core.metadata import Phase, RecoveryCheckpointState, Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.commit.differential import WATERMARK, expected, make_source, place
from tests.commit.targets import ParquetTarget, S3Target, Target
from tests.support import inline
from tests.support.bucket import Bucket
from tests.support.written import SPEC

COMPLETE = {RecoveryCheckpointState.COMPLETED, RecoveryCheckpointState.EXPIRED}


@dataclass(frozen=True, slots=True)
class Case:
    """One recovery. ``busy``: recovery checkpoints are taken meanwhile. ``s3``: source, workspace and target."""

    busy: bool
    per_checkpoint: bool
    postgres: bool
    s3: bool

    def __str__(self) -> str:
        return "-".join(each.name for each in fields(self) if getattr(self, each.name)) or "none"

    def marks(self) -> list[pytest.MarkDecorator]:
        """The services of the case; outside of the sample it is slow."""
        wanted = (
            (pytest.mark.postgres, self.postgres),
            (pytest.mark.s3, self.s3),
            (pytest.mark.slow, self not in sample()),
        )
        return [marker for marker, is_wanted in wanted if is_wanted]


EVERY = [Case(*choices) for choices in product((False, True), repeat=4)]


def sample() -> list[Case]:
    """None of the choices, three of them in every way, and several publications with rows in PostgreSQL."""
    three = [Case(*(number != left for number in range(4))) for left in range(4)]
    return [Case(*[False] * 4), *three, Case(True, False, False, False)]


def test_in_the_sample_every_two_choices_meet_in_all_ways() -> None:
    for one, other in combinations([each.name for each in fields(Case)], 2):
        assert len({(getattr(case, one), getattr(case, other)) for case in sample()}) == 4


def settle(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Target:
    """The settings of a case; where it publishes to."""
    monkeypatch.setenv("CDR_HOME", str(folder / "home"))
    monkeypatch.setenv("CDR_TABLE_RAW", "true")
    monkeypatch.setenv("CDR_PAGE_SIZE", "4KiB")
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "1KiB")
    monkeypatch.setenv("CDR_MEMORY_BUDGET", "8KiB")
    monkeypatch.setenv("CDR_FAULTS", "drain.page=sleep:0.006")
    for module in ("LISTEN_SECONDS", "LISTEN_SECONDS_AFAR"):
        monkeypatch.setattr(task, module, 0.005)
    monkeypatch.setenv("CDR_COMMIT", "per-checkpoint" if case.per_checkpoint else "at-end")
    monkeypatch.setenv("CDR_CHECKPOINT_INTERVAL", "10ms" if case.busy else "0")
    if case.postgres:
        monkeypatch.setenv("CDR_DATABASE_URL", request.getfixturevalue("postgres").create())
    if not case.s3:
        return ParquetTarget(folder)
    bucket: Bucket = request.getfixturevalue("bucket")
    monkeypatch.setenv("CDR_WORKSPACE", bucket.uri())
    monkeypatch.setenv("CDR_SCRATCH", str(folder / "scratch"))
    return S3Target(bucket)


def show_it_was_that_case(case: Case, repository: Repository, recovery: str, target: Target) -> None:
    taken = sum(row.state in COMPLETE for row in repository.checkpoints(recovery))
    assert (taken > 1) == case.busy, "every way ends with one recovery checkpoint; only a busy one has others"
    assert (target.commits() > 1) == (case.busy and case.per_checkpoint)
    assert repository.recovery(recovery).workspace.startswith("s3://") == case.s3


@pytest.mark.seed("004-01", "004-27")
@pytest.mark.parametrize("case", [pytest.param(case, id=str(case), marks=case.marks()) for case in EVERY])
def test_rows_and_watermark_are_the_same(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Compared with what is in the checkpoint, so with each other."""
    folder = tmp_path / "case"
    folder.mkdir()
    source = make_source(tmp_path / "chk-1")
    target = settle(case, folder, monkeypatch, request)
    where = request.getfixturevalue("bucket").upload(Path(source)) if case.s3 else source
    wish = RecoveryRequest(where, SPEC.format(partitioner="rebalance"), "slow=3,gen=2", target.name)
    repository, recovery, settings = inline.start(wish)
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN):
        inline.run(repository, recovery, phase, settings, inline.ThreadedWorkers())
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    show_it_was_that_case(case, repository, recovery, target)
    repository.close()
    rows = sorted(target.rows(), key=place)
    assert [(place(row), row["ts"], row["main"]["f0"], row["raw"]) for row in rows] == list(expected())
    assert target.properties()["cdr.watermark"] == WATERMARK
