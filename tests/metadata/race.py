"""Two hundred writers: what each process of the race runs. A module of its own because the processes import it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from cdr_core.errors import Fenced
from cdr_core.metadata import FencedTransaction, NewRecovery, Phase, Repository
from tests.metadata.steps import new_recovery, runner

WRITERS = 25
"""Threads of one process that write; one more takes epochs."""
ROUNDS = 2

Fence = Callable[[Repository, str, int], AbstractContextManager[FencedTransaction]]


class NoFence(FencedTransaction):
    """The transaction without its first statement."""

    def __init__(self, session: object, recovery_id: str, epoch: int) -> None:
        self._session = session  # type: ignore[assignment]
        self.recovery_id, self.epoch = recovery_id, epoch


def the_fence(repository: Repository, recovery_id: str, epoch: int) -> AbstractContextManager[FencedTransaction]:
    return repository.fenced(recovery_id, epoch)


@contextmanager
def read_then_write(repository: Repository, recovery_id: str, epoch: int) -> Iterator[FencedTransaction]:
    """What the fence must not be: a look at the epoch, a moment, then the write."""
    if repository.recovery(recovery_id).epoch != epoch:
        raise Fenced("stale")
    time.sleep(0.02)
    with repository._database.write() as session:
        yield NoFence(session, recovery_id, epoch)


FENCES: dict[str, Fence] = {"the fence": the_fence, "read then write": read_then_write}


@dataclass
class Tally:
    """What one process saw. ``taken``: an epoch and how many units of older epochs there were just after it began."""

    landed: list[tuple[str, int]] = field(default_factory=list)
    fenced: int = 0
    stale_landed: list[str] = field(default_factory=list)
    taken: list[tuple[int, int]] = field(default_factory=list)


def units_before(repository: Repository, recovery_id: str, epoch: int) -> int:
    return sum(unit.epoch < epoch for unit in repository.units(recovery_id, Phase.READ))


def race(url: str, recovery_id: str, process: int, fence: str, start: threading.Barrier) -> Tally:
    """Thread 0 takes epoch after epoch; a third of the others writes with an epoch that is known to be over."""
    tally, lock = Tally(), threading.Lock()
    with Repository.open(url) as repository, ThreadPoolExecutor(WRITERS + 1) as pool:
        start.wait(60)
        work = [
            pool.submit(_run, repository, recovery_id, (process, n), fence, tally, lock) for n in range(WRITERS + 1)
        ]
        for each in work:
            each.result()
    return tally


def _run(
    repository: Repository, recovery_id: str, who: tuple[int, int], fence: str, tally: Tally, lock: threading.Lock
) -> None:
    for turn in range(ROUNDS):
        time.sleep(random.uniform(0, 0.05))
        if who[1] == 0:
            attempt = repository.begin_attempt(recovery_id, Phase.READ, runner(run=f"{who}-{turn}"))
            assert attempt is not None
            older = units_before(repository, recovery_id, attempt.epoch)
            with lock:
                tally.taken.append((attempt.epoch, older))
        else:
            stale = (who[1] + turn) % 3 == 0
            _write(repository, recovery_id, f"{who[0]}-{who[1]}-{turn}", stale, fence, tally, lock)


def _write(
    repository: Repository, recovery_id: str, unit: str, stale: bool, fence: str, tally: Tally, lock: threading.Lock
) -> None:
    epoch = repository.recovery(recovery_id).epoch - stale
    try:
        with FENCES[fence](repository, recovery_id, epoch) as transaction:
            transaction.record_unit(Phase.READ, unit, f"/{unit}", 1, 1, {})
    except Fenced:
        with lock:
            tally.fenced += 1
        return
    with lock:
        tally.landed.append((unit, epoch))
        if stale:
            tally.stale_landed.append(unit)


def create(url: str, new: NewRecovery, start: threading.Barrier) -> list[tuple[str, bool]]:
    """Many threads that want the same recovery; which one each got and whether it made it."""
    with Repository.open(url) as repository, ThreadPoolExecutor(8) as pool:
        start.wait(60)
        found = pool.map(lambda _: repository.create_recovery(new_recovery(target=new.target)), range(8))
        return [(recovery.id, created) for recovery, created in found]
