"""Spill sets and the grants that keep them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from cdr_core.errors import Refused
from cdr_core.metadata import Attempt, Phase, Repository, SpillFile, SpillSet, SpillSetState
from tests.metadata.steps import begin, reach

FILES = (SpillFile("/spill/0", 64), SpillFile("/spill/1", 36))
HAND_OVER = "hand-over"


def seal(repository: Repository, attempt: Attempt, subtask: int = 0, manifest: str = "/manifest") -> SpillSet:
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        return transaction.seal_spill_set(subtask, manifest, "host-1", FILES, 100)


def acquire(repository: Repository, attempt: Attempt, set_id: int, holder: str, durable: bool = False) -> None:
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        transaction.acquire_grant(set_id, holder, durable=durable)


def release(repository: Repository, attempt: Attempt, set_id: int, holder: str) -> bool:
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        return transaction.release_grant(set_id, holder)


@pytest.fixture
def spilling(repository: Repository) -> Attempt:
    return reach(repository, Phase.SPILL)


def test_a_sealed_set_has_its_files_in_order_and_the_grant_it_is_born_with(
    repository: Repository, spilling: Attempt
) -> None:
    sealed = seal(repository, spilling)
    assert repository.spill_sets(spilling.recovery_id) == (sealed,)
    assert (sealed.files, sealed.bytes, sealed.host) == (FILES, 100, "host-1")
    assert (sealed.state, sealed.epoch) == (SpillSetState.SEALED, spilling.epoch)
    assert [(grant.holder, grant.durable, grant.live) for grant in sealed.grants] == [(HAND_OVER, True, True)]


def test_a_set_is_sealed_once_in_an_attempt_and_replaced_by_a_later_one(
    repository: Repository, spilling: Attempt
) -> None:
    first = seal(repository, spilling)
    assert seal(repository, spilling).id == first.id
    with pytest.raises(Refused, match="has a sealed spill set of this attempt already"):
        seal(repository, spilling, manifest="/other")
    with repository.fenced(spilling.recovery_id, spilling.epoch) as transaction:
        files = [SpillFile("/again/0", 7)]
        again = transaction.seal_spill_set(0, "/again", "host-1", files, 7, again=True)
    assert repository.spill_sets(spilling.recovery_id) == (again,)
    assert (again.id, again.manifest, again.files, again.bytes) == (first.id, "/again", tuple(files), 7)
    assert [grant.holder for grant in again.grants if grant.live] == [HAND_OVER], "who held the first holds this one"
    with repository.fenced(spilling.recovery_id, spilling.epoch) as transaction:
        transaction.seal_spill_set(0, "/manifest", "host-1", FILES, 100, again=True)
    later = begin(repository, spilling.recovery_id, Phase.SPILL)
    assert seal(repository, later).id == first.id
    second = seal(repository, later, manifest="/other")
    assert [(each.id, each.state) for each in repository.spill_sets(spilling.recovery_id)] == [
        (first.id, SpillSetState.LOST),
        (second.id, SpillSetState.SEALED),
    ]
    with pytest.raises(Refused, match="is LOST: it gives no more grants"):
        acquire(repository, later, first.id, "reader")


def test_the_last_release_is_told_once_and_after_it_nobody_gets_a_grant(
    repository: Repository, spilling: Attempt
) -> None:
    held = seal(repository, spilling).id
    acquire(repository, spilling, held, "reader")
    acquire(repository, spilling, held, "checkpoint-1")
    assert not release(repository, spilling, held, HAND_OVER)
    assert not release(repository, spilling, held, HAND_OVER)
    assert not release(repository, spilling, held, "reader")
    assert not release(repository, spilling, held, "nobody")
    assert release(repository, spilling, held, "checkpoint-1")
    assert not release(repository, spilling, held, "checkpoint-1")
    assert repository.spill_sets(spilling.recovery_id)[0].state is SpillSetState.RELEASED
    with pytest.raises(Refused, match="is RELEASED: it gives no more grants"):
        acquire(repository, spilling, held, "late")


def test_of_many_who_release_at_once_one_is_the_last(repository: Repository, spilling: Attempt) -> None:
    held = seal(repository, spilling).id
    holders = [HAND_OVER, *(f"reader-{n}" for n in range(11))]
    for holder in holders[1:]:
        acquire(repository, spilling, held, holder)
    with ThreadPoolExecutor(len(holders)) as pool:
        last = list(pool.map(lambda holder: release(repository, spilling, held, holder), holders))
    assert sum(last) == 1


def test_grants_of_a_dead_attempt_are_void_but_durable_ones_stay(repository: Repository, spilling: Attempt) -> None:
    held = seal(repository, spilling).id
    acquire(repository, spilling, held, "reader")
    acquire(repository, spilling, held, "checkpoint-1", durable=True)
    later = begin(repository, spilling.recovery_id, Phase.SPILL)
    grants = {grant.holder: grant.live for grant in repository.spill_sets(spilling.recovery_id)[0].grants}
    assert grants == {HAND_OVER: True, "checkpoint-1": True, "reader": False}
    assert not release(repository, later, held, "checkpoint-1")
    assert release(repository, later, held, HAND_OVER), "the dead reader must not keep the set"


def test_a_dead_attempts_last_grant_does_not_take_the_set_from_its_successor(
    repository: Repository, spilling: Attempt
) -> None:
    held = seal(repository, spilling).id
    acquire(repository, spilling, held, "root")
    release(repository, spilling, held, HAND_OVER)
    later = begin(repository, spilling.recovery_id, Phase.SPILL)
    acquire(repository, later, held, "root")
    assert release(repository, later, held, "root")


def test_a_set_of_another_recovery_is_not_ours(repository: Repository, spilling: Attempt) -> None:
    held = seal(repository, spilling).id
    other = reach(repository, Phase.SPILL, target="parquet:/other")
    with pytest.raises(Refused, match="has no spill set"):
        acquire(repository, other, held, "reader")
