"""kill -9 before and after every durable step: the next attempt ends with the same result, each record once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdr_core.metadata import AttemptState, Phase, Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.settings import Settings
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.victim import RECORDS, Victim, assert_each_record_once

EVERY_PHASE = ("unit", "before-result", "after-result", "before-record", "after-record", "before-done", "after-done")
OWN_STEPS = {
    Phase.READ: ("read.plan-written",),
    Phase.SPILL: ("spill.files-durable", "spill.sealed"),
    Phase.DRAIN: ("drain.prepared",),
    Phase.COMMIT: (
        "commit.intent",
        "commit.before-publish",
        "publish.before",
        "publish.after",
        "commit.published",
        "commit.recorded",
    ),
}
STEPS = [(phase, f"{phase}.{step}") for phase in Phase for step in EVERY_PHASE]
STEPS += [(phase, step) for phase, steps in OWN_STEPS.items() for step in steps]


@pytest.fixture
def recovery(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path) -> Iterator[tuple[Repository, str, Settings]]:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}")
    repository, recovery_id, settings = inline.start(request)
    yield repository, recovery_id, settings
    repository.close()


def run_before(recovery: tuple[Repository, str, Settings], phase: Phase) -> None:
    repository, recovery_id, settings = recovery
    for each in Phase:
        if each is phase:
            return
        inline.run(repository, recovery_id, each, settings)


@pytest.mark.parametrize(("phase", "step"), STEPS, ids=[step for _, step in STEPS])
def test_killed_at_any_step_and_run_again_the_result_is_the_same(
    recovery: tuple[Repository, str, Settings], tmp_path: Path, phase: Phase, step: str
) -> None:
    repository, recovery_id, settings = recovery
    run_before(recovery, phase)
    assert Victim(phase, recovery_id, f"{step}=kill", tmp_path / "fired").wait() == -signal.SIGKILL
    assert (tmp_path / "fired").read_text() == f"{step} kill\n"
    result = inline.run_all(repository, recovery_id, settings)
    assert (result["verdict"], result["records"]) == ("balanced", RECORDS)
    assert_each_record_once(tmp_path / "out")
    assert len(list((tmp_path / "out").glob("_cdr/manifest-*"))) == 1


@pytest.mark.parametrize(
    ("phase", "step"),
    [
        (Phase.READ, "read.before-record"),
        (Phase.SPILL, "spill.sealed"),
        (Phase.DRAIN, "drain.prepared"),
        (Phase.COMMIT, "commit.before-publish"),
        (Phase.COMMIT, "publish.before"),
    ],
)
def test_a_zombie_that_wakes_after_its_successor_finished_changes_nothing(
    recovery: tuple[Repository, str, Settings], tmp_path: Path, phase: Phase, step: str
) -> None:
    repository, recovery_id, settings = recovery
    run_before(recovery, phase)
    hold = tmp_path / "hold"
    hold.touch()
    zombie = Victim(phase, recovery_id, f"{step}=pause:{hold}", tmp_path / "fired")
    deadline = time.monotonic() + 30
    while not (tmp_path / "fired").exists():
        assert time.monotonic() < deadline, "the fault never fired"
        time.sleep(0.02)
    os.kill(zombie.pid, signal.SIGSTOP)
    inline.run_all(repository, recovery_id, settings)
    before = sorted(path.name for path in (tmp_path / "out").rglob("*.json"))
    hold.unlink()
    os.kill(zombie.pid, signal.SIGCONT)
    assert zombie.wait() == 4
    assert_each_record_once(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").rglob("*.json")) == before
    assert AttemptState.FENCED in {attempt.state for attempt in repository.attempts(recovery_id)}


@pytest.mark.seed("002-08")
def test_a_failing_step_is_recorded_and_the_next_attempt_succeeds(
    recovery: tuple[Repository, str, Settings], tmp_path: Path
) -> None:
    repository, recovery_id, settings = recovery
    run_before(recovery, Phase.SPILL)
    faults = f"spill.sealed=once:{tmp_path / 'once'}:raise"
    assert Victim(Phase.SPILL, recovery_id, faults, tmp_path / "fired").wait() == 1
    assert "fault injected" in (repository.recovery(recovery_id).error or "")
    inline.run_all(repository, recovery_id, settings)
    assert_each_record_once(tmp_path / "out")
