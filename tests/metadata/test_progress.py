"""Plan, totals, units, ledger, and the end of a phase."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cdr_core.errors import PhaseRefused, Refused, Unbalanced
from cdr_core.metadata import (
    Attempt,
    AttemptState,
    CommandState,
    Phase,
    PhaseProgress,
    PhaseState,
    PlanSummary,
    RecoveryState,
    Repository,
    UnitProgress,
)
from cdr_core.metadata.progress import bytes_so_far, eta_s
from tests.metadata.steps import begin, finish, new_recovery, reach


@pytest.fixture
def reading(repository: Repository) -> Attempt:
    return reach(repository, Phase.READ)


def test_a_plan_is_stored_once_and_another_layout_is_refused(repository: Repository, reading: Attempt) -> None:
    with repository.fenced(reading.recovery_id, reading.epoch) as transaction:
        assert transaction.save_plan("hash-1", "/plan-1", PlanSummary(subtasks=2))
    again = begin(repository, reading.recovery_id, Phase.READ)
    with repository.fenced(again.recovery_id, again.epoch) as transaction:
        assert not transaction.save_plan("hash-1", "/plan-2", PlanSummary())
        with pytest.raises(Refused, match=r"layout of recovery .* changed: its plan is hash-1, .* made hash-2"):
            transaction.save_plan("hash-2", "/plan-3", PlanSummary())
    stored = repository.recovery(reading.recovery_id)
    assert (stored.plan_hash, stored.plan_uri, stored.plan_summary) == ("hash-1", "/plan-1", PlanSummary(subtasks=2))


def test_the_server_is_remembered_and_forgotten(repository: Repository, reading: Attempt) -> None:
    with repository.fenced(reading.recovery_id, reading.epoch) as transaction:
        transaction.set_server({"pid": 5, "port": 6})
    assert repository.recovery(reading.recovery_id).server == {"pid": 5, "port": 6}
    with repository.fenced(reading.recovery_id, reading.epoch) as transaction:
        transaction.set_server(None)
    assert repository.recovery(reading.recovery_id).server is None


def test_units_count_once(repository: Repository, reading: Attempt) -> None:
    with repository.fenced(reading.recovery_id, reading.epoch) as transaction:
        transaction.set_total(Phase.READ, 3, 5_000_000_000)
        assert transaction.record_unit(Phase.READ, "b", "/b", 3, 4_000_000_000, {"x": [1]})
        assert not transaction.record_unit(Phase.READ, "b", "/b", 3, 4_000_000_000, {"x": [1]})
    with repository.fenced(reading.recovery_id, reading.epoch) as transaction:
        assert not transaction.record_unit(Phase.READ, "b", "/else", 7, 7, {})
        assert transaction.record_unit(Phase.READ, "a", "/a", 1, 1, {})
    row = repository.phases(reading.recovery_id)[0]
    assert (row.units_done, row.units_total) == (2, 3)
    assert (row.records_done, row.bytes_done, row.bytes_total) == (4, 4_000_000_001, 5_000_000_000)
    units = repository.units(reading.recovery_id, Phase.READ)
    assert [(unit.unit, unit.manifest, unit.result) for unit in units] == [("a", "/a", {}), ("b", "/b", {"x": [1]})]
    assert repository.units(reading.recovery_id, Phase.FILTER) == ()


def test_a_phase_is_not_done_before_all_its_units_are(repository: Repository, reading: Attempt) -> None:
    with repository.fenced(reading.recovery_id, reading.epoch) as transaction:
        with pytest.raises(PhaseRefused, match="never said"):
            transaction.finish_phase(Phase.READ, {})
        transaction.set_total(Phase.READ, 2, None)
        transaction.record_unit(Phase.READ, "a", "/a", 1, 1, {})
        with pytest.raises(PhaseRefused, match="1 of 2 units"):
            transaction.finish_phase(Phase.READ, {})
        transaction.record_unit(Phase.READ, "b", "/b", 1, 1, {})
        transaction.finish_phase(Phase.READ, {"records": 2})
    row = repository.phases(reading.recovery_id)[0]
    assert (row.state, row.result) == (PhaseState.DONE, {"records": 2})
    assert row.started_at is not None
    assert row.ended_at is not None
    assert repository.attempts(reading.recovery_id)[0].state is AttemptState.DONE


def test_a_total_may_grow_but_not_below_what_is_done(repository: Repository, reading: Attempt) -> None:
    with repository.fenced(reading.recovery_id, reading.epoch) as transaction:
        transaction.set_total(Phase.READ, 1, None)
        transaction.record_unit(Phase.READ, "a", "/a", 1, 1, {})
        with pytest.raises(PhaseRefused, match="1 are done"):
            transaction.set_total(Phase.READ, 0, None)
        transaction.set_total(Phase.READ, 5, 50)
    assert repository.phases(reading.recovery_id)[0].units_total == 5


def test_only_the_running_phase_is_written(repository: Repository) -> None:
    attempt = reach(repository, Phase.FILTER)
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        with pytest.raises(PhaseRefused, match=r"phase read .* is DONE"):
            transaction.record_unit(Phase.READ, "late", "/late", 1, 1, {})
        with pytest.raises(PhaseRefused, match=r"phase spill .* is PENDING"):
            transaction.set_total(Phase.SPILL, 1, None)


def test_a_lost_unit_is_done_again_with_the_same_counts(repository: Repository) -> None:
    attempt = reach(repository, Phase.DRAIN)
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        with pytest.raises(Unbalanced, match=r"had 1 records in 10 bytes, done again it has 2 in 10"):
            transaction.redo_unit(Phase.SPILL, "only", "/again", 2, 10, {})
        with pytest.raises(PhaseRefused, match="never done"):
            transaction.redo_unit(Phase.SPILL, "other", "/again", 1, 10, {})
        transaction.redo_unit(Phase.SPILL, "only", "/again", 1, 10, {"again": True})
    unit = repository.units(attempt.recovery_id, Phase.SPILL)[0]
    assert (unit.manifest, unit.epoch, unit.result) == ("/again", attempt.epoch, {"again": True})
    assert repository.phases(attempt.recovery_id)[2].units_done == 1


def test_a_ledger_is_replaced_until_its_phase_is_done(repository: Repository, reading: Attempt) -> None:
    with repository.fenced(reading.recovery_id, reading.epoch) as transaction:
        transaction.add_ledger(Phase.READ, [{"n": 3}, {"n": 1}, {"n": 2}])
    with repository.fenced(reading.recovery_id, reading.epoch) as transaction:
        transaction.add_ledger(Phase.READ, [{"n": 9}, {"n": 8}])
        transaction.set_total(Phase.READ, 0, 0)
        transaction.finish_phase(Phase.READ, {})
    assert repository.ledger(reading.recovery_id, Phase.READ) == ({"n": 9}, {"n": 8})
    with repository.fenced(reading.recovery_id, reading.epoch) as transaction:
        transaction.add_ledger(Phase.READ, [{"n": 9}, {"n": 8}])
        with pytest.raises(Unbalanced, match="with another ledger"):
            transaction.add_ledger(Phase.READ, [{"n": 8}, {"n": 9}])
    assert repository.ledger(reading.recovery_id, Phase.FILTER) == ()


def test_a_failure_is_recorded_once_and_its_text_is_bounded(repository: Repository, reading: Attempt) -> None:
    for _ in range(2):
        with repository.fenced(reading.recovery_id, reading.epoch) as transaction:
            transaction.fail_attempt("x" * 100_000)
    recovery = repository.recovery(reading.recovery_id)
    assert recovery.state is RecoveryState.FAILED
    assert recovery.error == "x" * 8000
    assert repository.attempts(reading.recovery_id)[0].state is AttemptState.FAILED
    assert repository.phases(reading.recovery_id)[0].state is PhaseState.FAILED


def test_what_is_done_does_not_fail_afterwards(repository: Repository) -> None:
    recovery, _ = repository.create_recovery(new_recovery())
    attempt = finish(repository, recovery.id, Phase.READ)
    with (
        pytest.raises(Refused, match="cannot go from DONE to FAILED"),
        repository.fenced(recovery.id, attempt.epoch) as transaction,
    ):
        transaction.fail_attempt("too late")


def test_the_end_of_commit_is_the_end_of_the_recovery(repository: Repository) -> None:
    attempt = reach(repository, Phase.COMMIT)
    asked = repository.cancel(attempt.recovery_id)
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        with pytest.raises(PhaseRefused, match="cannot be done: commit is not"):
            transaction.finish_recovery()
        transaction.set_total(Phase.COMMIT, 0, 0)
        transaction.finish_phase(Phase.COMMIT, {})
        transaction.finish_recovery()
    assert repository.recovery(attempt.recovery_id).state is RecoveryState.DONE
    assert repository.commands(attempt.recovery_id)[0].state is CommandState.REFUSED
    assert repository.commands(attempt.recovery_id)[0].id == asked.id


def test_one_attempt_can_go_through_several_phases_in_its_epoch(repository: Repository, reading: Attempt) -> None:
    with repository.fenced(reading.recovery_id, reading.epoch) as transaction:
        transaction.set_total(Phase.READ, 0, 0)
        with pytest.raises(PhaseRefused, match="spill does not follow read"):
            transaction.finish_phase(Phase.READ, {}, then=Phase.SPILL)
        transaction.finish_phase(Phase.READ, {}, then=Phase.FILTER)
        transaction.set_total(Phase.FILTER, 0, 0)
        transaction.finish_phase(Phase.FILTER, {}, then=Phase.SPILL)
    recovery = repository.recovery(reading.recovery_id)
    assert (recovery.state, recovery.epoch) == (RecoveryState.SPILLING, reading.epoch)
    assert [row.state for row in repository.phases(reading.recovery_id)][:3] == ["DONE", "DONE", "RUNNING"]
    (attempt,) = repository.attempts(reading.recovery_id)
    assert (attempt.phase, attempt.state) == (Phase.SPILL, AttemptState.RUNNING)


def test_a_finished_unit_does_not_count_a_second_time_as_one_under_way(
    repository: Repository, reading: Attempt
) -> None:
    with repository.fenced(reading.recovery_id, reading.epoch) as transaction:
        transaction.set_total(Phase.READ, 2, 100)
        transaction.set_running(Phase.READ, {"a": UnitProgress(9, 45, 50, 1.0), "b": UnitProgress(2, 10, 50, 8.0)})
        transaction.record_unit(Phase.READ, "a", "/a", 10, 50, {})
    row = repository.phases(reading.recovery_id)[0]
    assert (row.bytes_done, list(row.running), bytes_so_far(row)) == (50, ["b"], 60)
    again = begin(repository, reading.recovery_id, Phase.READ)
    assert again.epoch > reading.epoch
    assert repository.phases(reading.recovery_id)[0].running == {}, "of the new attempt nothing runs yet"


NOW = datetime(2026, 1, 2, tzinfo=UTC)


def drained(running: dict[str, UnitProgress], state: PhaseState = PhaseState.RUNNING) -> PhaseProgress:
    """Three units of 1,000 bytes, one of them done; the phase was begun a day ago."""
    return PhaseProgress(Phase.DRAIN, state, 3, 1, 3000, 1000, 10, running, None, NOW - timedelta(days=1), None)


def test_the_time_left_is_that_of_the_units_under_way_whatever_happened_before() -> None:
    """A drain that was resumed a day later needs seconds, not another day."""
    one, other = UnitProgress(5, 500, 1000, 10.0), UnitProgress(8, 800, 1000, 4.0)
    assert eta_s(drained({"1": one, "2": other}), NOW) == 10.0, "the slower one decides"
    assert eta_s(drained({"1": one}), NOW) == 30.0, "and one waits for a core: 1,500 bytes at 50 a second"
    assert eta_s(drained({"1": UnitProgress(0, 0, 1000, None)}), NOW) == 2 * 86400, "nobody says: the phase's own pace"


@pytest.mark.parametrize("state", [PhaseState.FAILED, PhaseState.DONE, PhaseState.PENDING])
def test_where_nothing_runs_no_time_is_left(state: PhaseState) -> None:
    assert eta_s(drained({"1": UnitProgress(5, 500, 1000, 10.0)}, state), NOW) is None
