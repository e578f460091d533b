"""Intent, publication, proof, receipt, and what the coordinator must not forget."""

from __future__ import annotations

import pytest

from cdr_core.errors import Refused
from cdr_core.metadata import Attempt, CommitState, CoordinatorState, Phase, Repository
from tests.metadata.steps import PROOF, PROOF_SHA256, USER, begin, reach


@pytest.fixture
def committing(repository: Repository) -> Attempt:
    return reach(repository, Phase.COMMIT)


def intend(repository: Repository, attempt: Attempt, number: int = 1, base: str | None = "41", user: str = USER) -> str:
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        return str(transaction.intend(user, number, base, PROOF_SHA256, PROOF).state)


def publish(repository: Repository, attempt: Attempt, location: str = "/t/42", uuid: str | None = "u-1") -> None:
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        transaction.published(USER, 1, location, uuid)


def test_the_intent_is_durable_with_its_proof(repository: Repository, committing: Attempt) -> None:
    assert repository.proof(committing.recovery_id) is None
    assert intend(repository, committing) == "INTENT"
    (entry,) = repository.commit_log(committing.recovery_id)
    assert (entry.commit_user, entry.commit_id, entry.base, entry.location) == (USER, 1, "41", None)
    proof = repository.proof(committing.recovery_id)
    assert proof is not None
    assert (proof.sha256, entry.proof_sha256) == (PROOF_SHA256, PROOF_SHA256)
    assert proof.body == '{"ledgers": {}, "version": 1}'
    assert repository.proof(committing.recovery_id, "00") is None


def test_a_proof_that_is_not_the_published_one_is_refused(repository: Repository, committing: Attempt) -> None:
    with (
        pytest.raises(Refused, match="does not have the SHA-256"),
        repository.fenced(committing.recovery_id, committing.epoch) as transaction,
    ):
        transaction.intend(USER, 1, None, PROOF_SHA256, {"another": "proof"})
    assert repository.commit_log(committing.recovery_id) == ()


def test_an_intent_takes_a_new_base_until_it_is_published(repository: Repository, committing: Attempt) -> None:
    intend(repository, committing)
    later = begin(repository, committing.recovery_id, Phase.COMMIT)
    assert intend(repository, later, base="50") == "INTENT"
    (entry,) = repository.commit_log(committing.recovery_id)
    assert (entry.base, entry.epoch) == ("50", later.epoch)
    publish(repository, later)
    assert intend(repository, later, base="60") == "PUBLISHED"
    assert repository.commit_log(committing.recovery_id)[0].base == "50"


def test_a_commit_is_published_at_one_place(repository: Repository, committing: Attempt) -> None:
    with pytest.raises(Refused, match="was never intended"):
        publish(repository, committing)
    intend(repository, committing)
    publish(repository, committing)
    publish(repository, committing)
    with pytest.raises(Refused, match="is at /t/42, it cannot also be at /t/43"):
        publish(repository, committing, "/t/43")
    (entry,) = repository.commit_log(committing.recovery_id)
    assert (entry.state, entry.location, entry.uuid) == (CommitState.PUBLISHED, "/t/42", "u-1")


def test_a_commit_is_done_only_after_it_is_published(repository: Repository, committing: Attempt) -> None:
    def done() -> None:
        with repository.fenced(committing.recovery_id, committing.epoch) as transaction:
            transaction.commit_done(USER, 1)

    intend(repository, committing)
    with pytest.raises(Refused, match="cannot go from INTENT to DONE"):
        done()
    publish(repository, committing)
    done()
    done()
    publish(repository, committing)
    assert repository.commit_log(committing.recovery_id)[0].state is CommitState.DONE


def test_ids_grow_and_a_hole_is_not_filled_afterwards(repository: Repository, committing: Attempt) -> None:
    intend(repository, committing, 2)
    intend(repository, committing, 9_000_000_000)
    with pytest.raises(Refused, match="commit 3 of cdr-user cannot follow 9000000000"):
        intend(repository, committing, 3)
    assert intend(repository, committing, 2) == "INTENT"


def test_there_is_never_a_second_commit_user(repository: Repository, committing: Attempt) -> None:
    intend(repository, committing)
    with pytest.raises(Refused, match="commits as cdr-user, not as other"):
        intend(repository, committing, 2, user="other")
    with (
        pytest.raises(Refused, match="commits as cdr-user, not as other"),
        repository.fenced(committing.recovery_id, committing.epoch) as transaction,
    ):
        transaction.save_coordinator_state("other", {})


def test_the_coordinators_state_outlives_it(repository: Repository, committing: Attempt) -> None:
    assert repository.coordinator_state(committing.recovery_id) is None
    with repository.fenced(committing.recovery_id, committing.epoch) as transaction:
        transaction.save_coordinator_state(USER, {"partition": {"done": ["a"]}})
    later = begin(repository, committing.recovery_id, Phase.COMMIT)
    with repository.fenced(later.recovery_id, later.epoch) as transaction:
        transaction.save_coordinator_state(USER, {"partition": {"done": ["a", "b"]}}, version=2)
    assert repository.coordinator_state(committing.recovery_id) == CoordinatorState(
        USER, {"partition": {"done": ["a", "b"]}}, 2
    )
    with pytest.raises(Refused, match="commits as cdr-user, not as other"):
        intend(repository, later, user="other")


def test_the_receipt_is_kept_and_may_be_written_again(repository: Repository, committing: Attempt) -> None:
    assert repository.receipt(committing.recovery_id) is None
    for verdict in ("partial", "balanced"):
        with repository.fenced(committing.recovery_id, committing.epoch) as transaction:
            transaction.save_receipt({"verdict": verdict, "records": [1, 2]})
    assert repository.receipt(committing.recovery_id) == {"verdict": "balanced", "records": [1, 2]}
