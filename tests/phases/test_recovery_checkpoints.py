"""Recovery checkpoints of a real drain: taken while it runs, complete in themselves, and where a dead drain goes on."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cdr_core import settings as settings_module
from cdr_core.checkpoint_target.export import export_checkpoint
from cdr_core.drain.checkpoint_cuts import read_cuts
from cdr_core.errors import CheckpointsFailed
from cdr_core.metadata import CommandState, Phase, RecoveryCheckpointState, SpillSetState
from cdr_core.phases import spill
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime.driver import PhaseRun
from cdr_core.runtime.unit_runner import load_plan, run_unit
from tests.support import draining, inline, output
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.comparing import compare
from tests.support.draining import Started, make_slow

COMPLETED, EXPIRED = RecoveryCheckpointState.COMPLETED, RecoveryCheckpointState.EXPIRED
COMPLETE = {COMPLETED, EXPIRED}


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages, few of them, and a consumer that takes its time: a drain long enough to be cut."""
    make_slow(monkeypatch)


@pytest.fixture
def spilled(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, slow: None
) -> Iterator[tuple[Started, FixtureCheckpoint, Path]]:
    """A recovery that is ready to be drained."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    out = tmp_path / "out"
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{out}", "20ms")
    started = draining.spilled(request)
    yield started, checkpoint, out
    started[0].close()


def drain(started: Started, workers: inline.InlineWorkers | None = None) -> dict[str, Any]:
    repository, recovery, settings = started
    return dict(inline.run(repository, recovery, Phase.DRAIN, settings, workers or inline.ThreadedWorkers()))


def prepared_files(started: Started) -> list[str]:
    """The paths that the rows of prepared output name."""
    rows = started[0].prepared(started[1])
    return [file["path"] for row in rows for file in json.loads(row.manifest)["files"]]


def commit(started: Started) -> None:
    repository, recovery, settings = started
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"


def test_checkpoints_complete_while_the_drain_runs_and_the_result_is_the_same(
    spilled: tuple[Started, FixtureCheckpoint, Path],
) -> None:
    """002-29, 003-02: cuts at many instants; every record once, in order, at its owner."""
    started, checkpoint, out = spilled
    drain(started)
    states = [row.state for row in started[0].checkpoints(started[1])]
    assert len([state for state in states if state in COMPLETE]) >= 3, states
    assert states[-1] is COMPLETED, "the end of the drain completes the last one"
    entries = started[0].prepared(started[1])
    numbers = {entry.checkpoint_id for entry in entries}
    assert {(e.subtask, e.checkpoint_id) for e in entries} == {(s, n) for s in (0, 1) for n in numbers}
    commit(started)
    compare(output.rows(out), checkpoint, 2)


def test_only_the_last_checkpoints_are_kept(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    started, _, _ = spilled
    drain(started)
    rows = started[0].checkpoints(started[1])
    assert [row.checkpoint_id for row in rows if row.state is COMPLETED] == [rows[-1].checkpoint_id]
    held = {grant.holder for each in started[0].spill_sets(started[1]) for grant in each.grants if grant.live}
    assert f"checkpoint-{rows[-1].checkpoint_id}" in held
    assert not any(holder == f"checkpoint-{rows[0].checkpoint_id}" for holder in held)


def test_a_drain_that_dies_goes_on_from_the_last_complete_checkpoint(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """E20, E21, E29: what a complete checkpoint holds is not drained again; the output is the same."""
    started, checkpoint, out = spilled
    repository, recovery, _ = started
    assert (
        draining.exit_status(draining.drain_in_child(recovery, "drain.before-result=kill", inline.ThreadedWorkers(1)))
        == -9
    )
    complete = [row for row in repository.checkpoints(recovery) if row.state is COMPLETED]
    assert complete, "the drain was killed before its first checkpoint"
    before = set(prepared_files(started))
    assert not repository.units(recovery, Phase.DRAIN)
    drain(started)
    results = {int(unit.result["subtask"]): unit.result for unit in repository.units(recovery, Phase.DRAIN)}
    resumed = [result for result in results.values() if result["resumed_from"] != "start"]
    assert resumed, "at least one subtask was under way"
    units = {int(unit.result["subtask"]): unit.records for unit in repository.units(recovery, Phase.DRAIN)}
    for result in resumed:
        assert 0 < result["records_here"] < units[result["subtask"]]
    assert before
    assert before <= set(prepared_files(started))
    commit(started)
    compare(output.rows(out), checkpoint, 2)


def test_what_was_prepared_after_the_last_complete_checkpoint_is_never_published(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """004-24, I6: files that a dead attempt closed after the last complete checkpoint would double its rows."""
    # Also on busy cores both subtasks have drained something when the first checkpoint is asked for, and not all.
    monkeypatch.setenv("CDR_FAULTS", "drain.page=sleep:0.02")
    checkpoint, out = fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out"
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{out}", "500ms")
    started = draining.spilled(request)
    repository, recovery, _ = started
    assert draining.exit_status(draining.drain_in_child(recovery, "drain.snapshot=kill")) == -9
    written = {path.name for path in (out / "data" / recovery).glob("*.parquet")}
    stale = written - {Path(path).name for path in prepared_files(started)}
    assert stale, "the dead attempt prepared something that no checkpoint holds"
    drain(started)
    commit(started)
    assert not stale & {Path(path).name for path in prepared_files(started)}
    compare(output.rows(out), checkpoint, 2)
    repository.close()


def test_a_spill_set_that_is_lost_is_made_again_and_drained(
    spilled: tuple[Started, FixtureCheckpoint, Path],
) -> None:
    """E19, E23: the spill is a cache, the checkpoint is the truth."""
    started, checkpoint, out = spilled
    sets = started[0].spill_sets(started[1])
    shutil.rmtree(Path(sets[0].manifest).parent)
    damaged = Path(sets[1].files[0].path)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    drain(started)
    states = [each.state for each in started[0].spill_sets(started[1])]
    assert sorted(states) == ["LOST", "LOST", "SEALED", "SEALED"], "both were made again"
    commit(started)
    compare(output.rows(out), checkpoint, 2)


@pytest.mark.parametrize("hurt", ["flipped", "shortened", "gone"])
def test_damaged_positions_of_records_are_noticed_and_the_set_is_made_again(
    spilled: tuple[Started, FixtureCheckpoint, Path], hurt: str
) -> None:
    """E23: a table keeps a record's position, and only the set's index, which is in its manifest, knows it."""
    started, checkpoint, out = spilled
    sets = started[0].spill_sets(started[1])
    manifest = Path(sets[0].manifest)
    data = bytearray(manifest.read_bytes())
    data[len(data) // 2] ^= 1
    manifest.write_bytes(data if hurt == "flipped" else data[:-8])
    if hurt == "gone":
        manifest.unlink()
    drain(started)
    states = [each.state for each in started[0].spill_sets(started[1])]
    assert sorted(states) == ["LOST", "SEALED", "SEALED"], "one was made again"
    commit(started)
    compare(output.rows(out), checkpoint, 2)


class Impatient(inline.ThreadedWorkers):
    """As Spark does: a task that failed is run again, here once the driver has noticed what the first try made."""

    def __init__(self, noticed: Callable[[], bool], between: Callable[[], None]) -> None:
        super().__init__()
        self._noticed, self._between = noticed, between

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        def twice(unit: str) -> None:
            try:
                run_unit(payload, unit, 0)
            except OSError:
                while not self._noticed():
                    time.sleep(0.01)
                self._between()
                run_unit(payload, unit, 0)

        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(twice, unit) for unit in units]
            while not all(job.done() for job in jobs):
                on_poll()
                time.sleep(0.01)
        on_poll()
        for job in jobs:
            job.result()


def test_a_set_that_was_made_again_can_be_made_again_in_the_same_attempt(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E19, E18: the task that made it dies after a cut; its successor finds the first set lost as well."""
    checkpoint, out = fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out"
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "1", f"parquet:{out}", "20ms")
    started = repository, recovery, settings = draining.spilled(request)
    shutil.rmtree(Path(repository.spill_sets(recovery)[0].manifest).parent)
    monkeypatch.setenv("CDR_FAULTS", f"{os.environ['CDR_FAULTS']},drain.snapshot=once:{tmp_path / 'failed'}:raise")
    made: list[str] = []
    real = spill.execute

    def noted(*arguments: Any) -> Any:
        outcome = real(*arguments)
        made.append(outcome.result.manifest)
        return outcome

    monkeypatch.setattr(spill, "execute", noted)

    def noticed() -> bool:
        return any(each.manifest in made for each in repository.spill_sets(recovery))

    def lose_again() -> None:
        shutil.rmtree(Path(made[0]).parent)

    inline.run(repository, recovery, Phase.DRAIN, settings, Impatient(noticed, lose_again))
    assert len(made) == 2, "once by the task that died, once by its successor"
    (sealed,) = [each for each in repository.spill_sets(recovery) if each.state is SpillSetState.SEALED]
    assert sealed.manifest == made[1]
    assert {Path(file.path).parent.name for file in sealed.files} == {Path(made[1]).parent.name}
    commit(started)
    compare(output.rows(out), checkpoint, 1)
    repository.close()


def test_a_user_gets_a_checkpoint_of_a_running_drain_and_it_is_kept(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started, _, _ = spilled
    repository, recovery, _ = started
    monkeypatch.setattr("cdr_core.runtime.driver.HEARTBEAT_SECONDS", 0.02)
    command = repository.request(recovery, "checkpoint", {"aligned_timeout": None})
    drain(started)
    answered = next(each for each in repository.commands(recovery) if each.id == command.id)
    assert answered.state is CommandState.DONE
    number = (answered.answer or {})["checkpoint"]
    row = next(row for row in repository.checkpoints(recovery) if row.checkpoint_id == number)
    assert row.state is COMPLETED, "what a user asked for does not expire"


def test_too_many_failed_checkpoints_fail_the_attempt_and_the_next_one_goes_on(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """002-41: counted failures are bounded; the recovery itself is not lost."""
    started, checkpoint, out = spilled
    monkeypatch.setenv("CDR_CHECKPOINT_TIMEOUT", "0s")
    monkeypatch.setenv("CDR_TOLERABLE_FAILED_CHECKPOINTS", "1")
    impatient = settings_module.load()
    with monkeypatch.context() as patched:
        patched.setenv("CDR_FAULTS", f"{os.environ['CDR_FAULTS']},checkpoint.manifest=raise")
        with pytest.raises(CheckpointsFailed):
            drain((started[0], started[1], impatient))
    rows = started[0].checkpoints(started[1])
    aborted = [row.reason for row in rows if row.state is RecoveryCheckpointState.ABORTED]
    assert len(aborted) == 2
    assert all("its manifest could not be written: fault injected" in str(reason) for reason in aborted)
    drain(started)
    commit(started)
    compare(output.rows(out), checkpoint, 2)


def test_without_checkpoints_during_recovery_nothing_is_cut_before_the_end(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    started, checkpoint, out = spilled
    monkeypatch.setenv("CDR_CHECKPOINT_DURING_RECOVERY", "false")
    drain((started[0], started[1], settings_module.load()))
    assert [row.checkpoint_id for row in started[0].checkpoints(started[1])] == [1]
    commit(started)
    compare(output.rows(out), checkpoint, 2)


@pytest.mark.parametrize("again", ["1", "3", "5"])
def test_an_exported_checkpoint_needs_neither_the_source_nor_the_spill(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, slow: None, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E34, 001-17: recovery of a recovered checkpoint, at another parallelism again."""
    original = fixture_checkpoint("a_p3_thr0", 2)
    source = original.copy(tmp_path / "source")
    request = RecoveryRequest(str(source), str(original.spec), "2", f"parquet:{tmp_path / 'out'}", "20ms")
    repository, recovery, settings = inline.start(request)
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN):
        inline.run(repository, recovery, phase, settings, inline.ThreadedWorkers())
    number = repository.checkpoints(recovery)[-1].checkpoint_id
    exported = export_checkpoint(repository, recovery, number, str(tmp_path / "exported"))
    assert exported.records == 1878
    shutil.rmtree(tmp_path / "source")
    shutil.rmtree(settings.workspace)
    monkeypatch.delenv("CDR_FAULTS")
    second = RecoveryRequest(str(tmp_path / "exported"), str(original.spec), again, f"parquet:{tmp_path / 'second'}")
    repository, recovery, settings = inline.start(second)
    assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"
    rows = output.rows(tmp_path / "second")
    wanted = sorted((e.key, e.gen, e.seq, e.ts, e.owner(int(again))) for e in original.oracle.records)
    got = sorted((*list(row["main"].values())[:3], row["ts"], row["new_down"]) for row in rows)
    assert got == wanted


def test_spill_files_live_as_long_as_a_checkpoint_needs_them_and_go_with_the_commit(
    spilled: tuple[Started, FixtureCheckpoint, Path],
) -> None:
    """000-11, 000-13: the last recovery checkpoint holds them after the drain; publishing lets go of everything."""
    started, checkpoint, out = spilled
    repository, recovery, _ = started
    files = [Path(file.path) for each in repository.spill_sets(recovery) for file in each.files]
    drain(started)
    assert files
    assert all(file.is_file() for file in files)
    (row,) = [row for row in repository.checkpoints(recovery) if row.state is COMPLETED]
    grants = [grant for each in repository.spill_sets(recovery) for grant in each.grants]
    assert {(grant.holder, grant.durable) for grant in grants} == {(f"checkpoint-{row.checkpoint_id}", True)}
    commit(started)
    assert not any(file.exists() for file in files)
    assert {each.state for each in repository.spill_sets(recovery)} == {SpillSetState.RELEASED}
    assert COMPLETED not in {row.state for row in repository.checkpoints(recovery)}
    compare(output.rows(out), checkpoint, 2)


def test_a_new_attempt_removes_what_a_dead_one_left(
    spilled: tuple[Started, FixtureCheckpoint, Path], tmp_path: Path
) -> None:
    """000-14: files of the dead epoch that no row names are gone, everything that counts stays."""
    started, checkpoint, out = spilled
    repository, recovery, settings = started
    assert draining.exit_status(draining.drain_in_child(recovery, "checkpoint.manifest=kill")) == -9
    dead = Path(settings.workspace) / recovery / f"e{repository.recovery(recovery).epoch}"
    assert list(dead.rglob("*.json"))
    drain(started)
    assert not [path for path in dead.rglob("*") if path.is_file()]
    commit(started)
    compare(output.rows(out), checkpoint, 2)


def test_output_of_a_finished_subtask_is_in_every_later_checkpoint_once(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are asked for when the first subtask is finished: both hold its files, and they are published once."""
    checkpoint, out = fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out"
    started = draining.spilled(RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{out}"))
    repository, recovery, _ = started
    monkeypatch.setattr("cdr_core.runtime.driver.HEARTBEAT_SECONDS", -1.0)
    for aligned in (None, 0.0):
        repository.request(recovery, "checkpoint", {"aligned_timeout": aligned})
    drain(started, inline.InlineWorkers())
    assert [row.state for row in repository.checkpoints(recovery)] == [COMPLETED] * 3
    plan = load_plan(repository.recovery(recovery).plan_uri or "")
    cuts = [read_cuts(row, plan)[0] for row in repository.checkpoints(recovery)]
    assert len({tuple(file.path for file in cut.files) for cut in cuts}) == 1
    assert cuts[0].final
    named = prepared_files(started)
    assert len(named) == len(set(named)) > 0
    commit(started)
    compare(output.rows(out), checkpoint, 2)


@pytest.mark.parametrize("retained", [2, 4])
def test_as_many_checkpoints_are_kept_as_the_setting_says(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch, retained: int
) -> None:
    started, _, _ = spilled
    monkeypatch.setenv("CDR_RETAINED_CHECKPOINTS", str(retained))
    monkeypatch.setenv("CDR_FAULTS", "drain.page=sleep:0.02")  # also on busy cores there is time for many
    drain((*started[:2], settings_module.load()))
    complete = [row.checkpoint_id for row in started[0].checkpoints(started[1]) if row.state in COMPLETE]
    kept = [row.checkpoint_id for row in started[0].checkpoints(started[1]) if row.state is COMPLETED]
    assert len(complete) > retained, "more were taken than are kept"
    assert kept == complete[-retained:]


def test_a_drain_that_goes_on_makes_lost_sets_again_and_exports_them(
    spilled: tuple[Started, FixtureCheckpoint, Path], tmp_path: Path
) -> None:
    """Its cuts name the lost sets; the ones that took their place have the same bytes."""
    started, checkpoint, out = spilled
    repository, recovery, _ = started
    killed = draining.drain_in_child(recovery, "drain.before-result=kill", inline.ThreadedWorkers(1))
    assert draining.exit_status(killed) == -9
    assert [row for row in repository.checkpoints(recovery) if row.state is COMPLETED]
    for each in repository.spill_sets(recovery):
        shutil.rmtree(Path(each.manifest).parent)
    drain(started, inline.ThreadedWorkers(1))
    last = repository.checkpoints(recovery)[-1].checkpoint_id
    assert export_checkpoint(repository, recovery, last, str(tmp_path / "exported")).records == 1878
    commit(started)
    compare(output.rows(out), checkpoint, 2)
