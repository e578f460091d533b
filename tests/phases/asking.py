"""A drain in which checkpoints are asked for, step by step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cdr_core.cli import main
from cdr_core.drain.snapshots import Snapshots
from cdr_core.metadata import Command, Phase, RecoveryCheckpointState
from cdr_core.runtime.driver import PhaseRun
from cdr_core.runtime.unit_runner import Job, run_unit
from tests.support import inline, output
from tests.support.checkpoints import FixtureCheckpoint
from tests.support.comparing import compare
from tests.support.draining import Started

Poll = Callable[[], None]


class Script(inline.InlineWorkers):
    """The units run as a test says, step by step; ``run_unit`` runs one to its end, ``poll`` is the driver's."""

    def __init__(self, script: Callable[[Script, Sequence[str], Poll], None]) -> None:
        super().__init__()
        self._script = script

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Poll) -> None:
        self._payload = payload
        self.snapshots = Snapshots(Job.from_json(payload).directory)
        self._script(self, units, on_poll)

    def run_unit(self, unit: str) -> None:
        run_unit(self._payload, unit, 0)


Spilled = tuple[Started, FixtureCheckpoint, Path]


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


def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code, and what was said."""
    monkeypatch.setattr(sys, "argv", ["cdr", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.run()
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out or said.err
