"""Recovery checkpoints and the output prepared for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cdr_core.errors import Refused
from cdr_core.metadata import Attempt, FencedTransaction, Phase, Repository
from tests.metadata.steps import begin, prepared, reach


@pytest.fixture
def draining(repository: Repository) -> Attempt:
    return reach(repository, Phase.DRAIN)


def do(repository: Repository, attempt: Attempt, *writes: Callable[[FencedTransaction], object]) -> list[object]:
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        return [write(transaction) for write in writes]


def trigger(number: int) -> Callable[[FencedTransaction], object]:
    return lambda transaction: transaction.begin_checkpoint(number)


def complete(number: int) -> Callable[[FencedTransaction], object]:
    return lambda transaction: transaction.complete_checkpoint(number, f"/{number}", "aa", {"records": number})


def add(subtask: int, number: int, content: str) -> Callable[[FencedTransaction], object]:
    return lambda transaction: transaction.add_prepared(prepared(subtask, number, content))


def states(repository: Repository, attempt: Attempt) -> dict[int, str]:
    return {each.checkpoint_id: str(each.state) for each in repository.checkpoints(attempt.recovery_id)}


def test_a_checkpoint_completes_with_its_manifest(repository: Repository, draining: Attempt) -> None:
    do(repository, draining, trigger(1))
    assert states(repository, draining) == {1: "TRIGGERED"}
    do(repository, draining, complete(1))
    (stored,) = repository.checkpoints(draining.recovery_id)
    assert (stored.state, stored.manifest, stored.sha256) == ("COMPLETED", "/1", "aa")
    assert (stored.result, stored.epoch) == ({"records": 1}, draining.epoch)
    assert stored.ended_at is not None


def test_numbers_only_grow_over_all_attempts(repository: Repository, draining: Attempt) -> None:
    do(repository, draining, trigger(4))
    later = begin(repository, draining.recovery_id, Phase.DRAIN)
    for number in (3, 4):
        with pytest.raises(Refused, match=f"recovery checkpoint {number} cannot follow 4"):
            do(repository, later, trigger(number))
    do(repository, later, trigger(5))


def test_a_completed_checkpoint_subsumes_the_older_pending_ones_for_good(
    repository: Repository, draining: Attempt
) -> None:
    do(repository, draining, trigger(1), trigger(2), trigger(3), complete(2))
    assert states(repository, draining) == {1: "SUBSUMED", 2: "COMPLETED", 3: "TRIGGERED"}
    with pytest.raises(Refused, match="cannot go from SUBSUMED to COMPLETED"):
        do(repository, draining, complete(1))


def test_a_checkpoint_ends_once(repository: Repository, draining: Attempt) -> None:
    do(repository, draining, trigger(1), lambda transaction: transaction.abort_checkpoint(1, "timeout"))
    assert repository.checkpoints(draining.recovery_id)[0].reason == "timeout"
    with pytest.raises(Refused, match="cannot go from ABORTED to COMPLETED"):
        do(repository, draining, complete(1))
    with pytest.raises(Refused, match="has no checkpoint 9"):
        do(repository, draining, complete(9))


def test_only_a_completed_checkpoint_expires(repository: Repository, draining: Attempt) -> None:
    do(repository, draining, trigger(1))
    with pytest.raises(Refused, match="cannot go from TRIGGERED to EXPIRED"):
        do(repository, draining, lambda transaction: transaction.expire_checkpoint(1, "old"))
    do(repository, draining, complete(1), lambda transaction: transaction.expire_checkpoint(1, "old"))
    assert states(repository, draining) == {1: "EXPIRED"}


@pytest.mark.seed("004-12")
def test_prepared_output_is_recorded_once(repository: Repository, draining: Attempt) -> None:
    value = prepared(1, 1, "a", watermark=-5, idle=True)
    assert do(
        repository,
        draining,
        lambda transaction: transaction.add_prepared(value),
        lambda transaction: transaction.add_prepared(value),
        add(0, 1, "b"),
    ) == [True, False, True]
    rows = repository.prepared(draining.recovery_id)
    assert [(row.subtask, row.manifest, row.watermark, row.idle) for row in rows] == [
        (0, "/b.json", None, False),
        (1, "/a.json", -5, True),
    ]
    assert {row.epoch for row in rows} == {draining.epoch}


def test_prepared_output_comes_in_the_order_of_commits(repository: Repository, draining: Attempt) -> None:
    keys = [(2, 10), (10, 2), (0, 10), (2, 2)]
    do(repository, draining, *(add(subtask, number, f"{subtask}-{number}") for subtask, number in keys))
    rows = repository.prepared(draining.recovery_id)
    assert [(row.checkpoint_id, row.subtask) for row in rows] == [(2, 2), (2, 10), (10, 0), (10, 2)]


def test_one_attempt_does_not_prepare_the_same_checkpoint_twice(repository: Repository, draining: Attempt) -> None:
    do(repository, draining, add(0, 1, "a"))
    with pytest.raises(Refused, match="was recorded by this attempt already"):
        do(repository, draining, add(0, 1, "b"))


def test_stale_prepared_output_is_replaced_by_a_newer_attempt(repository: Repository, draining: Attempt) -> None:
    do(repository, draining, trigger(1), add(0, 1, "stale"))
    later = begin(repository, draining.recovery_id, Phase.DRAIN)
    assert do(repository, later, add(0, 1, "fresh")) == [True]
    (row,) = repository.prepared(draining.recovery_id)
    assert (row.manifest, row.epoch) == ("/fresh.json", later.epoch)


@pytest.mark.parametrize("number", [1, 2])
def test_prepared_output_that_a_complete_checkpoint_counts_on_stays(
    repository: Repository, draining: Attempt, number: int
) -> None:
    """Also that of an aborted checkpoint before it: aborted is not rolled back."""
    do(repository, draining, add(0, 1, "a"), add(0, 2, "b"), trigger(2), complete(2))
    later = begin(repository, draining.recovery_id, Phase.DRAIN)
    with pytest.raises(Refused, match="cannot be replaced: checkpoint 2 is complete"):
        do(repository, later, add(0, number, "other"))
    do(repository, later, lambda transaction: transaction.expire_checkpoint(2, "old"))
    with pytest.raises(Refused, match="cannot be replaced"):
        do(repository, later, add(0, number, "other"))


def test_a_subtask_that_starts_again_forgets_what_came_after_its_checkpoint(
    repository: Repository, draining: Attempt
) -> None:
    do(repository, draining, add(0, 1, "a"), add(1, 1, "b"), trigger(1), complete(1))
    do(repository, draining, add(0, 2, "c"), add(0, 3, "d"), add(1, 2, "e"))
    later = begin(repository, draining.recovery_id, Phase.DRAIN)
    with pytest.raises(Refused, match="cannot go back to checkpoint 0: 1 is complete"):
        do(repository, later, lambda transaction: transaction.reset_subtask(0, 0))
    assert do(repository, later, lambda transaction: transaction.reset_subtask(0, 1)) == [2]
    rows = repository.prepared(draining.recovery_id)
    assert [(row.subtask, row.checkpoint_id) for row in rows] == [(0, 1), (1, 1), (1, 2)]
