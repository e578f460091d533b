"""What the page reads, on both databases: pages of recoveries, ledgers as sums, counts of everything."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from cdr_core.errors import NotFound
from cdr_core.metadata import (
    AttemptState,
    DrillArgs,
    DrillOutcome,
    Phase,
    PhaseState,
    RecoveryState,
    Repository,
    UnitProgress,
)
from cdr_core.metadata.progress import eta_s, fraction
from tests.metadata.steps import begin, new_recovery, reach, runner


def line(down: int, new_down: int | None, records: int, size: int, exchange: str = "e") -> dict[str, object]:
    key = {"exchange": exchange, "up": 0, "down": down, "new_down": new_down}
    return key | {"records": records, "bytes": size, "fingerprint": "0" * 32, "chain": "0" * 16, "others": {}}


def test_a_page_is_newest_first_and_says_how_many_there_are(repository: Repository) -> None:
    made = [repository.create_recovery(new_recovery(target=f"parquet:/out/{n}"))[0].id for n in range(5)]
    page = repository.recovery_page(limit=2, offset=1)
    assert [each.id for each in page.lines] == [made[3], made[2]]
    assert page.total == 5
    assert page.by_state[RecoveryState.CREATED] == 5
    assert page.by_state[RecoveryState.DONE] == 0
    assert [phase.name for phase in page.lines[0].phases] == list(Phase)
    assert repository.recovery_page(limit=10_000).total == 5


def test_searching_takes_signs_as_they_are_and_case_as_it_comes(repository: Repository) -> None:
    repository.create_recovery(new_recovery(target="parquet:/a_b/100%", spec="job: Orders\n"))
    repository.create_recovery(new_recovery(target="parquet:/aXb/100", spec="job: payments\n"))
    totals = {
        words: repository.recovery_page(search=words).total for words in ("a_b", "100%", "orders", "PARQUET", "\\")
    }
    assert totals == {"a_b": 1, "100%": 1, "orders": 1, "PARQUET": 2, "\\": 0}
    assert repository.recovery_page(states=[RecoveryState.DONE], search="orders").total == 0


def test_an_unknown_recovery_is_not_found(repository: Repository) -> None:
    with pytest.raises(NotFound, match="there is no recovery r-none"):
        repository.recovery_line("r-none")


def test_ledgers_are_summed_by_phase_and_by_way_beyond_32_bits(repository: Repository) -> None:
    attempt = reach(repository, Phase.READ)
    huge = 3 * 2**31
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        transaction.set_total(Phase.READ, 1, 1)
        transaction.record_unit(Phase.READ, "only", "/m.json", 1, 1, {})
        transaction.add_ledger(Phase.READ, [line(0, None, 5, huge), line(1, None, 7, 1)])
        transaction.finish_phase(Phase.READ, {})
    second = begin(repository, attempt.recovery_id, Phase.FILTER)
    with repository.fenced(attempt.recovery_id, second.epoch) as transaction:
        parts = [line(0, 1, 2, 10), line(0, 1, 1, 1), line(0, 0, 2, huge), line(1, 1, 7, 1), line(0, 0, 1, 1, "other")]
        transaction.add_ledger(Phase.FILTER, parts)
    sums = repository.ledger_sums(attempt.recovery_id)
    assert [(each.phase, each.entries, each.records, each.bytes) for each in sums] == [
        (Phase.READ, 2, 12, huge + 1),
        (Phase.FILTER, 5, 13, huge + 13),
    ]
    flows = repository.flows(attempt.recovery_id, Phase.FILTER)
    assert [(each.exchange, each.down, each.new_down, each.records, each.bytes) for each in flows] == [
        ("e", 0, 0, 2, huge),
        ("e", 0, 1, 3, 11),
        ("e", 1, 1, 7, 1),
        ("other", 0, 0, 1, 1),
    ]
    undecided = repository.flows(attempt.recovery_id, Phase.READ)
    assert [(each.down, each.new_down) for each in undecided] == [(0, None), (1, None)]


def test_a_run_is_found_by_the_attempts_it_began(repository: Repository) -> None:
    recovery, _ = repository.create_recovery(new_recovery())
    repository.begin_attempt(recovery.id, Phase.READ, runner(run="manual__1"))
    assert repository.recovery_of_run("manual__1") == recovery.id
    assert repository.recovery_of_run("manual__2") is None
    assert not repository.has_receipt(recovery.id)


def test_statistics_count_everything_and_publish_only_what_is_committed(repository: Repository) -> None:
    empty = repository.statistics()
    assert set(empty.recoveries.values()) == {0}
    assert (empty.records, empty.running) == (0, ())
    attempt = reach(repository, Phase.FILTER)
    begin(repository, attempt.recovery_id, Phase.FILTER)
    found = repository.statistics()
    assert found.recoveries[RecoveryState.FILTERING] == 1
    assert found.attempts[AttemptState.FENCED] == 1
    assert [(each.recovery_id, each.phase) for each in found.running] == [(attempt.recovery_id, Phase.FILTER)]
    assert found.records == 0, "nothing is recovered before it is committed"


def test_drills_are_counted_by_plan_job_and_result(repository: Repository) -> None:
    for outcome in (DrillOutcome.PASSED, DrillOutcome.PASSED, DrillOutcome.FAILED, None):
        drill = repository.begin_drill("/chk-1", DrillArgs(job="orders", plan="nightly"))
        if outcome is not None:
            repository.end_drill(drill.id, outcome)
    repository.begin_drill("/chk-2", DrillArgs())
    counts = {(each.plan, each.job, each.result): each.count for each in repository.drill_counts()}
    assert counts == {
        ("nightly", "orders", DrillOutcome.PASSED): 2,
        ("nightly", "orders", DrillOutcome.FAILED): 1,
        ("nightly", "orders", None): 1,
        ("", "", None): 1,
    }


def test_progress_is_unknown_before_anybody_knows_and_whole_when_done(repository: Repository) -> None:
    attempt = reach(repository, Phase.READ)
    read = repository.phases(attempt.recovery_id)[0]
    assert (fraction(read), eta_s(read, datetime.now(UTC))) == (None, None)
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        transaction.set_total(Phase.READ, 2, 100)
        transaction.record_unit(Phase.READ, "one", "/m.json", 1, 25, {})
        transaction.set_running(Phase.READ, {"two": UnitProgress(1, 25)})
    half = repository.phases(attempt.recovery_id)[0]
    assert fraction(half) == 0.5
    assert eta_s(half, datetime.now(UTC)) is not None
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        transaction.record_unit(Phase.READ, "two", "/m.json", 1, 75, {})
        transaction.finish_phase(Phase.READ, {})
    done = repository.phases(attempt.recovery_id)[0]
    assert (done.state, fraction(done), eta_s(done, datetime.now(UTC))) == (PhaseState.DONE, 1.0, None)
