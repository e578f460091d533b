"""Who may start a phase, and what happens to those who started before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from cdr_core.errors import Cancelled, Fenced, PhaseRefused, Refused
from cdr_core.metadata import (
    AttemptState,
    CommandState,
    Phase,
    PhaseState,
    RecoveryCheckpointState,
    RecoveryState,
    Repository,
)
from tests.metadata.steps import begin, finish, new_recovery, reach, runner


def state_of(repository: Repository, recovery_id: str, phase: Phase) -> PhaseState:
    return next(row.state for row in repository.phases(recovery_id) if row.name is phase)


def test_an_attempt_takes_the_next_epoch_and_starts_its_phase(repository: Repository) -> None:
    recovery, _ = repository.create_recovery(new_recovery())
    who = runner()
    attempt = repository.begin_attempt(recovery.id, Phase.READ, who)
    assert attempt is not None
    assert (attempt.epoch, attempt.phase, attempt.runner) == (1, Phase.READ, who)
    assert repository.attempts(recovery.id) == (attempt,)
    stored = repository.recovery(recovery.id)
    assert (stored.epoch, stored.state) == (1, RecoveryState.READING)
    assert state_of(repository, recovery.id, Phase.READ) is PhaseState.RUNNING


@pytest.mark.parametrize("phase", list(Phase)[1:])
def test_a_phase_does_not_start_before_its_predecessor_is_done(repository: Repository, phase: Phase) -> None:
    recovery_id = reach(repository, phase.predecessor or Phase.READ).recovery_id
    before = repository.recovery(recovery_id).epoch
    with pytest.raises(PhaseRefused, match=f"phase {phase} cannot start: {phase.predecessor} is not done"):
        repository.begin_attempt(recovery_id, phase, runner())
    assert repository.recovery(recovery_id).epoch == before


def test_a_failed_predecessor_is_not_a_done_one(repository: Repository) -> None:
    attempt = reach(repository, Phase.READ)
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        transaction.fail_attempt("no")
    with pytest.raises(PhaseRefused, match=r"read is not done \(FAILED\)"):
        repository.begin_attempt(attempt.recovery_id, Phase.FILTER, runner())


def test_a_done_phase_takes_no_epoch(repository: Repository) -> None:
    recovery, _ = repository.create_recovery(new_recovery())
    finish(repository, recovery.id, Phase.READ)
    assert repository.begin_attempt(recovery.id, Phase.READ, runner()) is None
    assert repository.recovery(recovery.id).epoch == 1
    assert len(repository.attempts(recovery.id)) == 1
    assert repository.phases(recovery.id)[0].result == {"phase": "read"}


def test_an_older_try_comes_too_late_and_the_same_try_may_repeat(repository: Repository) -> None:
    recovery, _ = repository.create_recovery(new_recovery())
    repository.begin_attempt(recovery.id, Phase.READ, runner(2, "dag-run"))
    with pytest.raises(Fenced, match="try 1 of task in dag-run comes too late: try 2"):
        repository.begin_attempt(recovery.id, Phase.READ, runner(1, "dag-run"))
    assert repository.recovery(recovery.id).epoch == 1
    for late in (runner(2, "dag-run"), runner(3, "dag-run"), runner(1, "other-run"), runner(1, "dag-run", "other")):
        assert repository.begin_attempt(recovery.id, Phase.READ, late) is not None
    assert repository.recovery(recovery.id).epoch == 5


def test_a_new_attempt_fences_the_older_one_and_keeps_what_it_finished(repository: Repository) -> None:
    old = reach(repository, Phase.READ)
    with repository.fenced(old.recovery_id, old.epoch) as transaction:
        transaction.set_total(Phase.READ, 2, None)
        transaction.record_unit(Phase.READ, "a", "/a", 1, 1, {})
    new = begin(repository, old.recovery_id, Phase.READ)
    assert [attempt.state for attempt in repository.attempts(old.recovery_id)] == [
        AttemptState.FENCED,
        AttemptState.RUNNING,
    ]
    assert state_of(repository, old.recovery_id, Phase.READ) is PhaseState.RUNNING
    with repository.fenced(new.recovery_id, new.epoch) as transaction:
        assert not transaction.record_unit(Phase.READ, "a", "/other", 9, 9, {})
        assert transaction.record_unit(Phase.READ, "b", "/b", 1, 1, {})
        transaction.finish_phase(Phase.READ, {})
    assert [(unit.unit, unit.epoch, unit.manifest) for unit in repository.units(new.recovery_id, Phase.READ)] == [
        ("a", 1, "/a"),
        ("b", 2, "/b"),
    ]


def test_a_failed_recovery_goes_on_with_a_new_attempt(repository: Repository) -> None:
    attempt = reach(repository, Phase.SPILL)
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        transaction.fail_attempt("disk full")
    failed = repository.recovery(attempt.recovery_id)
    assert (failed.state, failed.error) == (RecoveryState.FAILED, "disk full")
    begin(repository, attempt.recovery_id, Phase.SPILL)
    going = repository.recovery(attempt.recovery_id)
    assert (going.state, going.error) == (RecoveryState.SPILLING, None)


def test_checkpoints_pending_in_a_dead_attempt_are_aborted(repository: Repository) -> None:
    attempt = reach(repository, Phase.DRAIN)
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        transaction.begin_checkpoint(1)
        transaction.complete_checkpoint(1, "/1", "aa")
        transaction.begin_checkpoint(2)
    begin(repository, attempt.recovery_id, Phase.DRAIN)
    assert [checkpoint.state for checkpoint in repository.checkpoints(attempt.recovery_id)] == [
        RecoveryCheckpointState.COMPLETED,
        RecoveryCheckpointState.ABORTED,
    ]


def test_a_cancelled_recovery_takes_no_attempt_not_even_for_a_done_phase(repository: Repository) -> None:
    recovery, _ = repository.create_recovery(new_recovery())
    finish(repository, recovery.id, Phase.READ)
    repository.cancel(recovery.id)
    for phase in (Phase.READ, Phase.FILTER):
        with pytest.raises(Cancelled):
            repository.begin_attempt(recovery.id, phase, runner())


def test_a_cancel_whose_runner_died_is_carried_out_by_the_next_attempt(repository: Repository) -> None:
    attempt = reach(repository, Phase.FILTER)
    assert repository.cancel(attempt.recovery_id).state is CommandState.REQUESTED
    with pytest.raises(Cancelled):
        repository.begin_attempt(attempt.recovery_id, Phase.FILTER, runner())
    assert repository.recovery(attempt.recovery_id).state is RecoveryState.CANCELLED
    assert [command.state for command in repository.commands(attempt.recovery_id)] == [CommandState.DONE]


def test_an_unknown_recovery_has_no_attempts(repository: Repository) -> None:
    with pytest.raises(Refused, match="there is no recovery r-0"):
        repository.begin_attempt("r-0", Phase.READ, runner())


def test_of_many_who_begin_at_once_each_gets_an_epoch_and_one_is_left_running(repository: Repository) -> None:
    recovery, _ = repository.create_recovery(new_recovery())
    with ThreadPoolExecutor(12) as pool:
        attempts = list(pool.map(lambda _: begin(repository, recovery.id, Phase.READ), range(24)))
    assert sorted(attempt.epoch for attempt in attempts) == list(range(1, 25))
    stored = repository.attempts(recovery.id)
    assert [attempt.epoch for attempt in stored if attempt.state is AttemptState.RUNNING] == [24]
    assert sum(attempt.state is AttemptState.FENCED for attempt in stored) == 23
