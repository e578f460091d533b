"""Checkpoints that users ask a drain for: several at once, aligned, too late, by the shell, and what may go wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cdr_core import settings as settings_module
from cdr_core.drain import checkpoint_driver as watch
from cdr_core.drain import task
from cdr_core.drain.checkpoint_cuts import read_cuts
from cdr_core.drain.checkpoint_driver import DrainWatch
from cdr_core.drain.checkpoint_manifest import write_manifest
from cdr_core.drain.drain_state import DrainState
from cdr_core.drain.snapshots import START, Cut, Snapshot, Snapshots
from cdr_core.drain.task import DrainTask
from cdr_core.errors import JobFailed, StorageError
from cdr_core.metadata import Command, CommandState, Phase, RecoveryCheckpointState, Repository
from cdr_core.phases import drain as drain_phase
from cdr_core.runtime.driver import PhaseRun
from cdr_core.runtime.unit_runner import Job, load_plan, run_unit
from tests.phases.asking import Poll, Script, Spilled, answer, ask, commit_and_compare, drain, shell, states
from tests.support import inline

COMPLETED = RecoveryCheckpointState.COMPLETED
ABORTED = RecoveryCheckpointState.ABORTED
SUBSUMED = RecoveryCheckpointState.SUBSUMED
TRIGGERED = RecoveryCheckpointState.TRIGGERED


@dataclass
class Clock:
    now: float = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time by which the driver schedules checkpoints: it stands still unless a test moves it."""
    found = Clock()
    made: Any = DrainWatch
    monkeypatch.setattr("cdr_core.phases.drain.DrainWatch", lambda *given: made(*given, clock=lambda: found.now))
    return found


def test_a_twin_of_a_task_whose_result_was_accepted_adds_nothing(spilled: Spilled) -> None:
    """004-13: it finds the chain of snapshots at its end, and ends with the same result."""
    started, _, _ = spilled

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        workers.run_unit(units[0])
        poll()
        before = workers.snapshots.listed()
        workers.run_unit(units[0])
        assert workers.snapshots.listed() == before
        ask(started)
        poll()
        workers.run_unit(units[1])
        poll()

    drain(started, Script(script))
    assert states(started) == [COMPLETED, COMPLETED]
    commit_and_compare(spilled)


def test_a_task_that_was_overtaken_stops_at_its_next_snapshot(
    spilled: Spilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E18: one that Spark thought lost goes on while its successor drains; only the successor's files count."""
    started, _, _ = spilled
    overtaken: list[BaseException] = []
    real, inside = DrainTask._snapshot, threading.local()

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        def overtake(self: DrainTask, *arguments: Any, **options: Any) -> Snapshot:
            if not overtaken and not getattr(inside, "successor", False):
                inside.successor = True
                workers.run_unit(units[0])  # another task of the same unit takes over and finishes
                inside.successor = False
            return real(self, *arguments, **options)

        monkeypatch.setattr(DrainTask, "_snapshot", overtake)
        try:
            workers.run_unit(units[0])
        except JobFailed as error:
            overtaken.append(error)
        poll()
        workers.run_unit(units[1])
        poll()

    drain(started, Script(script))
    assert "took subtask 0 over" in str(overtaken[0])
    commit_and_compare(spilled)
    named = {file["path"] for row in started[0].prepared(started[1]) for file in json.loads(row.manifest)["files"]}
    assert len(named) == 2


def test_a_result_that_is_not_the_end_of_its_chain_fails_the_attempt(
    spilled: Spilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """004-13: a task that slept while the snapshots it would have met were passed and removed ends another chain."""
    started, _, _ = spilled

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        manifest = started[0].spill_sets(started[1])[0].manifest
        for number in range(5):
            workers.snapshots.take_over(units[0], 0, f"task {number}", partial(Cut, START, manifest))
        ask(started)
        poll()
        threading.Event().wait(watch.GRACE_SECONDS)
        poll()
        assert dict(workers.snapshots.listed()) == {units[0]: 5}, "those before it are removed"
        with monkeypatch.context() as patched:
            patched.setattr(Snapshots, "listed", lambda _: [])  # what the task saw before it slept
            workers.run_unit(units[0])
        poll()

    with pytest.raises(JobFailed, match="drained by two tasks at once: one ended with snapshot 2, the other is at 5"):
        drain(started, Script(script))
    drain(started, inline.InlineWorkers())
    commit_and_compare(spilled)


def test_where_no_checkpoints_are_taken_whoever_asks_for_one_is_told_so_at_once(
    spilled: Spilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """002-41: not ready, and not counted: one failure would already end this attempt."""
    (repository, recovery, _), _, _ = spilled
    monkeypatch.setenv("CDR_CHECKPOINT_DURING_RECOVERY", "false")
    monkeypatch.setenv("CDR_CHECKPOINT_TIMEOUT", "0s")
    monkeypatch.setenv("CDR_TOLERABLE_FAILED_CHECKPOINTS", "0")
    started = repository, recovery, settings_module.load()

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        command = ask(started)
        poll()
        answered = answer(started, command)
        assert answered.state is CommandState.REFUSED
        assert (answered.answer or {})["not_ready"] is True
        assert "CDR_CHECKPOINT_DURING_RECOVERY is off" in (answered.answer or {})["reason"]
        for unit in units:
            workers.run_unit(unit)

    drain(started, Script(script))
    assert states(started) == [COMPLETED], "only the one at the end"


def test_who_asks_in_the_last_moment_gets_the_checkpoint_that_ends_the_drain(
    spilled: Spilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the last look of the driver there is still one of its own; later it is the one that ends the drain."""
    started, _, _ = spilled
    commands: list[Command] = []

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        for unit in units:
            workers.run_unit(unit)
        poll()
        commands.append(ask(started))

    real = write_manifest

    def and_one_more(*arguments: Any) -> tuple[str, str]:
        commands.append(ask(started))
        return real(*arguments)

    monkeypatch.setattr(drain_phase, "write_manifest", and_one_more)
    drain(started, Script(script))
    last = started[0].checkpoints(started[1])[-1]
    assert last.state is COMPLETED
    assert (last.result or {})["kept"] is True
    assert len(commands) == 2
    for command, number in zip(commands, (1, last.checkpoint_id), strict=True):
        answered = answer(started, command)
        assert (answered.state, (answered.answer or {})["checkpoint"]) == (CommandState.DONE, number)


@pytest.mark.parametrize("hurt", ["snapshot", "manifest"])
def test_a_checkpoint_is_declined_only_when_its_time_is_over(
    spilled: Spilled, monkeypatch: pytest.MonkeyPatch, clock: Clock, hurt: str
) -> None:
    """002-41, E30: a snapshot that cannot be read, or a manifest that cannot be written, fails a checkpoint, counted,
    and not the drain; once it can, the next checkpoint completes.
    """
    started, _, _ = spilled
    broken = threading.Event()

    def fails(real: Callable[..., Any]) -> Callable[..., Any]:
        def maybe(*arguments: Any) -> Any:
            if broken.is_set():
                raise StorageError("the disk is away")
            return real(*arguments)

        return maybe

    if hurt == "snapshot":
        monkeypatch.setattr(Snapshots, "read", fails(Snapshots.read))
    else:
        monkeypatch.setattr(watch, "write_manifest", fails(write_manifest))

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        workers.run_unit(units[0])
        broken.set()
        poll()
        ask(started)
        poll()
        poll()
        assert states(started) == [TRIGGERED], "its time is not over"
        clock.now = started[2].checkpoint_timeout
        poll()
        assert states(started) == [ABORTED]
        broken.clear()
        ask(started)
        poll()
        clock.now += watch.GRACE_SECONDS
        poll()
        assert states(started) == [ABORTED, COMPLETED]
        workers.run_unit(units[1])
        poll()

    drain(started, Script(script))
    first = started[0].checkpoints(started[1])[0]
    assert "the disk is away" in (first.reason or "")
    assert [each.state for each in started[0].commands(started[1])] == [CommandState.REFUSED, CommandState.DONE]
    commit_and_compare(spilled)


def test_a_request_that_cannot_be_passed_on_completes_with_the_newest_snapshots(
    spilled: Spilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, _, _ = spilled

    def fails(*_: object) -> None:
        raise StorageError("the disk is away")

    monkeypatch.setattr(Snapshots, "ask", fails)

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        ask(started)
        poll()
        assert states(started) == [COMPLETED]
        for unit in units:
            workers.run_unit(unit)
        poll()

    drain(started, Script(script))
    commit_and_compare(spilled)


def test_an_aligned_request_waits_for_newer_snapshots_of_the_tasks_at_work(spilled: Spilled, clock: Clock) -> None:
    """002-38: until each of them has made one, or its time is over; a plain request is answered at once."""
    started, _, _ = spilled

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        set_of = {each.subtask: each.manifest for each in started[0].spill_sets(started[1])}
        for subtask, unit in enumerate(units):
            workers.snapshots.take_over(unit, subtask, "begun", partial(Cut, START, set_of[subtask]))
        ask(started, 5.0)
        poll()
        assert workers.snapshots.asked() == 1
        assert states(started) == [TRIGGERED]
        workers.run_unit(units[0])
        poll()
        assert states(started) == [TRIGGERED], "the other one has made no snapshot"
        workers.run_unit(units[1])
        poll()
        assert states(started) == [COMPLETED]

    drain(started, Script(script))
    plan = load_plan(started[0].recovery(started[1]).plan_uri or "")
    first = started[0].checkpoints(started[1])[0]
    assert [cut.final for cut in read_cuts(first, plan).values()] == [True, True]
    commit_and_compare(spilled)


def test_an_aligned_request_whose_time_is_over_takes_what_there_is(spilled: Spilled, clock: Clock) -> None:
    """002-38: and it subsumes an older one that still waits."""
    started, _, _ = spilled

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        manifest = started[0].spill_sets(started[1])[0].manifest
        workers.snapshots.take_over(units[0], 0, "begun", partial(Cut, START, manifest))
        ask(started, 50.0)
        ask(started, 5.0)
        poll()
        assert states(started) == [TRIGGERED] * 2
        clock.now = 5.0
        poll()
        assert states(started) == [SUBSUMED, COMPLETED]
        for unit in units:
            workers.run_unit(unit)
        poll()

    drain(started, Script(script))
    answered = [(each.state, (each.answer or {})["checkpoint"]) for each in started[0].commands(started[1])]
    assert answered == [(CommandState.DONE, 2)] * 2
    commit_and_compare(spilled)


def test_a_task_closes_its_file_when_a_checkpoint_is_asked_for(
    spilled: Spilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request also asks the tasks for newer snapshots, which the next checkpoint holds."""
    started, _, _ = spilled
    monkeypatch.setattr(task, "LISTEN_SECONDS", 0.0)
    written = iter(range(1, 100_000))
    real = DrainTask._is_due

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        def due(self: DrainTask, state: DrainState) -> bool:
            if next(written) == 5:
                workers.snapshots.ask(1)
            return real(self, state)

        monkeypatch.setattr(DrainTask, "_is_due", due)
        workers.run_unit(units[0])
        assert [number for unit, number in workers.snapshots.listed() if unit == units[0]] == [1, 2, 3]
        workers.run_unit(units[1])
        assert [number for unit, number in workers.snapshots.listed() if unit == units[1]] == [1, 2]
        poll()

    drain(started, Script(script))
    commit_and_compare(spilled)


@pytest.mark.parametrize("spilled", ["at-end", "per-checkpoint"], indirect=True)
@pytest.mark.parametrize("count", [10, 300])
def test_many_checkpoints_leave_no_more_than_a_few(
    spilled: Spilled, monkeypatch: pytest.MonkeyPatch, clock: Clock, count: int
) -> None:
    """004-11: rows, grants, requests and files of a drain do not grow with the number of its checkpoints."""
    started, _, _ = spilled
    repository, recovery, _ = started
    monkeypatch.setattr(PhaseRun, "checkpoint_interval", 1.0)
    left: list[int] = []

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        workers.run_unit(units[0])
        for _ in range(count):
            clock.now += 1.0
            poll()
        ask(started)
        poll()
        folder = Path(Job.from_json(workers._payload).directory).parent
        left.append(sum(path.is_file() for path in folder.rglob("*")))
        workers.run_unit(units[1])
        poll()

    drain(started, Script(script))
    assert len(states(started)) == count + 2
    assert left[0] < 20
    assert len(repository.prepared(recovery)) <= 4
    assert sum(len(each.grants) for each in repository.spill_sets(recovery)) <= 8
    commit_and_compare(spilled)


def test_files_are_closed_by_size_without_any_checkpoint(spilled: Spilled, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository, recovery, _), _, _ = spilled
    monkeypatch.setenv("CDR_OUTPUT_FILE_SIZE", "20kB")
    monkeypatch.setenv("CDR_CHECKPOINT_DURING_RECOVERY", "false")
    started = repository, recovery, settings_module.load()
    drain(started, inline.InlineWorkers())
    (_, recovery, _) = started
    units = repository.units(recovery, Phase.DRAIN)
    assert all(2 < len(unit.result["files"]) <= 1 + unit.bytes // 20_000 for unit in units)
    assert states(started) == [COMPLETED]
    commit_and_compare(spilled)


class OneByOne(inline.ThreadedWorkers):
    """The first unit drains in a thread while the driver polls; the second one waits until it may run."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Poll) -> None:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(run_unit, payload, units[0], 0)
            while not (first.done() and self.may_end.is_set()):
                on_poll()
                self.may_end.wait(0.01)
            first.result()
        run_unit(payload, units[1], 0)
        on_poll()


def test_the_shell_takes_a_checkpoint_of_a_running_drain_and_exports_one(
    spilled: Spilled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cdr checkpoint` and `cdr checkpoint --to DIR`, while the drain runs in threads; both stay, both are complete."""
    started, _, _ = spilled
    _, recovery, settings = started
    monkeypatch.setenv("CDR_FAULTS", "drain.page=sleep:0.02")
    workers, failed = OneByOne(), []

    def drain_elsewhere() -> None:
        try:
            with Repository.open(settings.database_url) as own:
                drain((own, recovery, settings), workers)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=drain_elsewhere)
    thread.start()
    try:
        shown = [shell(monkeypatch, capsys, "checkpoint", recovery, "--json")]
        shown.append(shell(monkeypatch, capsys, "checkpoint", recovery, "--to", str(tmp_path / "exported"), "--json"))
    finally:
        workers.may_end.set()
        thread.join()
    assert not failed
    assert [code for code, _ in shown] == [0, 0], shown
    taken, exported = (json.loads(text) for _, text in shown)
    assert (taken["checkpoint"], exported["checkpoint"]) == (1, 2)
    assert states(started) == [COMPLETED] * 3, "what a user asked for is kept"
    assert exported["records"] == 1878
    assert (tmp_path / "exported" / "_metadata").is_file()
    commit_and_compare(spilled)


@pytest.mark.parametrize("spilled", ["per-checkpoint"], indirect=True)
def test_the_shell_refuses_an_export_before_it_requests_a_checkpoint_that_would_publish(
    spilled: Spilled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository, recovery, _), _, _ = spilled
    code, text = shell(monkeypatch, capsys, "checkpoint", recovery, "--to", str(tmp_path / "exported"))
    assert (code, "publishes with every checkpoint" in text) == (3, True)
    assert not repository.commands(recovery)
