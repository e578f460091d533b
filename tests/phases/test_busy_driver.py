"""Drivers that have no time, or none left: users of a drain are heard while it is busy, and told when nobody hears."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cdr_core.errors import Cancelled
from cdr_core.metadata import Phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime.driver import run_phase
from cdr_core.runtime.phase_command import own_runner
from tests.phases.asking import Poll, Script, answer, ask, drain, shell
from tests.support import draining
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.draining import Started, make_slow


class Clock:
    """What the driver takes for :mod:`time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def finishing(clock: Clock) -> Script:
    """A unit ends every second, so that the driver is never idle for as long as its heartbeat."""

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        for unit in units:
            workers.run_unit(unit)
            clock.now += 1.0
            poll()

    return Script(script)


@pytest.fixture
def many(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Started, Script]]:
    """A recovery to eight subtasks that is ready to be drained, and workers that finish one after another."""
    make_slow(monkeypatch, "")
    clock, checkpoint = Clock(), fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "8", f"parquet:{tmp_path / 'out'}", "0s")
    started = draining.spilled(request)
    monkeypatch.setattr("cdr_core.runtime.driver.time", clock)
    monkeypatch.setattr("cdr_core.runtime.driver.HEARTBEAT_SECONDS", 2.0)
    yield started, finishing(clock)
    started[0].close()


@pytest.mark.seed("E26")
def test_a_checkpoint_is_taken_also_while_subtask_after_subtask_ends(many: tuple[Started, Script]) -> None:
    """A driver that has always something to record hears its users all the same."""
    started, workers = many
    command = ask(started)
    drain(started, workers)
    taken, last = started[0].checkpoints(started[1])
    assert (answer(started, command).answer or {})["checkpoint"] == taken.checkpoint_id < last.checkpoint_id


def test_a_recovery_is_cancelled_also_while_subtask_after_subtask_ends(many: tuple[Started, Script]) -> None:
    started, workers = many
    repository, recovery, settings = started
    attempt = repository.begin_attempt(recovery, Phase.DRAIN, own_runner("drain"))
    assert attempt is not None
    repository.cancel(recovery)
    with pytest.raises(Cancelled):
        run_phase(repository, recovery, Phase.DRAIN, attempt.epoch, settings, workers, lambda _: None)
    assert 0 < len(repository.units(recovery, Phase.DRAIN)) < 8


def test_the_shell_says_that_it_waits_for_a_drain_that_may_be_dead(
    many: tuple[Started, Script], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A driver that was killed leaves a row that says RUNNING: whoever asks is told what to do, long before the end."""
    repository, recovery, _ = many[0]
    assert repository.begin_attempt(recovery, Phase.DRAIN, own_runner("drain")) is not None
    monkeypatch.setenv("CDR_CHECKPOINT_TIMEOUT", "0s")
    monkeypatch.setattr("cdr_core.cli.checkpoint.SILENT_SECONDS", 0.1)
    monkeypatch.setattr("cdr_core.cli.checkpoint.GRACE_SECONDS", 1.0)
    code, said = shell(monkeypatch, capsys, "checkpoint", recovery)
    waits, answer = said.splitlines()
    assert code == 1
    assert waits == f"cdr: no answer yet, waiting up to 1 s; if its driver is dead: cdr resume {recovery}"
    assert answer.startswith(f"cdr: no driver answered for recovery {recovery} in 1 s")
