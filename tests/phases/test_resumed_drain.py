"""What a resumed drain still needs: base snapshots beside a sweep, and rows that an earlier version left."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cdr_core import settings as settings_module
from cdr_core.commit.committable import Committable, PreparedFile
from cdr_core.commit.sinks.parquet import ParquetSink
from cdr_core.drain import checkpoint_driver as watch
from cdr_core.drain import checkpoint_store as rows
from cdr_core.drain import publisher
from cdr_core.drain.checkpoint_cuts import read_cuts
from cdr_core.drain.checkpoint_driver import DrainWatch
from cdr_core.drain.drain_state import DrainState
from cdr_core.drain.resume import go_back
from cdr_core.drain.snapshots import START, Cut, Snapshot
from cdr_core.errors import CdrError, JobFailed, StorageError, Unbalanced
from cdr_core.metadata import Phase, RecoveryCheckpointState, SpillSetState
from cdr_core.phases import drain as drain_phase
from cdr_core.runtime.unit_runner import load_plan
from cdr_core.sweep import references, sweep_recovery
from tests.phases.asking import Poll, Script, Spilled, ask, commit_and_compare, drain, states
from tests.support import inline
from tests.support.draining import Started

COMPLETED, EXPIRED = RecoveryCheckpointState.COMPLETED, RecoveryCheckpointState.EXPIRED


class Stopped(Exception):
    """The attempt dies here."""


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Takes a checkpoint that no user asked for, at once."""
    watches: list[DrainWatch] = []
    enter = DrainWatch.__enter__

    def noted(self: DrainWatch) -> DrainWatch:
        watches.append(self)
        return enter(self)

    monkeypatch.setattr(DrainWatch, "__enter__", noted)
    monkeypatch.setattr(watch, "GRACE_SECONDS", 0.0)

    def taken() -> None:
        watches[-1]._trigger(None, None)
        while watches[-1]._checkpoints.pending:
            watches[-1].poll()

    return taken


def set_of(started: Started, subtask: int) -> str:
    return next(each.manifest for each in started[0].spill_sets(started[1]) if each.subtask == subtask)


def die_with_a_base_for_subtask_1(started: Started, take: Callable[[], None]) -> None:
    """An attempt that takes a checkpoint in which a task holds subtask 1, and dies."""

    def script(workers: Script, units: Sequence[str], _: Poll) -> None:
        workers.snapshots.take_over(units[1], 1, "task", partial(Cut, START, set_of(started, 1)))
        take()
        raise Stopped

    with pytest.raises(JobFailed, match="Stopped"):
        drain(started, Script(script))


def test_a_sweep_beside_a_checkpoint_that_expires_keeps_what_the_next_one_needs(
    spilled: Spilled, take: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep has read the rows when the checkpoint that they name expires and its manifest goes."""
    started, _, _ = spilled
    repository, recovery, settings = started
    die_with_a_base_for_subtask_1(started, take)
    raced: list[str] = []

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        take()  # it names the base of subtask 1, which waits for an executor
        real = references._read

        def read(name: str) -> bytes:
            if not raced and "/checkpoints/" in name:
                raced.append(name)
                take()
            return real(name)

        with monkeypatch.context() as patched:
            patched.setattr(references, "_read", read)
            sweep_recovery(repository, recovery, settings)
        for unit in units:
            workers.run_unit(unit)
        poll()

    drain(started, Script(script))
    assert raced
    commit_and_compare(spilled)


def test_a_retried_task_does_not_need_the_base_that_its_predecessor_took_over(
    spilled: Spilled, take: Callable[[], None]
) -> None:
    """Once a checkpoint of this attempt is complete, a sweep may remove the snapshots of the one before."""
    started, _, _ = spilled
    repository, recovery, settings = started
    die_with_a_base_for_subtask_1(started, take)

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        workers.snapshots.take_over(units[1], 1, "task that died", partial(Cut, START, set_of(started, 1)))
        take()
        assert sweep_recovery(repository, recovery, settings).leftovers
        for unit in units:
            workers.run_unit(unit)
        poll()

    drain(started, Script(script))
    commit_and_compare(spilled)


def test_a_request_that_another_checkpoint_subsumes_is_kept(spilled: Spilled, take: Callable[[], None]) -> None:
    """What answers a user's request does not expire, also where the driver took it for a reason of its own."""
    started, _, _ = spilled

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        workers.snapshots.take_over(units[0], 0, "task", partial(Cut, START, set_of(started, 0)))
        ask(started, 50.0)
        poll()
        take()
        take()
        for unit in units:
            workers.run_unit(unit)
        poll()

    drain(started, Script(script))
    assert states(started) == [RecoveryCheckpointState.SUBSUMED, COMPLETED, EXPIRED, COMPLETED]
    commit_and_compare(spilled)


def finish_subtask_0_as_version_0_1(started: Started) -> None:
    """Subtask 0 is finished; the driver answered for it to a checkpoint that never completed, so it has a row."""

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        workers.run_unit(units[0])
        poll()
        raise Stopped

    with pytest.raises(JobFailed, match="Stopped"):
        drain(started, Script(script))
    repository, recovery, _ = started
    (unit,) = repository.units(recovery, Phase.DRAIN)
    files = msgspec.convert(unit.result["files"], tuple[PreparedFile, ...])
    with repository.fenced(recovery, repository.recovery(recovery).epoch) as transaction:
        transaction.begin_checkpoint(1)
        transaction.add_prepared(rows.prepared(Committable(0, 1, files)))
        transaction.abort_checkpoint(1, "not answered in time")


@pytest.mark.parametrize("spilled", ["at-end", "per-checkpoint"], indirect=True)
def test_a_row_of_a_checkpoint_that_never_completed_goes_with_the_next(spilled: Spilled) -> None:
    """What 0.1.0 prepared for a finished subtask is published once, with the next checkpoint that completes."""
    started, _, _ = spilled
    finish_subtask_0_as_version_0_1(started)

    def script(_: Script, __: Sequence[str], poll: Poll) -> None:
        ask(started)
        poll()
        poll()
        raise Stopped

    with pytest.raises(JobFailed, match="Stopped"):
        drain(started, Script(script))
    assert {row.checkpoint_id for row in started[0].prepared(started[1])} == {2}
    drain(started, inline.InlineWorkers())
    commit_and_compare(spilled)


@pytest.mark.parametrize("spilled", ["per-checkpoint"], indirect=True)
def test_several_checkpoints_that_a_dead_attempt_did_not_publish_are_published_by_the_next(
    spilled: Spilled, take: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own snapshots and manifests are gone by then; the ledger of each is in its row."""
    started, _, _ = spilled
    finish_subtask_0_as_version_0_1(started)
    hold = threading.Event()

    def script(workers: Script, units: Sequence[str], _: Poll) -> None:
        workers.run_unit(units[-1])
        take()
        take()
        raise Stopped

    def away(*_: Any) -> None:
        hold.wait(60)
        raise StorageError("the target is away")

    with monkeypatch.context() as patched:
        patched.setattr(ParquetSink, "publish", away)
        patched.setattr(publisher, "STOP_SECONDS", 0.2)
        with pytest.raises(CdrError):
            drain(started, Script(script))
    hold.set()
    assert states(started)[1:] == [EXPIRED, COMPLETED]
    drain(started, inline.InlineWorkers())
    commit_and_compare(spilled)


@pytest.mark.parametrize("what", ["manifest", "snapshot"])
def test_a_manifest_or_snapshot_that_was_changed_is_not_resumed_from(
    spilled: Spilled, take: Callable[[], None], what: str
) -> None:
    """Both still read as what they are."""
    started, _, _ = spilled
    die_with_a_base_for_subtask_1(started, take)
    manifest = Path(started[0].checkpoints(started[1])[-1].manifest or "")
    snapshot = Path(json.loads(manifest.read_bytes())["cuts"][1]["snapshot"])
    file, old, new = (manifest, b"}", b"} ") if what == "manifest" else (snapshot, b"task", b"tusk")
    file.write_bytes(file.read_bytes().replace(old, new))
    with pytest.raises(StorageError, match="was changed"):
        drain(started, inline.InlineWorkers())


def test_a_snapshot_that_does_not_name_the_files_before_it_fails_the_attempt(
    spilled: Spilled, take: Callable[[], None]
) -> None:
    """What the driver has in a complete checkpoint cannot be taken back by a task."""
    started, _, _ = spilled

    def script(workers: Script, units: Sequence[str], _: Poll) -> None:
        begun = workers.snapshots.take_over(units[0], 0, "task", partial(Cut, START, set_of(started, 0)))
        with_file = replace(begun.cut, position="2", files=(PreparedFile("data/a.parquet", 1, 10, 7),))
        workers.snapshots.create(units[0], Snapshot(0, 2, "task", START, with_file))
        take()
        workers.snapshots.create(units[0], Snapshot(0, 3, "task", "2", replace(with_file, position="3", files=())))
        take()

    with pytest.raises(JobFailed, match="does not name the files of the one before"):
        drain(started, Script(script))


def test_a_drain_that_left_a_segment_out_does_not_end(spilled: Spilled, monkeypatch: pytest.MonkeyPatch) -> None:
    real = DrainState.still_to_come
    monkeypatch.setattr(DrainState, "still_to_come", lambda self: real(self)[1:])
    with pytest.raises(Unbalanced, match="drain does not balance"):
        drain(spilled[0], inline.InlineWorkers())


def test_the_spill_set_of_another_subtask_is_not_drained(spilled: Spilled) -> None:
    """A manifest under the wrong name is a lost set: it is made again."""
    started, _, _ = spilled
    Path(set_of(started, 0)).write_bytes(Path(set_of(started, 1)).read_bytes())
    drain(started, inline.InlineWorkers())
    found = [each.state for each in started[0].spill_sets(started[1]) if each.subtask == 0]
    assert found == [SpillSetState.LOST, SpillSetState.SEALED], "the rows know the new one"
    commit_and_compare(spilled)


def test_a_task_that_fails_removes_the_file_that_was_open(spilled: Spilled, monkeypatch: pytest.MonkeyPatch) -> None:
    started, _, out = spilled
    monkeypatch.setenv("CDR_FAULTS", "drain.page=raise")
    with pytest.raises(JobFailed, match=r"fault injected at drain\.page"):
        drain(started, inline.InlineWorkers())
    assert list(out.rglob("*.parquet")) == []


def test_every_kept_checkpoint_has_its_snapshots_and_a_drain_goes_back_to_the_newest(
    spilled: Spilled, take: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_RETAINED_CHECKPOINTS", "2")
    repository, recovery, _ = spilled[0]
    started = repository, recovery, settings_module.load()

    def script(workers: Script, units: Sequence[str], _: Poll) -> None:
        begun = workers.snapshots.take_over(units[1], 1, "task", partial(Cut, START, set_of(started, 1)))
        take()
        workers.snapshots.create(units[1], Snapshot(1, 2, "task", START, replace(begun.cut, position="second")))
        take()
        raise Stopped

    with pytest.raises(JobFailed, match="Stopped"):
        drain(started, Script(script))
    plan = load_plan(repository.recovery(recovery).plan_uri or "")
    cuts = [read_cuts(row, plan)[1].position for row in repository.checkpoints(recovery)]
    assert cuts == [START, "second"]
    real = go_back
    found: list[Any] = []
    monkeypatch.setattr(drain_phase, "go_back", lambda *given: found.append(real(*given)) or found[-1])
    drain(started, inline.InlineWorkers())
    assert found[0][1].position == "second"
    commit_and_compare(spilled)
