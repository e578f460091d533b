"""The history of restore drills."""

from __future__ import annotations

import pytest

from cdr_core.errors import Refused
from cdr_core.metadata import DrillArgs, DrillCheck, DrillOutcome, Repository
from tests.metadata.steps import new_recovery


def test_a_drill_has_one_recovery_and_one_result(repository: Repository) -> None:
    drill = repository.begin_drill("/checkpoints", DrillArgs(parallelism="2"))
    assert repository.drill(drill.id) == drill
    assert (drill.result, drill.checks, drill.recovery_id) == (None, (), None)
    first, _ = repository.create_recovery(new_recovery(target="none:"))
    second, _ = repository.create_recovery(new_recovery(target="none:"))
    repository.set_drill_recovery(drill.id, first.id)
    repository.set_drill_recovery(drill.id, first.id)
    with pytest.raises(Refused, match=f"runs recovery {first.id}, not {second.id}"):
        repository.set_drill_recovery(drill.id, second.id)
    found = DrillCheck("balance", "PASSED", "Every record came out once.")
    ended = repository.end_drill(drill.id, DrillOutcome.PASSED, checks=[found], rto_s=1.5)
    assert repository.drill(drill.id) == ended
    assert (ended.result, ended.rto_s, ended.rpo_s) == (DrillOutcome.PASSED, 1.5, None)
    assert (ended.checks, ended.recovery_id) == ((found,), first.id)
    with pytest.raises(Refused, match="has a result already"):
        repository.end_drill(drill.id, DrillOutcome.FAILED)


def test_drills_are_listed_with_and_without_a_result(repository: Repository) -> None:
    ids = [repository.begin_drill(f"/{n}", DrillArgs()).id for n in range(3)]
    repository.end_drill(ids[1], DrillOutcome.COULD_NOT_RUN, error="no checkpoint")
    found = {drill.id: drill.result for drill in repository.drills()}
    assert found == {ids[0]: None, ids[1]: DrillOutcome.COULD_NOT_RUN, ids[2]: None}
    assert len(repository.drills(limit=2)) == 2


def test_unknown_drills_and_recoveries_are_refused(repository: Repository) -> None:
    with pytest.raises(Refused, match="there is no drill d-0"):
        repository.drill("d-0")
    drill = repository.begin_drill("/", DrillArgs())
    with pytest.raises(Refused, match="there is no recovery r-0"):
        repository.set_drill_recovery(drill.id, "r-0")


def test_a_drill_that_was_begun_under_an_id_is_the_same_for_every_later_try(repository: Repository) -> None:
    first = repository.begin_drill("/chk-1", DrillArgs(plan="nightly"), "d-run")
    assert repository.begin_drill("/chk-2", DrillArgs(plan="other"), "d-run") == first
    assert first.checkpoint == "/chk-1"
    assert repository.find_drill("d-run") == first
    assert repository.find_drill("d-none") is None


def test_drills_are_found_by_plan_and_by_recovery(repository: Repository) -> None:
    nightly = repository.begin_drill("/1", DrillArgs(plan="nightly", job="a"))
    hourly = repository.begin_drill("/2", DrillArgs(plan="hourly", job="a"))
    recovery, _ = repository.create_recovery(new_recovery())
    assert repository.drill_of(recovery.id) is None
    repository.set_drill_recovery(hourly.id, recovery.id)
    found = repository.drill_of(recovery.id)
    assert found is not None
    assert found.id == hourly.id
    repository.end_drill(nightly.id, DrillOutcome.PASSED)
    assert [drill.id for drill in repository.drills(plan="nightly")] == [nightly.id]
    assert [drill.id for drill in repository.drills(unfinished=True)] == [hourly.id]


def test_of_every_plan_the_newest_ended_passed_and_measured_are_known(repository: Repository) -> None:
    def ended(plan: str | None, result: DrillOutcome, rto_s: float | None = None) -> str:
        drill = repository.begin_drill("/", DrillArgs(job="a", plan=plan or None))
        repository.end_drill(drill.id, result, rto_s=rto_s)
        return drill.id

    ended("nightly", DrillOutcome.PASSED, rto_s=1)
    passed = ended("nightly", DrillOutcome.PASSED, rto_s=2)
    ended("nightly", DrillOutcome.FAILED)
    measured = ended("nightly", DrillOutcome.TIMED_OUT, rto_s=3)
    ended("nightly", DrillOutcome.COULD_NOT_RUN)
    last = ended("nightly", DrillOutcome.COULD_NOT_RUN)
    running = repository.begin_drill("/", DrillArgs(job="a", plan="nightly")).id
    by_hand = ended(None, DrillOutcome.PASSED)
    assert {drill.id for drill in repository.newest_drills()} == {passed, measured, last, running, by_hand}
