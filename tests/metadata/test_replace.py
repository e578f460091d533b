"""Start-overs that race with each other and with the recovery that they replace."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, get_ident
from typing import Any

import pytest

from cdr_core.errors import Refused, StartOver
from cdr_core.metadata import (
    NewRecovery,
    Phase,
    Recovery,
    RecoverySettings,
    RecoveryState,
    Repository,
    create,
    generation_id,
)
from tests.metadata.steps import new_recovery, reach

TOKENS = ("one", "two", "three") * 2
"""A repository has eight connections: every racer gets one."""
PATIENCE = 20


def _successor(old: Recovery, token: str) -> NewRecovery:
    generation = old.generation + 1
    return new_recovery(
        id=generation_id(old.id, generation),
        generation=generation,
        replaces=old.id,
        settings=RecoverySettings(replace_token=token),
    )


@pytest.fixture
def after_first_look(backend: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Call a function in each thread when its transaction has found the old generation and has not locked it.

    SQLite's write transactions do not overlap, so there is no such moment.
    """

    def install(pause: Callable[[], object]) -> None:
        find, seen = create.find, set[int]()

        def find_and_pause(*arguments: Any) -> Any:
            found = find(*arguments)
            if get_ident() not in seen:
                seen.add(get_ident())
                pause()
            return found

        if backend == "postgresql":
            monkeypatch.setattr(create, "find", find_and_pause)

    return install


def test_of_racing_start_overs_one_makes_the_next_generation(
    repository: Repository, after_first_look: Callable[[Callable[[], object]], None]
) -> None:
    old, _ = repository.create_recovery(new_recovery())
    together = Barrier(len(TOKENS), timeout=PATIENCE)
    after_first_look(together.wait)

    def start_over(token: str) -> tuple[str, Recovery | StartOver, bool]:
        try:
            return token, *repository.create_recovery(_successor(old, token))
        except StartOver as refusal:
            return token, refusal, False

    with ThreadPoolExecutor(len(TOKENS)) as pool:
        answers = list(pool.map(start_over, TOKENS))
    (winner,) = [token for token, _, created in answers if created]
    for token, answer, _ in answers:
        if token == winner:
            assert isinstance(answer, Recovery)
            assert answer.id == f"{old.id}-g2"
        else:
            assert f"{old.id} was replaced by {old.id}-g2 while this start-over was checked" in str(answer)
    assert {recovery.id for recovery in repository.recoveries()} == {old.id, f"{old.id}-g2"}
    replaced = repository.recovery(old.id)
    assert (replaced.state, replaced.replaced_by) == (RecoveryState.REPLACED, f"{old.id}-g2")
    assert replaced.epoch == old.epoch + 1, "it was replaced once"


def test_a_start_over_waits_for_the_end_of_the_old_generation(
    repository: Repository, after_first_look: Callable[[Callable[[], object]], None]
) -> None:
    """The old generation becomes DONE between the start-over's first look and its lock."""
    attempt = reach(repository, Phase.COMMIT)
    old = repository.recovery(attempt.recovery_id)
    looked = Event()
    after_first_look(looked.set)
    with ThreadPoolExecutor(1) as pool:
        with repository.fenced(old.id, attempt.epoch) as transaction:
            answer = pool.submit(repository.create_recovery, _successor(old, "one"))
            looked.wait(1)
            transaction.set_total(Phase.COMMIT, 0, 0)
            transaction.finish_phase(Phase.COMMIT, {})
        with pytest.raises(Refused, match="cannot be started over: it has published"):
            answer.result(PATIENCE)
    assert repository.recovery(old.id).state is RecoveryState.DONE


def test_a_start_over_of_a_generation_that_was_replaced_is_refused(repository: Repository) -> None:
    old, _ = repository.create_recovery(new_recovery())
    second, _ = repository.create_recovery(_successor(old, "one"))
    assert repository.create_recovery(_successor(old, "one")) == (second, False)
    with pytest.raises(StartOver, match=rf"was replaced by {second.id} .* start over with --replace once more"):
        repository.create_recovery(_successor(old, "two"))
    third, created = repository.create_recovery(_successor(second, "two"))
    assert (third.id, created) == (f"{old.id}-g3", True)


def test_a_recovery_that_has_published_is_not_replaced(repository: Repository) -> None:
    """A commit that was only intended is no obstacle, one that is visible is."""
    attempt = reach(repository, Phase.COMMIT)
    old = repository.recovery(attempt.recovery_id)
    proof = hashlib.sha256(b"{}").hexdigest()
    with repository.fenced(old.id, attempt.epoch) as transaction:
        transaction.intend("cdr", 1, None, proof, "{}")
        transaction.published("cdr", 1, "/there", None)
    with pytest.raises(Refused, match="/there"):
        repository.create_recovery(_successor(old, "one"))
    assert repository.recovery(old.id).state is not RecoveryState.REPLACED
