"""Spill sets that are damaged or gone: made again by the drain, and nothing of the old or the new outlives DONE."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdr_core.metadata import Phase, RecoveryCheckpointState, SpillSetState
from cdr_core.phases import commit, drain
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime.driver import PhaseRun
from cdr_core.runtime.unit_runner import run_unit
from cdr_core.spill.reservations import LEDGER
from tests.support import draining, inline, output
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.comparing import compare
from tests.support.draining import Started, make_slow

Case = tuple[Started, FixtureCheckpoint, Path]


@pytest.fixture
def interval() -> str:
    """How often the drain takes recovery checkpoints by itself."""
    return "20ms"


@pytest.fixture
def spilled(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: str
) -> Iterator[Case]:
    """A recovery that is ready to be drained, its sets in a memory tier."""
    make_slow(monkeypatch)
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tmp_path / 'shm'}:100MB")
    monkeypatch.setenv("CDR_SPILL_FILE_SIZE", "16KiB")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}", interval)
    started = draining.spilled(request)
    yield started, checkpoint, tmp_path
    started[0].close()


def hurt(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    if how == "flipped":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif how == "truncated":
        file.write_bytes(data[: len(data) // 2])
    elif how == "deleted":
        file.unlink()
    else:
        shutil.rmtree(file.parent)


def spill_files(case: Case) -> list[Path]:
    (_, recovery, settings), _, root = case
    homes = [root / "shm" / recovery, Path(settings.workspace) / recovery]
    return [path for home in homes for path in home.glob("e*/*/set-*/*")]


def held(root: Path) -> dict[str, int]:
    """Bytes that the tier's ledger counts, by recovery."""
    return {recovery: size for recovery, _, size in json.loads((root / "shm" / LEDGER).read_text())["held"] if size}


@pytest.mark.seed("000-11", "E19", "E23")
@pytest.mark.parametrize("how", ["flipped", "truncated", "deleted", "directory"])
def test_a_damaged_file_of_a_set_is_noticed_and_nothing_of_it_outlives_the_commit(spilled: Case, how: str) -> None:
    """The set is made again; after DONE the tier is empty and its room is free."""
    (repository, recovery, settings), checkpoint, root = spilled
    broken = repository.spill_sets(recovery)[0]
    hurt(Path(broken.files[1].path), how)
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    states = {each.id: each.state for each in repository.spill_sets(recovery)}
    assert sorted(states.values()) == ["LOST", "SEALED", "SEALED"], "one was made again"
    assert states[broken.id] is SpillSetState.LOST
    gone = Path(broken.manifest).parent.name
    assert gone not in {path.parent.name for path in spill_files(spilled)}, "the drain's end needs no lost set"
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    assert spill_files(spilled) == []
    assert held(root) == {}
    compare(output.rows(root / "out"), checkpoint, 2)


@pytest.mark.seed("002-03", "E23")
@pytest.mark.parametrize("how", ["flipped", "truncated", "deleted", "of another subtask"])
def test_a_set_without_a_sound_manifest_is_made_again(spilled: Case, how: str) -> None:
    """Neither part of an index nor another subtask's set is drained."""
    (repository, recovery, settings), checkpoint, root = spilled
    broken, other = (Path(each.manifest) for each in repository.spill_sets(recovery))
    if how == "of another subtask":
        shutil.copy(other, broken)
    else:
        hurt(broken, how)
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    lost = [each.manifest for each in repository.spill_sets(recovery) if each.state is SpillSetState.LOST]
    assert lost == [str(broken)]
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    compare(output.rows(root / "out"), checkpoint, 2)


@pytest.mark.seed("E31")
@pytest.mark.parametrize("interval", ["1h"])
def test_a_lost_set_stays_while_a_checkpoint_that_a_user_asked_for_holds_it(
    spilled: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut before the loss was noticed and does not expire; with the commit its sets go as well."""
    (repository, recovery, settings), checkpoint, root = spilled
    monkeypatch.setattr("cdr_core.runtime.driver.HEARTBEAT_SECONDS", -1.0)
    monkeypatch.setenv("CDR_FAULTS", "drain.page=sleep:0.02")
    repository.request(recovery, "checkpoint", {"aligned_timeout": None})
    killed = draining.drain_in_child(recovery, "checkpoint.completed=kill", inline.ThreadedWorkers(1))
    assert draining.exit_status(killed) == -9
    (kept,) = [row for row in repository.checkpoints(recovery) if row.state is RecoveryCheckpointState.COMPLETED]
    for each in repository.spill_sets(recovery):
        hurt(Path(each.files[-1].path), "flipped")
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    lost = [each for each in repository.spill_sets(recovery) if each.state is SpillSetState.LOST]
    assert lost
    for each in lost:
        assert f"checkpoint-{kept.checkpoint_id}" in {grant.holder for grant in each.grants if grant.live}
        assert all(Path(file.path).exists() for file in each.files)
    inline.run(repository, recovery, Phase.COMMIT, settings)
    assert spill_files(spilled) == []
    assert held(root) == {}
    compare(output.rows(root / "out"), checkpoint, 2)


class Twice(inline.ThreadedWorkers):
    """As Spark does: a task that failed is run again within the attempt."""

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        for unit in units:
            try:
                run_unit(payload, unit, 0)
            except OSError:
                run_unit(payload, unit, 0)
            on_poll()


@pytest.mark.seed("000-14", "E18")
@pytest.mark.parametrize("phase", [Phase.SPILL, Phase.DRAIN])
def test_what_a_task_left_that_was_run_again_in_a_good_attempt_goes_with_the_next_phase(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    """No attempt failed, and yet a set is there that no row names; it must not fill the memory tier."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tmp_path / 'shm'}:100MB")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}")
    repository, recovery, settings = inline.start(request)
    for before in list(Phase)[: list(Phase).index(phase)]:
        inline.run(repository, recovery, before, settings)
    if phase is Phase.DRAIN:
        hurt(Path(repository.spill_sets(recovery)[0].files[0].path), "deleted")
    step = "spill.before-result" if phase is Phase.SPILL else "drain.prepared"
    monkeypatch.setenv("CDR_FAULTS", f"{step}=once:{tmp_path / 'failed'}:raise")
    inline.run(repository, recovery, phase, settings, Twice())
    assert (tmp_path / "failed").exists()
    case = (repository, recovery, settings), checkpoint, tmp_path
    sets = {Path(each.manifest).parent.name for each in repository.spill_sets(recovery)}
    forgotten = {path.parent.name for path in spill_files(case)} - sets
    assert len(forgotten) == 1, "the set of the task that failed"
    seen: list[set[str]] = []
    successor = phase.successor
    assert successor is not None
    module = drain if successor is Phase.DRAIN else commit
    real = module.PHASE.prepare

    def noted(drive: PhaseRun) -> Any:
        seen.append({path.parent.name for path in spill_files(case)})
        return real(drive)

    monkeypatch.setattr(module, "PHASE", replace(module.PHASE, prepare=noted))
    for after in list(Phase)[list(Phase).index(successor) :]:
        inline.run(repository, recovery, after, settings)
    assert not seen[0] & forgotten
    assert spill_files(case) == []
    assert held(tmp_path) == {}
    compare(output.rows(tmp_path / "out"), checkpoint, 2)
    repository.close()


class Twins(inline.InlineWorkers):
    """As with speculation, which Spark has on clusters only: every unit runs twice at once, and both run to the end."""

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        for unit in units:
            with ThreadPoolExecutor(2) as pool:
                twins = [pool.submit(run_unit, payload, unit, number) for number in range(2)]
            failed = [error for twin in twins if (error := twin.exception()) is not None]
            assert len(failed) < 2, failed
            on_poll()


@pytest.mark.seed("E18")
def test_every_unit_run_twice_at_once_publishes_each_record_once_and_leaves_nothing(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first manifest of a unit counts; what its twin made is swept with the next phase."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tmp_path / 'shm'}:100MB")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}")
    repository, recovery, settings = inline.start(request)
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
        inline.run(repository, recovery, phase, settings, Twins())
    case = (repository, recovery, settings), checkpoint, tmp_path
    made = {path.parent.name for path in spill_files(case)}
    assert len(made) == 2 * len(repository.spill_sets(recovery)), "each unit made two sets"
    inline.run(repository, recovery, Phase.DRAIN, settings, Twins())
    assert {path.parent.name for path in spill_files(case)} == {
        Path(each.manifest).parent.name for each in repository.spill_sets(recovery)
    }
    inline.run(repository, recovery, Phase.COMMIT, settings, Twins())
    assert spill_files(case) == []
    assert held(tmp_path) == {}
    compare(output.rows(tmp_path / "out"), checkpoint, 2)
    repository.close()
