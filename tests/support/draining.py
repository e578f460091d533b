"""A drain that takes long enough to be cut, and one in a process of its own that may die."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cdr_core.drain import task
from cdr_core.metadata import Phase, Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.settings import Settings
from tests.support import inline

Started = tuple[Repository, str, Settings]
"""A recovery, with the database it is in and the settings it was made with."""

SLOWLY = "drain.page=sleep:0.003"


def make_slow(monkeypatch: pytest.MonkeyPatch, faults: str = SLOWLY) -> None:
    """Small pages, few of them, and a consumer that takes its time."""
    monkeypatch.setenv("CDR_PAGE_SIZE", "4KiB")
    monkeypatch.setenv("CDR_MEMORY_BUDGET", "64KiB")
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "4KiB")
    monkeypatch.setattr(task, "LISTEN_SECONDS", 0.005)
    if faults:
        monkeypatch.setenv("CDR_FAULTS", faults)


def spilled(request: RecoveryRequest) -> Started:
    """A recovery that is ready to be drained."""
    repository, recovery, settings = inline.start(request)
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
        inline.run(repository, recovery, phase, settings)
    return repository, recovery, settings


def drain_in_child(
    recovery: str, faults: str, workers: inline.InlineWorkers | None = None, log: Path | None = None
) -> int:
    """The drain in a process of its own, with these faults besides those in force; its pid. ``log``: what fired."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            inherited = os.environ.get("CDR_FAULTS")
            os.environ["CDR_FAULTS"] = f"{inherited},{faults}" if inherited else faults
            if log is not None:
                os.environ["CDR_FAULTS_LOG"] = str(log)
            code = inline.main([str(Phase.DRAIN), recovery], workers or inline.ThreadedWorkers())
        finally:
            os._exit(code)
    return pid


def exit_status(pid: int) -> int:
    """How the child ended; −9 = killed."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
