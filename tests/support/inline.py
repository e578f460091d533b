"""Phases without Spark: the units run in this very process, so that a fault hits exactly the step it is meant for.

``python -m tests.support.inline PHASE RECOVERY [EPOCH]`` is the same in a process of its own, to be killed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cdr_core import settings as settings_module
from cdr_core.errors import CdrError
from cdr_core.metadata import Phase, Repository, upgrade
from cdr_core.recovery.recovery_request import RecoveryRequest, create_in
from cdr_core.runtime.driver import PhaseRun, run_phase, stored_result
from cdr_core.runtime.phase_command import own_runner
from cdr_core.runtime.unit_runner import end_task, run_unit
from cdr_core.settings import Settings
from tests.support import lanes

if TYPE_CHECKING:
    import pytest


class InlineWorkers:
    """See :class:`cdr_core.runtime.executor_backend.Workers`; counts what it does."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.ended = False

    def start(self, drive: PhaseRun) -> None:
        """Nobody to get ready."""

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        try:
            for unit in units:
                run_unit(payload, unit, 0)
                self.done.append(f"{drive.phase}/{unit}")
                on_poll()
        finally:
            end_task()

    def end(self, drive: PhaseRun) -> None:
        self.ended = True


class ThreadedWorkers(InlineWorkers):
    """The units run in threads while the driver polls, as on Spark: what happens between the two can be tested."""

    def __init__(self, threads: int = 2) -> None:
        super().__init__()
        self._threads = threads

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        with ThreadPoolExecutor(self._threads) as pool:
            jobs = {unit: pool.submit(run_unit, payload, unit, 0) for unit in units}
            try:
                while not all(job.done() for job in jobs.values()):
                    on_poll()
                    time.sleep(0.01)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        on_poll()
        for unit, job in jobs.items():
            job.result()
            self.done.append(f"{drive.phase}/{unit}")


def start(request: RecoveryRequest, *, trust_key: bool = True) -> tuple[Repository, str, Settings]:
    """A recovery in the database of the settings in force; its key is trusted, as few records cannot prove it."""
    lanes.require("phases")
    settings = settings_module.load()
    settings.home.mkdir(parents=True, exist_ok=True)
    upgrade(settings.database_url)
    repository = Repository.open(settings.database_url)
    wished = replace(request, trust_key=trust_key)
    return repository, create_in(repository, wished, settings)[0].id, settings


def run(
    repository: Repository, recovery: str, phase: Phase, settings: Settings, workers: InlineWorkers | None = None
) -> Mapping[str, Any]:
    """One phase, as ``cdr phase`` would."""
    attempt = repository.begin_attempt(recovery, phase, own_runner(str(phase)))
    if attempt is None:
        return stored_result(repository, recovery, phase)
    workers = workers or InlineWorkers()
    return run_phase(repository, recovery, phase, attempt.epoch, settings, workers, lambda _: None)


def run_to(last: Phase, repository: Repository, recovery: str, settings: Settings) -> Mapping[str, Any]:
    """The phases up to and including this one; its result."""
    phases = list(Phase)
    results = [run(repository, recovery, phase, settings) for phase in phases[: phases.index(last) + 1]]
    return results[-1]


def run_all(repository: Repository, recovery: str, settings: Settings) -> Mapping[str, Any]:
    """All five phases; the result of the last."""
    return run_to(Phase.COMMIT, repository, recovery, settings)


class WithoutSpark(InlineWorkers):
    """The units in this process, where a session is expected."""

    def __enter__(self) -> WithoutSpark:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing was opened."""


class _ShellWorkers(WithoutSpark):
    """As the shell makes them."""

    def __init__(self, _: Settings) -> None:
        super().__init__()


def in_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``cdr recover`` and its kin run units in this process, in a database of the test's own."""
    settings = settings_module.load()
    settings.home.mkdir(parents=True, exist_ok=True)
    upgrade(settings.database_url)
    monkeypatch.setattr("cdr_core.runtime.executor_backend.SparkWorkers", _ShellWorkers)


def main(arguments: list[str], workers: InlineWorkers | None = None) -> int:
    phase, recovery, *epoch = arguments
    settings = settings_module.load()
    workers = workers or InlineWorkers()
    with Repository.open(settings.database_url) as repository:
        try:
            if epoch:
                run_phase(repository, recovery, Phase(phase), int(epoch[0]), settings, workers, lambda _: None)
            else:
                run(repository, recovery, Phase(phase), settings, workers)
        except CdrError as error:
            print(f"cdr: {error}", file=sys.stderr)
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
