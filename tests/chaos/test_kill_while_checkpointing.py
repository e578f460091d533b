"""kill -9 and stop at every durable step of a recovery checkpoint: the next attempt publishes each record once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdr_core.metadata import AttemptState, Phase, RecoveryCheckpointState
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.draining import Started, drain_in_child, exit_status, make_slow, spilled
from tests.support.victim import assert_each_record_once

STEPS = (
    "checkpoint.begun",
    "checkpoint.asked",
    "drain.taken-over",
    "drain.cut-prepared",
    "drain.snapshot",
    "checkpoint.manifest",
    "checkpoint.completed",
    "drain.page",
)


@pytest.fixture
def draining(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Started]:
    """A recovery that is ready to be drained, slowly, with a checkpoint every few milliseconds."""
    make_slow(monkeypatch, "drain.page=sleep:0.002")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}", "10ms")
    started = spilled(request)
    yield started
    started[0].close()


def finish(draining: Started, out: Path) -> None:
    repository, recovery, settings = draining
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    assert_each_record_once(out)


@pytest.mark.parametrize("again", [1, 2], ids=["first", "later"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_of_a_checkpoint_and_run_again_the_result_is_the_same(
    draining: Started, tmp_path: Path, step: str, again: int
) -> None:
    """E27, E28, E29, E35, E36, E37: twice, so that the second death happens in an attempt that itself went on."""
    _, recovery, _ = draining
    log = tmp_path / "faults"
    for _ in range(again):
        assert exit_status(drain_in_child(recovery, f"{step}=kill", log=log)) == -signal.SIGKILL
    fired = log.read_text().splitlines()
    assert set(fired) == {f"{step} kill"}
    assert len(fired) >= again, "two subtasks may be there at once, and die of one signal"
    finish(draining, tmp_path / "out")


@pytest.mark.parametrize("step", ["checkpoint.manifest", "checkpoint.asked", "drain.before-record"])
def test_a_drain_that_sleeps_through_its_successor_changes_nothing(
    draining: Started, tmp_path: Path, step: str
) -> None:
    """E17, E38: stopped between writing files and rows; its successor finishes; then it goes on, fenced."""
    repository, recovery, _ = draining
    held, log = tmp_path / "held", tmp_path / "faults"
    held.touch()
    pid = drain_in_child(recovery, f"{step}=pause:{held}", log=log)
    deadline = time.monotonic() + 60
    while not log.exists():
        assert time.monotonic() < deadline, "the fault never fired"
        time.sleep(0.02)
    finish(draining, tmp_path / "out")
    entries = repository.prepared(recovery)
    held.unlink()
    assert exit_status(pid) == 4, "fenced"
    assert repository.prepared(recovery) == entries
    states = {attempt.epoch: attempt.state for attempt in repository.attempts(recovery)}
    assert AttemptState.FENCED in states.values()
    assert repository.checkpoints(recovery)[-1].state is RecoveryCheckpointState.EXPIRED, "published, and let go"
    assert_each_record_once(tmp_path / "out")
