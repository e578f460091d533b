"""kill -9 and stop at every durable step of publications while draining: each record, commit and marker once."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cdr_core.metadata import AttemptState, CommitState, Phase, Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.settings import Settings
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.draining import Started, drain_in_child, exit_status, make_slow, spilled
from tests.support.victim import RECORDS, Victim, assert_each_record_once

COMMIT_STEPS = (
    "commit.intent",
    "commit.before-publish",
    "publish.before",
    "publish.after",
    "commit.published",
    "commit.recorded",
    "listener.before",
    "listener.after",
    "coordinator.before-save",
    "coordinator.saved",
)
SLOWLY = "drain.page=sleep:0.01"
"""So slowly that something is left to be drained, and to die in, after the first death."""
STEPS = ("checkpoint.completed", *COMMIT_STEPS)


def start(checkpoints: FixtureCheckpoints, out: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """A recovery that is ready to be drained, slowly, with a checkpoint every few milliseconds."""
    make_slow(monkeypatch, "")
    checkpoint = checkpoints("a_p3_thr0", 2)
    return spilled(RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{out}", "10ms"))


@pytest.fixture
def draining(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Started]:
    monkeypatch.setenv("CDR_COMMIT", "per-checkpoint")
    started = start(fixture_checkpoint, tmp_path / "out", monkeypatch)
    yield started
    started[0].close()


@pytest.fixture(params=["at-end", "per-checkpoint"])
def committing(
    request: pytest.FixtureRequest,
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Started]:
    """Drained, in either mode."""
    monkeypatch.setenv("CDR_COMMIT", str(request.param))
    started = start(fixture_checkpoint, tmp_path / "out", monkeypatch)
    monkeypatch.setenv("CDR_FAULTS", "drain.page=sleep:0.002")
    inline.run(*started[:2], Phase.DRAIN, started[2], inline.ThreadedWorkers())
    monkeypatch.delenv("CDR_FAULTS")
    yield started
    started[0].close()


def published(out: Path) -> list[dict[str, Any]]:
    found = sorted(out.glob("_cdr/manifest-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    return [json.loads(path.read_text())["properties"] for path in found]


def assert_published_once(repository: Repository, recovery: str, out: Path) -> None:
    """Every record, every commit id and every marker once; the log, the target and the receipt agree."""
    assert_each_record_once(out)
    properties = published(out)
    numbers = [int(each["cdr.commit-id"]) for each in properties]
    assert numbers == sorted(set(numbers)), "once each, ascending"
    assert {each["cdr.commit-user"] for each in properties} == {f"cdr-{recovery}"}
    assert sum(int(each["cdr.records"]) for each in properties) == RECORDS
    log = repository.commit_log(recovery)
    assert [(row.commit_id, row.state) for row in log] == [(number, CommitState.DONE) for number in numbers]
    assert sorted(path.name for path in out.glob("_cdr/done/*")) == sorted(f"{recovery}-{n}.json" for n in numbers)
    state = repository.coordinator_state(recovery)
    assert state is not None
    assert state.listener_states == {"partition-done": {"up_to": numbers[-1]}}
    receipt = repository.receipt(recovery)
    assert receipt is not None
    assert receipt["verdict"] == "balanced"


def finish(draining: Started, out: Path) -> None:
    repository, recovery, settings = draining
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    assert_published_once(repository, recovery, out)


@pytest.mark.seed(
    "004-05", "004-06", "004-14", "004-16", "004-21", "004-22", "E29", "E40", "E41", "E42", "E43", "E44", "E45", "E51"
)
@pytest.mark.parametrize("step", STEPS)
def test_a_drain_killed_at_any_step_of_a_publication_publishes_everything_once(
    draining: Started, tmp_path: Path, step: str
) -> None:
    """Twice, so that the second dies in what it restores."""
    _, recovery, _ = draining
    log = tmp_path / "faults"
    for _ in range(2):
        assert exit_status(drain_in_child(recovery, f"{step}=kill,{SLOWLY}", log=log)) == -signal.SIGKILL
    assert log.read_text().splitlines() == [f"{step} kill"] * 2
    finish(draining, tmp_path / "out")


@pytest.mark.seed("004-16", "004-22", "E43", "E51")
@pytest.mark.parametrize("step", COMMIT_STEPS)
def test_the_last_commit_killed_at_any_step_is_made_once_in_either_mode(
    committing: Started, tmp_path: Path, step: str
) -> None:
    repository, recovery, settings = committing
    before = len(published(tmp_path / "out"))
    assert Victim(Phase.COMMIT, recovery, f"{step}=kill", tmp_path / "fired").wait() == -signal.SIGKILL
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    assert_published_once(repository, recovery, tmp_path / "out")
    assert len(published(tmp_path / "out")) == before + 1


def stop_outside_a_transaction(pid: int, settings: Settings) -> None:
    """A process that sleeps with SQLite's lock in its hand would stop everybody else, which is not meant here."""
    file = settings.database_url.removeprefix("sqlite:///")
    for _ in range(100):
        os.kill(pid, signal.SIGSTOP)
        try:
            with closing(sqlite3.connect(file, timeout=0.2)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                return
        except sqlite3.OperationalError:
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
    raise AssertionError("the drain is always in a transaction")


@pytest.mark.seed("004-13", "E48", "E56")
@pytest.mark.parametrize("step", ["commit.before-publish", "publish.before", "publish.after", "listener.before"])
def test_a_drain_that_sleeps_through_its_successor_publishes_nothing_more(
    draining: Started, tmp_path: Path, step: str
) -> None:
    """Stopped around its publication; its successor finishes; then it goes on, fenced."""
    repository, recovery, settings = draining
    held, log, out = tmp_path / "held", tmp_path / "faults", tmp_path / "out"
    held.touch()
    pid = drain_in_child(recovery, f"{step}=pause:{held},drain.page=sleep:0.002", log=log)
    deadline = time.monotonic() + 60
    while not log.exists():
        assert time.monotonic() < deadline, "the fault never fired"
        time.sleep(0.02)
    stop_outside_a_transaction(pid, settings)
    finish(draining, out)
    before = sorted(str(path) for path in out.rglob("*.json"))
    held.unlink()
    os.kill(pid, signal.SIGCONT)
    assert exit_status(pid) == 4, "fenced"
    assert_published_once(repository, recovery, out)
    assert sorted(str(path) for path in out.rglob("*.json")) == before
    assert AttemptState.FENCED in {attempt.state for attempt in repository.attempts(recovery)}
