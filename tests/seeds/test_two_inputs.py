"""Two inputs through the real phases: a reader that wants one of them first, an end that must wait, memory."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from cdr_core.drain.pages import Page
from cdr_core.drain.subtask import RecoveringSubtask
from cdr_core.errors import PhaseRefused
from cdr_core.metadata import Phase, PhaseState, RecoveryState, Repository
from cdr_core.phases.draining import task
from cdr_core.phases.request import RecoveryRequest
from cdr_core.settings import Settings
from tests.seeds.expected import Place, Record, compare, records_of
from tests.seeds.seven_to_two import SPEC
from tests.seeds.waiting import draining, wait_for_checkpoints
from tests.support import inline, output
from tests.support.busy import contention
from tests.support.generated import generated

NEW = 2
RUNS = int(os.environ.get("TWO_INPUT_RUNS", "3"))
"""Through the real phases, for each setting; docs/seeds.md has the command for 75."""
Spilled = tuple[Repository, str, Settings]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDR_PAGE_SIZE", "4KiB")
    monkeypatch.setenv("CDR_MEMORY_BUDGET", "4KiB")
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "512")
    monkeypatch.setattr(task, "LISTEN_SECONDS", 0.005)


@pytest.fixture(scope="module")
def two_inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[Place, Record]]:
    """A checkpoint of parallelism 7 with two keyed inputs, and what is in it."""
    path = generated(tmp_path_factory.mktemp("two") / "chk", "7", "60kB", spec=SPEC.read_text())
    return path, records_of(path, str(SPEC))


def spilled(source: str, spec: str, to: Path) -> Spilled:
    started = inline.start(RecoveryRequest(source, spec, str(NEW), f"parquet:{to}", "10ms"))
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
        inline.run(started[0], started[1], phase, started[2])
    return started


class InputOneFirst(RecoveringSubtask):
    """What a task with a selective reader does: nothing of input 0 as long as input 1 is in recovery."""

    def poll(self, timeout: float = 0.0, gates: Collection[int] | None = None) -> Page | None:
        del gates
        page = super().poll(timeout, None if self.is_live(1) else {1})
        assert page is None or page.gate == 1 or self.is_live(1)
        return page


@pytest.mark.timeout(300 + 30 * RUNS)
@pytest.mark.parametrize("checkpoints", ["true", "false"])
def test_a_task_that_reads_one_input_first_drains_both(
    two_inputs: tuple[str, dict[Place, Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: str
) -> None:
    """002-50, 002-09, 002-33, 002-34, E24: with a single page and every core busy, whether or not it can be cut."""
    monkeypatch.setattr(task, "RecoveringSubtask", InputOneFirst)
    monkeypatch.setenv("CDR_CHECKPOINT_DURING_RECOVERY", checkpoints)
    source, records = two_inputs
    with contention():
        for number in range(RUNS):
            to = tmp_path / f"out-{number}"
            repository, recovery, settings = spilled(source, str(SPEC), to)
            inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
            inline.run(repository, recovery, Phase.COMMIT, settings)
            assert compare(output.rows(to), records, NEW).is_exact
            assert (len(repository.checkpoints(recovery)) > 1) == (checkpoints == "true")
            repository.close()


def test_inputs_that_ended_before_the_drain_began_do_not_end_the_recovery(
    two_inputs: tuple[str, dict[Place, Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """002-30, 002-31, E25: no live input follows in a recovery; it is over when the last record is, not sooner."""
    monkeypatch.setenv("CDR_FAULTS", "drain.page=sleep:0.01")
    source, records = two_inputs
    repository, recovery, settings = spilled(source, str(SPEC), tmp_path / "out")
    with draining(recovery) as child:
        wait_for_checkpoints(repository, recovery, 1)
        with pytest.raises(PhaseRefused, match="drain is not done"):
            inline.run(repository, recovery, Phase.COMMIT, settings)
        assert repository.recovery(recovery).state is RecoveryState.DRAINING
        assert {row.name: row.state for row in repository.phases(recovery)}[Phase.DRAIN] is PhaseState.RUNNING
        assert output.manifest(tmp_path / "out") is None
        assert child.wait() == 0, "a commit that is refused does not disturb the drain"
    inline.run(repository, recovery, Phase.COMMIT, settings)
    assert compare(output.rows(tmp_path / "out"), records, NEW).is_exact
    repository.close()
