"""Drill plans: what a file may say, and that what is wrong is named and costs nobody else's plan."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cdr_core.drill.plan import DAY, LONGEST, Choice, DrillPlan, Schedule, give_up_after, parse_plan
from cdr_core.drill.plan_overrides import with_wishes
from cdr_core.drill.plans import Plans, load_plans, parse_plans
from cdr_core.errors import DrillPlanRefused, Refused
from cdr_core.metadata import DrillChecks, Expect, Query

LEAST = {"spec": "/specs/a.yaml", "checkpoints": "/c"}
FULL = """
version: 1
drills:
  payments:
    job: payments
    spec: specs/payments.yaml
    checkpoints: s3://bucket/checkpoints/payments
    choose: random within 7d
    schedule: "0 3 * * 1-5"
    parallelism: 2
    rto: 10m
    max_age: 1h
    stale_after: 3d
    give_up: 2h
    checks:
      rows: false
      verify: true
      sql:
        - {name: no debts, query: "SELECT * FROM recovered WHERE main.f1 < 0"}
        - {query: "SELECT count(*) > 0 FROM recovered", expect: true}
"""


def test_a_plan_says_everything_a_drill_needs() -> None:
    (plan,) = parse_plans(FULL, Path("/etc/cdr/drills.yaml")).plans
    assert plan == DrillPlan(
        name="payments",
        job="payments",
        spec="/etc/cdr/specs/payments.yaml",
        checkpoints="s3://bucket/checkpoints/payments",
        choice=Choice(7 * DAY),
        schedule=Schedule(cron="0 3 * * 1-5"),
        parallelism="2",
        rto_s=600,
        max_age_s=3600,
        stale_after_s=3 * DAY,
        give_up_s=7200,
        checks=DrillChecks(
            rows=False,
            verify=True,
            sql=(
                Query("no debts", "SELECT * FROM recovered WHERE main.f1 < 0", Expect.NO_ROWS),
                Query("query 2", "SELECT count(*) > 0 FROM recovered", Expect.TRUE),
            ),
        ),
    )


def test_what_a_plan_does_not_say_has_a_default() -> None:
    plan = parse_plan("a", LEAST)
    assert plan.choice == Choice()
    assert plan.schedule == Schedule()
    assert (plan.parallelism, plan.rto_s, plan.max_age_s, plan.checks) == ("same", None, None, DrillChecks())
    assert plan.give_up_s == give_up_after(None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spec": None}, "spec is missing"),
        ({"spec": " "}, "spec is no text"),
        ({"checkpoints": "here"}, "'here' is no absolute path"),
        ({"checkpoints": ["/c"]}, "checkpoints is no text"),
        ({"choose": "oldest"}, "choose 'oldest'"),
        ({"choose": "random within a while"}, "random within a time"),
        ({"choose": "random within 0s"}, "random within a time"),
        ({"schedule": "soon"}, "schedule 'soon' is no cron"),
        ({"schedule": 5}, "schedule 5 is no cron"),
        ({"schedule": "61 3 * * *"}, "schedule '61 3 * * *' is no cron"),
        ({"schedule": "0 0 31 2 *"}, "never due"),
        ({"schedule": {"every": "5m"}}, "every is no field"),
        ({"schedule": {"new_checkpoint": "0s"}}, "new_checkpoint is how often"),
        ({"schedule": {"new_checkpoint": "5m"}, "choose": "random within 7d"}, "not a random one"),
        ({"rto": "quick"}, "rto 'quick' is not a duration"),
        ({"max_age": "-1h"}, "max_age"),
        ({"choose": "random within 999999d"}, "'random within 999999d' is longer than 36,500 days"),
        ({"give_up": "1000000000d"}, "give_up '1000000000d' is longer than 36,500 days"),
        ({"rto": "36501d"}, "rto '36501d' is longer than 36,500 days"),
        ({"schedule": {"new_checkpoint": "36501d"}}, "new_checkpoint '36501d' is longer"),
        ({"shcedule": "@daily"}, "shcedule is no field"),
        ({"checks": "all"}, "checks is not a mapping"),
        ({"checks": {"rows": "yes please"}}, "neither true nor false"),
        ({"checks": {"sql": {"query": "SELECT 1"}}}, "sql is no list"),
        ({"checks": {"sql": [{"name": "a"}]}}, "query is missing"),
        ({"checks": {"sql": [{"query": "a", "expect": "some"}]}}, "expect 'some'"),
        ({"checks": {"sql": [{"query": "a", "name": "x"}, {"query": "b", "name": "x"}]}}, "two queries named 'x'"),
        ({"checks": {"flink_restore": True, "verify": True}}, "need two recoveries"),
    ],
)
def test_a_plan_that_is_wrong_is_refused_with_its_name_and_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(DrillPlanRefused) as refused:
        parse_plan("nightly", {**LEAST, **change})
    assert "drill plan nightly" in str(refused.value)
    assert said in str(refused.value)


def test_the_longest_times_still_reach_a_date() -> None:
    longest = f"{LONGEST / DAY:g}d"
    plan = parse_plan("a", {**LEAST, "rto": longest, "max_age": longest, "choose": f"random within {longest}"})
    assert plan.give_up_s == plan.choice.within_s == LONGEST
    assert datetime.now(UTC) - timedelta(seconds=LONGEST) < datetime.now(UTC) + timedelta(seconds=plan.give_up_s)


@pytest.mark.parametrize("name", ["", "a b", "../etc", "-x", "x" * 101, "a/b", "a\n"])
def test_a_name_that_is_none_of_a_dag_is_refused(name: str) -> None:
    with pytest.raises(DrillPlanRefused, match="no name of a DAG"):
        parse_plan(name, LEAST)


def test_a_wrong_plan_costs_no_other_its_place() -> None:
    found = parse_plans("drills: {good: {spec: /s, checkpoints: /c}, bad: {spec: /s}}", Path("/d.yaml"))
    assert [plan.name for plan in found.plans] == ["good"]
    assert found.get("good").spec == "/s"
    with pytest.raises(DrillPlanRefused, match=r"/d.yaml: drill plan bad: checkpoints is missing"):
        found.get("bad")
    with pytest.raises(Refused, match="no drill plan 'other', only good"):
        found.get("other")


def test_two_plans_of_one_name_are_refused_and_neither_is_taken_for_the_other() -> None:
    plans = ["a: {spec: /s, checkpoints: /c}", "b: {spec: /s, checkpoints: /c}", "a: {spec: /t, checkpoints: /c}"]
    found = parse_plans("\n  ".join(["drills:", *plans]), Path("/d.yaml"))
    assert [plan.name for plan in found.plans] == ["b"]
    with pytest.raises(DrillPlanRefused, match="drill plan a stands there twice"):
        found.get("a")


@pytest.mark.parametrize("text", ["", "drills:", "drills: ~", "version: 1", "drills: {}"])
def test_a_file_without_plans_is_no_plans(text: str) -> None:
    assert parse_plans(text, Path("/d.yaml")) == Plans()


def test_no_file_is_no_plans_and_an_unreadable_one_is_not(tmp_path: Path) -> None:
    assert load_plans(tmp_path / "none.yaml").refusals == ()
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DrillPlanRefused, match="is not text"):
        load_plans(tmp_path / "bytes.yaml").get("any")
    with pytest.raises(DrillPlanRefused, match="cannot be read"):
        load_plans(tmp_path).get("any")


def test_a_wish_replaces_one_thing_and_leaves_the_rest() -> None:
    (plan,) = parse_plans(FULL, Path("/etc/cdr/drills.yaml")).plans
    assert with_wishes(plan, {"checkpoints": "", "rto": ""}) == plan
    wished = with_wishes(plan, {"parallelism": "4", "rto": "1h"})
    assert wished == replace(plan, parallelism="4", rto_s=3600, give_up_s=4 * 3600)
    assert with_wishes(plan, {"choose": "latest"}).choice == Choice()
    with pytest.raises(DrillPlanRefused, match="drill plan payments: rto"):
        with_wishes(plan, {"rto": "quick"})


def test_wishes_alone_are_a_plan_if_they_are_enough() -> None:
    by_hand = with_wishes(None, {"checkpoints": "/c", "spec": "/s", "rto": "5m"})
    assert (by_hand.name, by_hand.rto_s) == ("", 300)
    with pytest.raises(DrillPlanRefused, match="a drill needs a plan, or checkpoints and a job spec"):
        with_wishes(None, {"spec": "/s"})
    with pytest.raises(DrillPlanRefused, match="drill plan by-hand: rto"):
        with_wishes(None, {"checkpoints": "/c", "spec": "/s", "rto": "soon"})
