"""Two hundred writers with stale and fresh epochs: no stale write lands.

The same race with a fence that only looks before it writes must lose, or it would prove nothing.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.managers import SyncManager

import pytest

from cdr_core.metadata import Phase, Repository
from tests.metadata import race
from tests.metadata.steps import begin, new_recovery

PROCESSES = 8


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[ProcessPoolExecutor, SyncManager]]:
    """Eight processes for all races of this file; not forked from this one, whose threads and connections are many."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.metadata.race"])
    with context.Manager() as manager, ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        yield pool, manager


def run_race(
    workers: tuple[ProcessPoolExecutor, SyncManager], url: str, recovery_id: str, fence: str
) -> list[race.Tally]:
    pool, manager = workers
    start = manager.Barrier(PROCESSES)
    work = [pool.submit(race.race, url, recovery_id, n, fence, start) for n in range(PROCESSES)]
    return [each.result(120) for each in work]


def late_writes(repository: Repository, recovery_id: str, tallies: list[race.Tally]) -> int:
    """Units of older epochs that appeared after a newer epoch had begun."""
    return sum(
        race.units_before(repository, recovery_id, epoch) - older for tally in tallies for epoch, older in tally.taken
    )


@pytest.fixture
def recovery_id(repository: Repository) -> str:
    recovery, _ = repository.create_recovery(new_recovery())
    begin(repository, recovery.id, Phase.READ)
    return recovery.id


def test_no_stale_write_of_two_hundred_writers_lands(
    workers: tuple[ProcessPoolExecutor, SyncManager], url: str, repository: Repository, recovery_id: str
) -> None:
    tallies = run_race(workers, url, recovery_id, "the fence")
    assert late_writes(repository, recovery_id, tallies) == 0
    assert [unit for tally in tallies for unit in tally.stale_landed] == []
    taken = sorted(epoch for tally in tallies for epoch, _ in tally.taken)
    assert taken == list(range(2, 2 + PROCESSES * race.ROUNDS)), "every epoch has one owner"
    landed = {pair for tally in tallies for pair in tally.landed}
    stored = {(unit.unit, unit.epoch) for unit in repository.units(recovery_id, Phase.READ)}
    assert landed == stored, "what was acknowledged is there, and nothing else"
    assert repository.phases(recovery_id)[0].units_done == len(stored)
    writes = PROCESSES * race.WRITERS * race.ROUNDS
    assert len(landed) + sum(tally.fenced for tally in tallies) == writes
    assert 0 < len(landed) < writes


def test_a_fence_that_reads_and_then_writes_loses_the_same_race(
    workers: tuple[ProcessPoolExecutor, SyncManager], url: str, repository: Repository, recovery_id: str
) -> None:
    tallies = run_race(workers, url, recovery_id, "read then write")
    assert late_writes(repository, recovery_id, tallies) > 0


def test_many_processes_that_create_at_once_get_one_recovery(
    workers: tuple[ProcessPoolExecutor, SyncManager], url: str, repository: Repository
) -> None:
    pool, manager = workers
    start = manager.Barrier(PROCESSES)
    work = [pool.submit(race.create, url, new_recovery(), start) for _ in range(PROCESSES)]
    answers = [answer for each in work for answer in each.result(120)]
    assert len({recovery_id for recovery_id, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1
    assert len(repository.recoveries()) == 1
