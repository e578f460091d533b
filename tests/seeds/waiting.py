"""A drain in a process of its own, and waiting for the recovery checkpoints that it completes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cdr_core.drain.checkpoint_cuts import read_cuts
from cdr_core.metadata import Phase, PhaseState, RecoveryCheckpoint, RecoveryCheckpointState, Repository
from cdr_core.runtime.unit_runner import load_plan
from cdr_core.runtime.workspace import read_json
from cdr_core.spill.spill_set import SpillSet
from tests.support import inline

SECONDS = 120.0
"""To wait at most; on a quiet machine everything here takes a few."""
COMPLETE = {RecoveryCheckpointState.COMPLETED, RecoveryCheckpointState.EXPIRED}
"""One that a newer one replaced was complete all the same."""


class NotEnoughCheckpoints(AssertionError):
    """Time is over, or the drain is, and fewer came than were waited for."""


def in_flight(repository: Repository, recovery: str, row: RecoveryCheckpoint) -> int:
    """Elements that a complete recovery checkpoint leaves to be drained, over all subtasks."""
    plan_uri = repository.recovery(recovery).plan_uri
    assert plan_uri is not None
    left = 0
    for cut in read_cuts(row, load_plan(plan_uri)).values():
        if not cut.final:
            spill_set = SpillSet.from_json(read_json(cut.manifest))
            left += int(spill_set.columns["piece_elements"].sum())
            left -= 0 if cut.columns is None else int(cut.columns["delivered"].sum())
    return left


def wait_for_checkpoints(
    repository: Repository, recovery: str, n: int, *, with_in_flight: bool = True, seconds: float = SECONDS
) -> list[int]:
    """Wait until at least ``n`` recovery checkpoints are complete (and leave records in flight); their numbers."""
    deadline = time.monotonic() + seconds
    counts: dict[int, bool] = {}
    while True:
        over = time.monotonic() > deadline or _is_drained(repository, recovery)
        for row in repository.checkpoints(recovery):
            if row.state in COMPLETE and row.checkpoint_id not in counts:
                counts[row.checkpoint_id] = not with_in_flight or in_flight(repository, recovery, row) > 0
        found = [number for number, counted in counts.items() if counted]
        if len(found) >= n:
            return found
        if over:
            raise NotEnoughCheckpoints(f"{len(found)} of {n} came; {len(counts)} were complete")
        time.sleep(0.01)


def _is_drained(repository: Repository, recovery: str) -> bool:
    return any(row.name is Phase.DRAIN and row.state is PhaseState.DONE for row in repository.phases(recovery))


class Draining:
    """A drain under way."""

    def __init__(self, pid: int) -> None:
        self._pid: int | None = pid

    def kill(self) -> None:
        """Kill -9, as if its machine were gone."""
        assert self._pid is not None
        os.kill(self._pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL, "the drain was over before it could be killed"

    def wait(self) -> int:
        assert self._pid is not None
        pid, self._pid = self._pid, None
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def end(self) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            self.wait()


@contextmanager
def draining(recovery: str) -> Iterator[Draining]:
    """The drain of a recovery in a child, with its units in threads; nothing of it is left behind."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = inline.main([str(Phase.DRAIN), recovery], inline.ThreadedWorkers())
        finally:
            os._exit(code)
    child = Draining(pid)
    try:
        yield child
    finally:
        child.end()
