"""kill -9 at every step of one pass: the next attempt does what is missing, and each record arrives once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdr_core.errors import CdrError
from cdr_core.metadata import AttemptState, Phase, Repository
from cdr_core.phases.onepass.driver import PASSED
from cdr_core.settings import Settings, load
from tests.phases.test_thread import compare
from tests.support import inline, output
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.onepass import one_pass, request, set_flags, set_small, spilled_files

Started = tuple[Repository, str, Settings]
IN_A_TASK = ("unit", "page", "spilled", "read-done", "drain", "prepared", "before-result", "after-result")
IN_THE_DRIVER = ("before-record", "after-record")
STEPS = [f"onepass.{step}" for step in (*IN_A_TASK, *IN_THE_DRIVER)]
STEPS += [f"onepass.{phase}.{step}" for phase in PASSED for step in ("before-done", "after-done")]


class Victim:
    """One pass in a child process that can be killed or stopped."""

    def __init__(self, recovery: str, faults: str, log: Path) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            os.environ["CDR_FAULTS"], os.environ["CDR_FAULTS_LOG"] = faults, str(log)
            code = 70
            try:
                settings = load()
                with Repository.open(settings.database_url) as repository:
                    one_pass(repository, recovery, settings)
                code = 0
            except CdrError as error:
                code = error.exit_code
            finally:
                os._exit(code)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def checkpoint(fixture_checkpoint: FixtureCheckpoints) -> FixtureCheckpoint:
    return fixture_checkpoint("a_p3_thr0", 2)


@pytest.fixture
def started(checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """A recovery that will spill, because its queue is small."""
    set_flags(monkeypatch, tmp_path / "spill")
    set_small(monkeypatch, 2)
    wish = request(str(checkpoint.path), str(checkpoint.spec), "2", tmp_path / "out", one_pass=True)
    repository, recovery, settings = inline.start(wish)
    yield repository, recovery, settings
    repository.close()


def finish(started: Started, checkpoint: FixtureCheckpoint, tmp_path: Path) -> list[str]:
    """Run it again to the end; the units that were done now."""
    repository, recovery, settings = started
    workers = inline.InlineWorkers()
    one_pass(repository, recovery, settings, workers)
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    rows = output.rows(tmp_path / "out")
    compare(rows, checkpoint, 2)
    assert spilled_files(tmp_path / "spill") == []
    assert not list(Path(repository.recovery(recovery).workspace).rglob("set-*"))
    return workers.done


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_and_run_again_each_record_is_there_once(
    started: Started, checkpoint: FixtureCheckpoint, tmp_path: Path, step: str
) -> None:
    """000-11, 000-14, E18: spill files of the dead attempt are gone too; subtasks with a row are not done again."""
    repository, recovery, _ = started
    assert Victim(recovery, f"{step}=kill", tmp_path / "fired").wait() == -signal.SIGKILL
    assert (tmp_path / "fired").read_text() == f"{step} kill\n"
    known = {row.unit for row in repository.units(recovery, Phase.READ)}
    done = finish(started, checkpoint, tmp_path)
    assert done == [f"read/{unit}" for unit in ("00000", "00001") if unit not in known]


def test_a_zombie_that_wakes_after_its_successor_finished_changes_nothing(
    started: Started, checkpoint: FixtureCheckpoint, tmp_path: Path
) -> None:
    """E17, E56: it is fenced, whatever it had prepared."""
    repository, recovery, _ = started
    hold = tmp_path / "hold"
    hold.touch()
    zombie = Victim(recovery, f"onepass.before-record=pause:{hold}", tmp_path / "fired")
    deadline = time.monotonic() + 60
    while not (tmp_path / "fired").exists():
        assert time.monotonic() < deadline, "the fault never fired"
        time.sleep(0.02)
    os.kill(zombie.pid, signal.SIGSTOP)
    finish(started, checkpoint, tmp_path)
    hold.unlink()
    os.kill(zombie.pid, signal.SIGCONT)
    assert zombie.wait() == 4
    compare(output.rows(tmp_path / "out"), checkpoint, 2)
    assert AttemptState.FENCED in {attempt.state for attempt in repository.attempts(recovery)}
