"""The verdict: every result from its facts, and for every failure what it means and what to do."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from cdr_core import errors
from cdr_core.drill.duration_format import beside, spoken
from cdr_core.drill.verdict import (
    ADVICE,
    ROWS,
    SQL,
    Check,
    CheckResult,
    Facts,
    Failure,
    FailureKind,
    failure_of,
    judge,
)
from cdr_core.metadata import DrillOutcome

START = datetime(2026, 11, 16, 3, tzinfo=UTC)
GOOD = Facts(
    started_at=START,
    modified=START - timedelta(minutes=5),
    recovered_at=START + timedelta(seconds=40),
    balance="balanced",
    rto_limit_s=60,
    rpo_limit_s=600,
    looked=(Check(ROWS, CheckResult.PASSED, "10 rows"),),
)
BROKEN = replace(GOOD, recovered_at=None, balance=None, looked=(Check(ROWS, CheckResult.NOT_RUN, "none"),))


def test_a_drill_that_did_everything_passes() -> None:
    verdict = judge(GOOD)
    assert verdict.result is DrillOutcome.PASSED
    assert (verdict.rto_s, verdict.rpo_s, verdict.sentence) == (40, 300, None)
    assert [check.name for check in verdict.checks] == ["recovered", "balanced", "rows", "rto", "rpo"]


@pytest.mark.parametrize(
    ("facts", "result", "said"),
    [
        (replace(GOOD, rto_limit_s=39.9), DrillOutcome.TIMED_OUT, "rto: It took 40 s, the limit is 39.9 s."),
        (
            replace(GOOD, rpo_limit_s=299),
            DrillOutcome.FAILED,
            "rpo: The checkpoint was 5 min old, the limit is 4 min 59 s",
        ),
        (replace(GOOD, balance="partial"), DrillOutcome.FAILED, "balanced: The receipt says partial."),
        (replace(GOOD, balance=None), DrillOutcome.COULD_NOT_RUN, "balanced: There is no receipt"),
        (
            replace(GOOD, looked=(Check(ROWS, CheckResult.FAILED, "9 rows"),)),
            DrillOutcome.FAILED,
            "rows: 9 rows",
        ),
        (
            replace(GOOD, rto_limit_s=1, looked=(Check("sql: x", CheckResult.FAILED, "2 rows", SQL),)),
            DrillOutcome.FAILED,
            "sql: x: 2 rows",
        ),
        (
            replace(GOOD, looked=(Check("sql: x", CheckResult.NOT_RUN, "no Spark", SQL),)),
            DrillOutcome.COULD_NOT_RUN,
            "sql: x: no Spark",
        ),
        (
            replace(BROKEN, failure=Failure(FailureKind.CHECKPOINT, "It is corrupt.")),
            DrillOutcome.FAILED,
            "recovered: It is corrupt.",
        ),
        (
            replace(BROKEN, failure=Failure(FailureKind.BALANCE, "One is missing.")),
            DrillOutcome.FAILED,
            "balanced: One is missing.",
        ),
        (
            replace(BROKEN, failure=Failure(FailureKind.SURROUNDINGS, "The disk is full.")),
            DrillOutcome.COULD_NOT_RUN,
            "recovered: The disk is full.",
        ),
        (BROKEN, DrillOutcome.COULD_NOT_RUN, "recovered: The recovery was stopped"),
        (replace(BROKEN, given_up=True), DrillOutcome.TIMED_OUT, "rto: The recovery had not ended"),
        (replace(BROKEN, modified=None), DrillOutcome.COULD_NOT_RUN, "recovered:"),
        (replace(BROKEN, rpo_limit_s=1), DrillOutcome.FAILED, "rpo: The checkpoint was 5 min old"),
    ],
)
def test_each_result_from_its_facts(facts: Facts, result: DrillOutcome, said: str) -> None:
    verdict = judge(facts)
    assert verdict.result is result
    assert verdict.sentence is not None
    assert verdict.sentence.startswith(said)


def test_without_limits_the_times_are_told_and_decide_nothing() -> None:
    verdict = judge(replace(GOOD, rto_limit_s=None, rpo_limit_s=None))
    assert verdict.result is DrillOutcome.PASSED
    assert {check.result for check in verdict.checks[-2:]} == {CheckResult.NOT_CONFIGURED}
    assert (verdict.rto_s, verdict.rpo_s) == (40, 300)


def test_a_drill_passes_only_if_it_recovered_balanced_and_nothing_failed_or_is_unknown() -> None:
    """Every combination of facts: the positive space and the negative one."""
    looked = [(Check(ROWS, result, "rows"),) for result in CheckResult]
    recovered = [None, START + timedelta(seconds=1), START + timedelta(hours=1)]
    kinds = [None, *FailureKind]
    for at, balance, kind, modified, rows in product(
        recovered, [None, "balanced", "partial"], kinds, [None, START - timedelta(days=1), START], looked
    ):
        failure = Failure(kind, "x") if kind and at is None else None
        facts = replace(GOOD, recovered_at=at, balance=balance, failure=failure, modified=modified, looked=rows)
        passed = judge(facts).result is DrillOutcome.PASSED
        assert passed == (
            at == recovered[1]
            and balance == "balanced"
            and modified == START
            and rows[0].result in (CheckResult.PASSED, CheckResult.NOT_CONFIGURED)
        ), facts


def test_every_check_says_what_its_failure_means_and_what_to_do() -> None:
    for kind in ADVICE:
        value = Check("any", CheckResult.FAILED, "It failed.", kind).stored()
        assert value.means
        assert value.do
    assert Check("rows", CheckResult.NOT_RUN, "No.").stored().means.startswith("The drill itself")
    assert Check("rows", CheckResult.PASSED, "Yes.").stored().means == ""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.CorruptChannelState("x"), FailureKind.CHECKPOINT),
        (errors.CorruptMetadata("x"), FailureKind.CHECKPOINT),
        (errors.SpecRefused("x"), FailureKind.CHECKPOINT),
        (errors.PlanRefused("x"), FailureKind.CHECKPOINT),
        (errors.Unbalanced("x"), FailureKind.BALANCE),
        (errors.Partial("x"), FailureKind.BALANCE),
        (errors.SettingsRefused("x"), FailureKind.SURROUNDINGS),
        (errors.PhaseRefused("x"), FailureKind.SURROUNDINGS),
        (errors.InDoubt("x"), FailureKind.SURROUNDINGS),
        (errors.Refused("x"), FailureKind.SURROUNDINGS),
        (errors.Cancelled("x"), FailureKind.SURROUNDINGS),
        (errors.GivenUp("x"), FailureKind.GIVEN_UP),
        (errors.Fenced("x"), FailureKind.SURROUNDINGS),
        (errors.DiskFull("x"), FailureKind.SURROUNDINGS),
        (errors.DatabaseUnavailable("x"), FailureKind.SURROUNDINGS),
        (errors.JobFailed("x"), FailureKind.SURROUNDINGS),
    ],
)
def test_whom_an_error_blames(error: errors.CdrError, kind: FailureKind) -> None:
    assert failure_of(error).kind is kind


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.001, "0.0 s"), (39.9, "39.9 s"), (119.0, "119 s"), (120, "2 min"), (299, "4 min 59 s"), (3600, "60 min")),
        *((7200, "2 h"), (72_809, "20 h 13 min"), (3 * 86_400 + 7200, "3 d 2 h")),
    ],
)
def test_times_are_told_as_people_read_them(seconds: float, text: str) -> None:
    assert spoken(seconds) == text


def test_a_limit_that_was_missed_by_little_does_not_read_as_if_it_was_kept() -> None:
    assert beside(10_801.5, 10_800) == ("10,801.5 s", "10,800 s")


def test_an_unproven_key_passes_and_is_reported() -> None:
    verdict = judge(replace(GOOD, proven=False))
    assert verdict.result is DrillOutcome.PASSED
    sentence = next(check.sentence for check in verdict.checks if check.name == "balanced")
    assert "balanced (key: unproven)" in sentence
    assert "--trust-key" in sentence


def test_a_limit_that_is_met_exactly_is_met() -> None:
    verdict = judge(replace(GOOD, rto_limit_s=40, rpo_limit_s=300))
    assert verdict.result is DrillOutcome.PASSED
    assert {check.name: check.result for check in verdict.checks if check.name in ("rto", "rpo")} == {
        "rto": CheckResult.PASSED,
        "rpo": CheckResult.PASSED,
    }
