"""What users ask, exempt from the fence, and cancelling."""

from __future__ import annotations

import pytest

from cdr_core.errors import Fenced, Refused
from cdr_core.metadata import (
    AttemptState,
    Command,
    CommandState,
    Phase,
    PhaseState,
    RecoveryState,
    Repository,
)
from tests.metadata.steps import PROOF, PROOF_SHA256, USER, begin, finish, new_recovery, reach


def take(repository: Repository, recovery_id: str, epoch: int) -> tuple[Command, ...]:
    with repository.fenced(recovery_id, epoch) as transaction:
        return transaction.take_commands()


def test_a_request_needs_no_epoch_and_is_taken_once(repository: Repository) -> None:
    attempt = reach(repository, Phase.DRAIN)
    asked = [repository.request(attempt.recovery_id, "checkpoint", {"to": f"/{n}"}) for n in range(2)]
    assert asked[0].state is CommandState.REQUESTED
    taken = take(repository, attempt.recovery_id, attempt.epoch)
    assert [(command.id, command.args, command.state) for command in taken] == [
        (asked[0].id, {"to": "/0"}, CommandState.ACCEPTED),
        (asked[1].id, {"to": "/1"}, CommandState.ACCEPTED),
    ]
    assert take(repository, attempt.recovery_id, attempt.epoch) == ()


def test_an_accepted_command_of_a_dead_attempt_is_taken_again(repository: Repository) -> None:
    attempt = reach(repository, Phase.DRAIN)
    asked = repository.request(attempt.recovery_id, "checkpoint", {})
    take(repository, attempt.recovery_id, attempt.epoch)
    later = begin(repository, attempt.recovery_id, Phase.DRAIN)
    assert [command.id for command in take(repository, later.recovery_id, later.epoch)] == [asked.id]


def test_a_command_is_answered_once(repository: Repository) -> None:
    attempt = reach(repository, Phase.DRAIN)
    asked = repository.request(attempt.recovery_id, "checkpoint", {})

    def answer(state: CommandState, command_id: int = asked.id) -> None:
        with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
            transaction.answer_command(command_id, state, {"checkpoint": 3})

    with pytest.raises(Refused, match="ACCEPTED is no answer"):
        answer(CommandState.ACCEPTED)
    answer(CommandState.DONE)
    (stored,) = repository.commands(attempt.recovery_id)
    assert (stored.state, stored.answer) == (CommandState.DONE, {"checkpoint": 3})
    assert stored.answered_at is not None
    with pytest.raises(Refused, match="cannot go from DONE to REFUSED"):
        answer(CommandState.REFUSED)
    with pytest.raises(Refused, match="has no command 999"):
        answer(CommandState.DONE, 999)


def test_a_request_is_overdue_only_if_no_drain_began_in_its_time(repository: Repository) -> None:
    """A drain that began in time takes a request, however late it hears it; one that begins too late does not."""
    recovery, _ = repository.create_recovery(new_recovery())
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
        finish(repository, recovery.id, phase)
    early = repository.request(recovery.id, "checkpoint", {"to": "/early"})
    assert early.answer == {"reason": "the drain has not started", "not_ready": True}
    attempt = begin(repository, recovery.id, Phase.DRAIN)
    heard = repository.request(recovery.id, "checkpoint", {"to": "/heard"})
    assert heard.answer is None
    repository.refuse_overdue(recovery.id, 3600.0)
    assert {each.state for each in repository.commands(recovery.id)} == {CommandState.REQUESTED}
    repository.refuse_overdue(recovery.id, 0.0)
    assert [each.state for each in repository.commands(recovery.id)] == [CommandState.REFUSED, CommandState.REQUESTED]
    with repository.fenced(recovery.id, attempt.epoch) as transaction:
        transaction.fail_attempt("it ends before it hears")
    repository.refuse_overdue(recovery.id, 0.0)
    assert {each.state for each in repository.commands(recovery.id)} == {CommandState.REFUSED}


def test_what_was_taken_is_not_overdue_and_waits_for_nothing(repository: Repository) -> None:
    attempt = reach(repository, Phase.SPILL)
    asked = repository.request(attempt.recovery_id, "checkpoint", {})
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        assert transaction.take_commands("cancel") == ()
    finish(repository, attempt.recovery_id, Phase.SPILL)
    drain = begin(repository, attempt.recovery_id, Phase.DRAIN)
    (taken,) = take(repository, attempt.recovery_id, drain.epoch)
    assert (taken.id, taken.answer) == (asked.id, None)
    repository.refuse_overdue(attempt.recovery_id, 0.0)
    assert repository.commands(attempt.recovery_id)[0].state is CommandState.ACCEPTED


def test_nothing_can_be_asked_of_a_recovery_that_ended(repository: Repository) -> None:
    recovery, _ = repository.create_recovery(new_recovery())
    for phase in Phase:
        finish(repository, recovery.id, phase)
    for kind in ("checkpoint", "cancel"):
        with pytest.raises(Refused, match=r"is DONE|is done"):
            repository.request(recovery.id, kind, {})


def test_cancel_is_immediate_when_nothing_runs_and_fences_a_zombie(repository: Repository) -> None:
    recovery, _ = repository.create_recovery(new_recovery())
    attempt = finish(repository, recovery.id, Phase.READ)
    asked = repository.request(recovery.id, "checkpoint", {})
    command = repository.cancel(recovery.id)
    assert (command.kind, command.state) == ("cancel", CommandState.DONE)
    stored = repository.recovery(recovery.id)
    assert (stored.state, stored.epoch) == (RecoveryState.CANCELLED, attempt.epoch + 1)
    with pytest.raises(Fenced), repository.fenced(recovery.id, attempt.epoch):
        pytest.fail("got past the fence")
    answers = {each.id: each.state for each in repository.commands(recovery.id)}
    assert answers == {asked.id: CommandState.REFUSED, command.id: CommandState.DONE}
    assert repository.cancel(recovery.id) == command


def test_a_running_recovery_is_asked_to_cancel_and_does_it_itself(repository: Repository) -> None:
    attempt = reach(repository, Phase.FILTER)
    command = repository.cancel(attempt.recovery_id)
    assert command.state is CommandState.REQUESTED
    assert repository.cancel(attempt.recovery_id) == command
    assert repository.recovery(attempt.recovery_id).state is RecoveryState.FILTERING
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        assert [each.kind for each in transaction.take_commands()] == ["cancel"]
        transaction.cancel_recovery()
    assert repository.recovery(attempt.recovery_id).state is RecoveryState.CANCELLED
    assert repository.commands(attempt.recovery_id)[0].state is CommandState.DONE
    assert repository.attempts(attempt.recovery_id)[-1].state is AttemptState.FAILED
    assert repository.phases(attempt.recovery_id)[1].state is PhaseState.FAILED
    with pytest.raises(Fenced), repository.fenced(attempt.recovery_id, attempt.epoch):
        pytest.fail("got past the fence")


def test_a_failed_recovery_can_be_cancelled(repository: Repository) -> None:
    attempt = reach(repository, Phase.READ)
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        transaction.fail_attempt("no")
    assert repository.cancel(attempt.recovery_id).state is CommandState.DONE


@pytest.mark.parametrize("force", [False, True])
def test_cancel_is_refused_once_output_may_be_published(repository: Repository, force: bool) -> None:
    attempt = reach(repository, Phase.COMMIT)
    waiting = repository.cancel(attempt.recovery_id)
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        transaction.intend(USER, 1, None, PROOF_SHA256, PROOF)
        with pytest.raises(Refused, match="commit 1 is INTENT"):
            transaction.cancel_recovery()
    with pytest.raises(Refused, match=f"commit 1 is INTENT.*cdr resume {attempt.recovery_id}"):
        repository.cancel(attempt.recovery_id, force=force)
    begin(repository, attempt.recovery_id, Phase.COMMIT)
    stored = next(each for each in repository.commands(attempt.recovery_id) if each.id == waiting.id)
    assert stored.state is CommandState.REFUSED
    assert stored.answer is not None
    assert "INTENT" in stored.answer["reason"]
