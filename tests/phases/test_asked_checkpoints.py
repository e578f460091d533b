"""Checkpoints that users ask a drain for: several at once, aligned, too late, by the shell, and what may go wrong."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cdr_core import settings as settings_module
from cdr_core.cli import main
from cdr_core.drain.subtask import RecoveringSubtask
from cdr_core.errors import StorageError
from cdr_core.metadata import Command, CommandState, Phase, RecoveryCheckpointState, Repository
from cdr_core.phases import drain as drain_phase
from cdr_core.phases.draining.answering import Answering
from cdr_core.phases.draining.mailbox import Mailbox, Request
from cdr_core.phases.driver import Drive
from cdr_core.phases.request import RecoveryRequest
from cdr_core.phases.unit import Job, run_unit
from tests.phases.test_thread import compare
from tests.support import draining, inline, output
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.draining import Started, make_slow

COMPLETED = RecoveryCheckpointState.COMPLETED
ABORTED = RecoveryCheckpointState.ABORTED
SUBSUMED = RecoveryCheckpointState.SUBSUMED
Poll = Callable[[], None]


class Script(inline.InlineWorkers):
    """The units run as a test says, step by step; ``run_unit`` runs one to its end, ``poll`` is the driver's."""

    def __init__(self, script: Callable[[Script, Sequence[str], Poll], None]) -> None:
        super().__init__()
        self._script = script

    def run(self, drive: Drive, payload: str, units: Sequence[str], on_poll: Poll) -> None:
        self._payload = payload
        self.mailbox = Mailbox(Job.from_json(payload).directory)
        self._script(self, units, on_poll)

    def run_unit(self, unit: str) -> None:
        run_unit(self._payload, unit, 0)


Spilled = tuple[Started, FixtureCheckpoint, Path]


@pytest.fixture
def spilled(
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Spilled]:
    """A recovery that is ready to be drained, of which no checkpoint is taken unasked; a driver that hears at once."""
    make_slow(monkeypatch, "")
    monkeypatch.setenv("CDR_COMMIT", getattr(request, "param", "at-end"))
    monkeypatch.setattr("cdr_core.phases.driver.HEARTBEAT_SECONDS", -1.0)
    checkpoint, out = fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out"
    started = draining.spilled(RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{out}", "0s"))
    yield started, checkpoint, out
    started[0].close()


def ask(started: Started, aligned: float | None = None) -> Command:
    return started[0].request(started[1], "checkpoint", {"aligned_timeout": aligned})


def answer(started: Started, command: Command) -> Command:
    return next(each for each in started[0].commands(started[1]) if each.id == command.id)


def drain(started: Started, workers: inline.InlineWorkers) -> None:
    repository, recovery, settings = started
    inline.run(repository, recovery, Phase.DRAIN, settings, workers)


def commit_and_compare(spilled: Spilled) -> None:
    (repository, recovery, settings), checkpoint, out = spilled
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    compare(output.rows(out), checkpoint, 2)


def states(started: Started) -> list[RecoveryCheckpointState]:
    return [row.state for row in started[0].checkpoints(started[1])]


class Held(inline.ThreadedWorkers):
    """Both units run in threads; the second one hears no request before the driver has seen the end of the first."""

    def run(self, drive: Drive, payload: str, units: Sequence[str], on_poll: Poll) -> None:
        on_poll()
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(run_unit, payload, unit, 0) for unit in units]
            try:
                while not jobs[0].done():
                    threading.Event().wait(0.01)
                on_poll()
                on_poll()
            finally:
                self.may_listen.set()
            while not jobs[1].done():
                on_poll()
                threading.Event().wait(0.01)
        on_poll()
        for job in jobs:
            job.result()

    def __init__(self) -> None:
        super().__init__()
        self.may_listen = threading.Event()


@pytest.mark.parametrize("spilled", ["at-end", "per-checkpoint"], indirect=True)
def test_two_requests_at_once_and_a_subtask_that_answers_only_the_later_one_and_finishes(
    spilled: Spilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E33: what it prepared last must not go with the earlier number, or the output changes its order."""
    started, _, _ = spilled
    workers = Held()
    real = Answering.listen

    def held(self: Answering, subtask: RecoveringSubtask) -> None:
        if self._subtask == 1:
            workers.may_listen.wait()
        real(self, subtask)

    monkeypatch.setattr(Answering, "listen", held)
    commands = [ask(started), ask(started)]
    drain(started, workers)
    numbers = [entry.checkpoint_id for entry in started[0].prepared(started[1]) if entry.subtask == 0]
    assert numbers == [2, 3], "the first is not answered for a subtask that went past it"
    assert states(started) == [SUBSUMED, COMPLETED, COMPLETED]
    for command in commands:
        assert answer(started, command).state is CommandState.DONE
        assert (answer(started, command).answer or {})["checkpoint"] == 2
    commit_and_compare(spilled)


def test_a_twin_that_answers_after_the_result_was_accepted_is_not_counted_and_holds_nothing_up(
    spilled: Spilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """004-13: a task thought lost, at the same position as the one that finished, answers before the driver does."""
    started, _, _ = spilled
    monkeypatch.setenv("CDR_FAULTS", draining.SLOWLY)
    real, looks = Answering.listen, iter(range(100_000))

    def late(self: Answering, subtask: RecoveringSubtask) -> None:
        if next(looks) > 5:  # when it has put something out
            real(self, subtask)

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        workers.run_unit(units[0])
        ask(started)
        poll()  # accepts the result, then asks for checkpoint 1
        with monkeypatch.context() as patched:
            patched.setattr(Answering, "listen", late)
            workers.run_unit(units[0])
        twin = workers.mailbox.given(1, units[0])
        assert (twin.after, bool(twin.body["files"])) == ("start", True), "the twin did answer"
        workers.mailbox.start(units[1])
        poll()
        workers.run_unit(units[1])
        poll()

    drain(started, Script(script))
    assert states(started) == [COMPLETED, COMPLETED]
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
    command = ask(started)
    drain(started, inline.InlineWorkers())
    answered = answer(started, command)
    assert answered.state is CommandState.REFUSED
    assert (answered.answer or {})["not_ready"] is True
    assert states(started) == [COMPLETED], "only the one at the end"


def test_who_asks_in_the_last_moment_gets_the_checkpoint_that_ends_the_drain(
    spilled: Spilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken in the last look of the driver, or not taken any more: both are answered."""
    started, _, _ = spilled
    commands: list[Command] = []

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        for unit in units:
            workers.run_unit(unit)
        poll()
        commands.append(ask(started))

    real = drain_phase.write_manifest

    def and_one_more(*arguments: Any) -> tuple[str, str]:
        commands.append(ask(started))
        return real(*arguments)

    monkeypatch.setattr(drain_phase, "write_manifest", and_one_more)
    drain(started, Script(script))
    last = started[0].checkpoints(started[1])[-1]
    assert last.state is COMPLETED
    assert (last.result or {})["kept"] is True
    assert len(commands) == 2
    for command in commands:
        answered = answer(started, command)
        assert (answered.state, (answered.answer or {})["checkpoint"]) == (CommandState.DONE, last.checkpoint_id)


def test_trouble_with_the_mail_fails_checkpoints_and_not_the_drain(
    spilled: Spilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E30: asking, listing, reading and answering each fail once; each costs one checkpoint, which is counted."""
    started, _, _ = spilled
    steps = ["ask", "answered", "started", "answer", "given"]
    failing: dict[str, int] = {}

    def fails(name: str) -> None:
        real = getattr(Mailbox, name)

        def maybe(self: Mailbox, *arguments: Any) -> Any:
            numbers = [getattr(each, "checkpoint", each) for each in arguments]
            if name in failing and (not numbers or failing[name] in numbers):
                del failing[name]
                raise StorageError(f"{name} failed")
            return real(self, *arguments)

        monkeypatch.setattr(Mailbox, name, maybe)

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        for number, name in enumerate(steps, 1):
            fails(name)
            failing[name] = number
            ask(started)
            poll()  # takes the command
            poll()
            assert not failing, f"{name} was not reached"
        ask(started)
        poll()
        poll()
        for unit in units:
            workers.run_unit(unit)
        poll()

    monkeypatch.setenv("CDR_TOLERABLE_FAILED_CHECKPOINTS", "5")
    drain((*started[:2], settings_module.load()), Script(script))
    rows = started[0].checkpoints(started[1])
    assert [row.state for row in rows] == [ABORTED] * 5 + [COMPLETED] * 2
    for row, name in zip(rows[:5], steps, strict=True):
        assert f"{name} failed" in (row.reason or "")
    refused = [each.state for each in started[0].commands(started[1])]
    assert refused == [CommandState.REFUSED] * 5 + [CommandState.DONE]
    commit_and_compare(spilled)


@pytest.mark.parametrize(("aligned", "heard", "all_of_it"), [(0.0, 0.0, False), (3600.0, 300.0, True)])
def test_an_aligned_request_reaches_the_tasks_and_lets_the_data_pass_first(
    spilled: Spilled, aligned: float, heard: float, all_of_it: bool
) -> None:
    """002-38: by command, mailbox and task; it never waits for longer than half of what the checkpoint may take."""
    started, _, _ = spilled

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        ask(started, aligned)
        poll()
        assert workers.mailbox.requests_after(0) == [Request(1, heard)]
        for unit in units:
            workers.mailbox.start(unit)
        for unit in units:
            workers.run_unit(unit)
        poll()

    drain(started, Script(script))
    first = started[0].checkpoints(started[1])[0]
    assert first.state is COMPLETED
    cuts = json.loads(Path(first.manifest or "").read_bytes())["cuts"].values()
    assert ["finished" in cut["body"] for cut in cuts] == [all_of_it] * 2
    assert (
        sum(entry.records for entry in started[0].prepared(started[1]) if entry.checkpoint_id == 1) > 0
    ) == all_of_it
    commit_and_compare(spilled)


class OneByOne(inline.ThreadedWorkers):
    """The first unit drains in a thread while the driver polls; the second one waits until it may run."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()

    def run(self, drive: Drive, payload: str, units: Sequence[str], on_poll: Poll) -> None:
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
    repository, recovery, settings = started
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
    shown = []
    try:
        while not repository.checkpoints(recovery) and not failed:
            shown = [shell(monkeypatch, capsys, "checkpoint", recovery, "--json")]
            if shown[0][0]:  # the drain has not begun
                assert "does not drain" in shown[0][1]
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


def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code, and what was said."""
    monkeypatch.setattr(sys, "argv", ["cdr", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.run()
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out or said.err
