"""The status of drill plans: drills.yaml joined with the history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cdr_core.drill.history import PlanStatus, plan_statuses
from cdr_core.drill.plan import DrillPlan
from cdr_core.drill.plans import Plans
from cdr_core.metadata import Drill, DrillArgs, DrillOutcome

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = 3600.0


def drill(plan: str | None, hours_ago: float, result: DrillOutcome | None, **measured: object) -> Drill:
    args = DrillArgs(job=str(measured.pop("job", "a")), plan=plan, stale_after_s=10 * HOUR)
    rto, rpo = (float(str(measured[name])) if name in measured else None for name in ("rto", "rpo"))
    return Drill(f"d-{hours_ago}", "/c", args, None, NOW - timedelta(hours=hours_ago), result, (), rto, rpo, None, None)


def plan(name: str, stale_after_s: float = 10 * HOUR) -> DrillPlan:
    return DrillPlan(name=name, job="", spec="/s", checkpoints="/c", stale_after_s=stale_after_s)


def status_of(plans: Plans, *history: Drill) -> PlanStatus:
    (status,) = plan_statuses(plans, history, NOW)
    return status


def test_a_plan_that_never_ran_is_listed_and_not_stale() -> None:
    status = status_of(Plans((plan("nightly"),)))
    assert (status.plan, status.is_planned, status.last_result, status.is_stale) == ("nightly", True, None, False)
    assert status.sentence == "Drill plan nightly has no result yet."


def test_a_plan_is_judged_by_the_limit_of_the_file() -> None:
    history = drill("nightly", 3, DrillOutcome.PASSED)
    assert not status_of(Plans((plan("nightly"),)), history).is_stale
    stale = status_of(Plans((plan("nightly", 2 * HOUR),)), history)
    assert stale.is_stale
    assert stale.sentence == "Drill plan nightly passed last 3.0 h ago, too old at a limit of 2.0 h."


def test_a_plan_whose_drills_never_passed_is_stale() -> None:
    status = status_of(Plans((plan("nightly"),)), drill("nightly", 1, DrillOutcome.COULD_NOT_RUN))
    assert status.is_stale
    assert status.sentence == "Drill plan nightly has never passed."


def test_a_deleted_plan_is_history_and_never_stale() -> None:
    status = status_of(Plans(), drill("old", 1000, DrillOutcome.FAILED))
    assert (status.is_planned, status.is_stale, status.last_result) == (False, False, DrillOutcome.FAILED)
    assert "which drills.yaml no longer has" in status.sentence


def test_a_drill_by_hand_has_no_plan_and_is_never_stale() -> None:
    status = status_of(Plans(), drill(None, 1000, DrillOutcome.COULD_NOT_RUN))
    assert (status.plan, status.job, status.is_planned, status.is_stale) == ("", "a", False, False)
    assert status_of(Plans(), drill("by-hand", 1, DrillOutcome.COULD_NOT_RUN)).is_stale is False, "an older version's"


def test_the_newest_ended_drill_decides_while_another_runs() -> None:
    history = [drill("nightly", hours, DrillOutcome.FAILED, rto=7, rpo=8) for hours in (1, 2, 3)]
    plans = Plans((plan("nightly"),))
    before = status_of(plans, *history)
    assert (before.last_result, before.is_stale, before.rto_s, before.rpo_s) == (DrillOutcome.FAILED, True, 7, 8)
    assert status_of(plans, drill("nightly", 0, None), *history) == before


def test_a_plan_that_became_unusable_keeps_its_alarm() -> None:
    old = drill("nightly", 20, DrillOutcome.PASSED)
    one = status_of(Plans(refusals=(("nightly", "drill plan nightly: spec is missing"),)), old)
    assert (one.is_planned, one.is_stale, one.refusal) == (True, True, "drill plan nightly: spec is missing")
    unreadable = status_of(Plans(refusals=(("", "it is not YAML"),)), old)
    assert (unreadable.is_planned, unreadable.is_stale) == (True, True)


def test_a_plan_stays_itself_when_its_job_gets_another_name() -> None:
    history = [drill("x", 1, DrillOutcome.FAILED, job="new"), drill("x", 2, DrillOutcome.PASSED, job="old")]
    status = status_of(Plans((plan("x"),)), *history)
    assert (status.job, status.age_s) == ("new", 2 * HOUR)
