"""A checkpoint that is asked for before the drain: the request waits for it, and is given up when its time is over."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdr_core import settings as settings_module
from cdr_core.commit.commit_store import TableCommitter
from cdr_core.drain import checkpoint_driver as watch
from cdr_core.drain.snapshots import Snapshots
from cdr_core.errors import Cancelled, Refused, StorageError
from cdr_core.metadata import AttemptState, Command, CommandState, Phase, RecoveryCheckpointState, RecoveryState
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime.checkpoint_requests import ask_for_checkpoint, waits_until
from cdr_core.runtime.driver import PhaseRun
from tests.phases.asking import Poll, Script, answer, drain, shell
from tests.support import draining, inline
from tests.support.bucket import Bucket
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.damage import BAD, Damaged, in_length, some_record
from tests.support.draining import Started

COMPLETED = RecoveryCheckpointState.COMPLETED
ABORTED = RecoveryCheckpointState.ABORTED
BEFORE_DRAIN = (Phase.READ, Phase.FILTER, Phase.SPILL)
SECONDS = 60.0
"""To wait for anything at most."""

Start = Callable[..., Started]


class Asking(inline.InlineWorkers):
    """Somebody asks for a checkpoint while the units of a phase run."""

    def __init__(self, ask: Callable[[], object]) -> None:
        super().__init__()
        self._ask = ask

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Poll) -> None:
        self._ask()
        super().run(drive, payload, units, on_poll)


@pytest.fixture
def start(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Makes a recovery, at most one, of which no phase has run; a driver hears at once. With an interval its drain is
    slow enough to be cut, without one no checkpoint is taken unasked.
    """
    monkeypatch.setattr("cdr_core.runtime.driver.HEARTBEAT_SECONDS", -1.0)
    checkpoint, made = fixture_checkpoint("a_p3_thr0", 2), []

    def begin(kind: str = "parquet", source: str = "", interval: str = "0s", **more: Any) -> Started:
        draining.make_slow(monkeypatch, "" if interval == "0s" else "drain.page=sleep:0.01")
        path = source or str(checkpoint.path)
        wish = RecoveryRequest(path, str(checkpoint.spec), "2", f"{kind}:{tmp_path / 'out'}", interval, **more)
        made.append(inline.start(wish))
        return made[0]

    yield begin
    for repository, _, _ in made:
        repository.close()


def ask(started: Started) -> Command:
    """As the shell and the page do."""
    repository, recovery, settings = started
    asked = ask_for_checkpoint(repository, recovery, settings.checkpoint_timeout)
    assert isinstance(asked, Command)
    return asked


def run(started: Started, *phases: Phase) -> None:
    for phase in phases:
        inline.run(started[0], started[1], phase, started[2])


def taken_by_the_drain(started: Started, asked_in: Phase, verdict: str) -> None:
    """Ask in a phase before the drain, recover, and see the drain answer with a checkpoint of its own."""
    repository, recovery, settings = started
    asked: list[Command] = []
    for phase in BEFORE_DRAIN:
        is_now = phase is asked_in
        workers = Asking(lambda: asked.append(ask(started))) if is_now else inline.InlineWorkers()
        inline.run(repository, recovery, phase, settings, workers)
        for command in asked:
            waiting = answer(started, command)
            assert waits_until(waiting, settings.checkpoint_timeout) is not None, f"{phase} answered it"
            assert (waiting.answer or {})["reason"] == "the drain has not started"
    assert not repository.checkpoints(recovery)
    run(started, Phase.DRAIN)
    answered = answer(started, asked[0])
    assert answered.state is CommandState.DONE
    rows = repository.checkpoints(recovery)
    assert [row.state for row in rows] == [COMPLETED] * 2
    assert (answered.answer or {})["checkpoint"] == rows[0].checkpoint_id, "not the one that ends the drain"
    assert (rows[0].result or {})["kept"] is True
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == verdict
    assert {each.state for each in repository.attempts(recovery)} == {AttemptState.DONE}


@pytest.mark.seed("E26")
@pytest.mark.parametrize("asked_in", BEFORE_DRAIN)
def test_a_request_waits_for_the_drain_which_takes_it(start: Start, asked_in: Phase) -> None:
    """NOT_READY is not an answer while there is time: the driver of every phase leaves the request to the drain."""
    taken_by_the_drain(start(), asked_in, "balanced")


def test_a_request_waits_for_a_drain_into_a_checkpoint(start: Start) -> None:
    taken_by_the_drain(start("checkpoint"), Phase.READ, "balanced")


def test_a_request_waits_for_a_drain_with_a_workspace_on_s3(
    start: Start, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_WORKSPACE", bucket.uri())
    monkeypatch.setenv("CDR_SCRATCH", str(tmp_path / "scratch"))
    taken_by_the_drain(start(), Phase.SPILL, "balanced")


def test_a_request_waits_for_a_drain_beside_a_quarantine(
    start: Start, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    source = damaged_copy(fixture_checkpoint, tmp_path)
    taken_by_the_drain(start(source=source, on_corrupt="quarantine"), Phase.READ, "partial")


@pytest.mark.parametrize("kind", ["parquet", "checkpoint"])
def test_a_request_waits_for_a_drain_that_leaves_records_out(start: Start, kind: str) -> None:
    taken_by_the_drain(start(kind, drop_records=("main:1:2:0", "main:2:0:5-7")), Phase.FILTER, "partial")


@pytest.mark.parametrize("kind", ["parquet", "checkpoint"])
def test_beside_a_quarantine_and_dropped_records_checkpoints_are_taken_by_interval(
    start: Start, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, kind: str
) -> None:
    source = damaged_copy(fixture_checkpoint, tmp_path)
    left_out: dict[str, Any] = {"on_corrupt": "quarantine", "drop_records": ("main:2:0:5-7",)}
    repository, recovery, settings = start(kind, source, "20ms", **left_out)
    for phase in Phase:
        result = inline.run(repository, recovery, phase, settings, inline.ThreadedWorkers())
    assert len(repository.checkpoints(recovery)) > 1, "not only the one at the end"
    assert ABORTED not in {row.state for row in repository.checkpoints(recovery)}
    assert result["verdict"] == "partial"


def damaged_copy(fixture_checkpoint: FixtureCheckpoints, folder: Path) -> str:
    damaged = Damaged(fixture_checkpoint("a_p3_thr0", 2), folder / "damaged")
    in_length(damaged, damaged.frames(BAD)[some_record(damaged)])
    return str(damaged.folder)


@pytest.mark.seed("002-41")
@pytest.mark.parametrize("asked_in", BEFORE_DRAIN)
def test_a_request_whose_time_is_over_is_not_ready_and_the_recovery_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch, asked_in: Phase
) -> None:
    """It is answered by the phase that runs then, and not counted: one failure would already end the drain."""
    monkeypatch.setenv("CDR_CHECKPOINT_TIMEOUT", "0s")
    monkeypatch.setenv("CDR_TOLERABLE_FAILED_CHECKPOINTS", "0")
    started = repository, recovery, settings = start()
    asked: list[Command] = []
    for phase in Phase:
        workers = Asking(lambda: asked.append(ask(started))) if phase is asked_in else inline.InlineWorkers()
        result = inline.run(repository, recovery, phase, settings, workers)
        if phase is asked_in:
            answered = answer(started, asked[0])
            assert answered.state is CommandState.REFUSED
            assert answered.answer == {"reason": "no drain took the request within 0 s", "not_ready": True}
    assert result["verdict"] == "balanced"
    assert len(repository.checkpoints(recovery)) == 1, "only the one at the end"
    assert {each.state for each in repository.attempts(recovery)} == {AttemptState.DONE}


@pytest.mark.seed("002-41", "E30")
@pytest.mark.parametrize("hurt", ["snapshot", "manifest"])
def test_what_is_not_ready_and_what_is_declined_do_not_fail_a_recovery(
    start: Start, monkeypatch: pytest.MonkeyPatch, hurt: str
) -> None:
    """Two requests come too early and one checkpoint is given up, where one failure is tolerated."""
    monkeypatch.setenv("CDR_CHECKPOINT_TIMEOUT", "0s")
    monkeypatch.setenv("CDR_TOLERABLE_FAILED_CHECKPOINTS", "1")
    started = repository, recovery, settings = start()
    for phase in BEFORE_DRAIN:
        inline.run(repository, recovery, phase, settings, Asking(lambda: ask(started)))

    def fails(*_: object) -> None:
        raise StorageError("the disk is away")

    def script(workers: Script, units: Sequence[str], poll: Poll) -> None:
        workers.run_unit(units[0])
        with monkeypatch.context() as patch:
            patch.setattr(*((Snapshots, "read", fails) if hurt == "snapshot" else (watch, "write_manifest", fails)))
            ask(started)
            poll()
        workers.run_unit(units[1])
        poll()

    drain(started, Script(script))
    answers = [each.answer or {} for each in repository.commands(recovery)]
    assert [each.get("not_ready", False) for each in answers] == [True] * 3 + [False]
    assert "the disk is away" in answers[-1]["reason"]
    assert [row.state for row in repository.checkpoints(recovery)] == [ABORTED, COMPLETED]
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    assert {each.state for each in repository.attempts(recovery)} == {AttemptState.DONE}


def test_a_request_that_is_repeated_is_one_request(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its time is over: then the next one is another."""
    started = repository, recovery, _ = start()
    first = ask(started)
    run(started, Phase.READ)
    assert ask(started) == first
    assert repository.commands(recovery) == (first,)
    monkeypatch.setenv("CDR_CHECKPOINT_TIMEOUT", "0s")
    impatient = repository, recovery, settings_module.load()
    second = ask(impatient)
    assert second.id != first.id
    assert [each.state for each in repository.commands(recovery)] == [CommandState.REFUSED, CommandState.REQUESTED]


def test_behind_the_drain_nothing_waits(start: Start) -> None:
    """A user who asks gets the last checkpoint; after the end a request is refused."""
    started = repository, recovery, settings = start()
    run(started, *BEFORE_DRAIN, Phase.DRAIN)
    assert ask_for_checkpoint(repository, recovery, settings.checkpoint_timeout) == 1
    run(started, Phase.COMMIT)
    with pytest.raises(Refused, match="is DONE"):
        ask(started)
    assert not repository.commands(recovery)


def test_a_request_of_a_cancelled_recovery_is_refused_at_once(start: Start) -> None:
    started = repository, recovery, _ = start()
    waiting = ask(started)
    repository.cancel(recovery)
    assert answer(started, waiting).state is CommandState.REFUSED
    with pytest.raises(Refused, match="is CANCELLED"):
        ask(started)


def test_the_shell_waits_for_the_drain_and_gives_up_where_no_driver_runs(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between two phases the shell itself refuses what it asked for, so that the drain does not take it later."""
    monkeypatch.setenv("CDR_CHECKPOINT_TIMEOUT", "1s")
    started = repository, recovery, _ = start()
    run(started, Phase.READ)
    code, said = shell(monkeypatch, capsys, "checkpoint", recovery)
    waits, refusal = said.splitlines()
    assert re.fullmatch(r"cdr: the drain has not started; waiting until \d\d:\d\d:\d\d", waits)
    assert refusal.startswith(f"cdr: recovery {recovery} is not ready: no drain took the request within 1 s")
    assert f"cdr resume {recovery}" in refusal
    assert code == 1
    (command,) = repository.commands(recovery)
    assert command.state is CommandState.REFUSED
    run(started, Phase.FILTER, Phase.SPILL, Phase.DRAIN, Phase.COMMIT)
    assert len(repository.checkpoints(recovery)) == 1, "only the one at the end"


def test_the_shell_gets_the_checkpoint_that_it_asked_for_before_the_drain(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = repository, recovery, _ = start()
    run(started, Phase.READ)

    def recover() -> None:
        wait_for(lambda: bool(repository.commands(recovery)))
        run(started, Phase.FILTER, Phase.SPILL, Phase.DRAIN)

    thread = threading.Thread(target=recover)
    thread.start()
    code, said = shell(monkeypatch, capsys, "checkpoint", recovery, "--json")
    thread.join()
    assert code == 0, said
    assert json.loads(said)["checkpoint"] == 1
    assert [row.state for row in repository.checkpoints(recovery)] == [COMPLETED] * 2


def test_users_are_heard_while_the_end_of_a_drain_waits_for_its_target(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publication hangs when all is drained: a checkpoint completes, and a cancel ends the attempt."""
    monkeypatch.setenv("CDR_COMMIT", "per-checkpoint")
    monkeypatch.setattr("cdr_core.drain.publisher.STOP_SECONDS", 0.1)
    stuck, answers_again, ended = threading.Event(), threading.Event(), []

    def hangs(*_: object) -> bool:
        stuck.set()
        answers_again.wait(2 * SECONDS)
        raise StorageError("the target is away")

    monkeypatch.setattr(TableCommitter, "commit", hangs)
    started = repository, recovery, _ = start()
    run(started, *BEFORE_DRAIN)
    ask(started)

    def run_drain() -> None:
        try:
            drain(started, inline.InlineWorkers())
        except Cancelled as error:
            ended.append(error)

    thread = threading.Thread(target=run_drain, daemon=True)
    thread.start()
    try:
        wait_for(lambda: stuck.is_set() and len(repository.units(recovery, Phase.DRAIN)) == 2)
        asked = ask(started)
        wait_for(lambda: answer(started, asked).state is CommandState.DONE)
        repository.cancel(recovery)
        thread.join(SECONDS)
    finally:
        answers_again.set()
    assert len(ended) == 1, "the cancel was not heard"
    assert repository.recovery(recovery).state is RecoveryState.CANCELLED


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)
