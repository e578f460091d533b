"""A recovery as a person sees it: sign in, fill in the form, watch, look at the page, take the receipt home."""

from __future__ import annotations

from playwright.sync_api import expect

from cdr_core.metadata import Phase
from tests.airflow.judge import assert_right, expected_rows
from tests.airflow.live import Live, Run
from tests.browser.screen import Screen
from tests.support.checkpoints import FixtureCheckpoints

DAG = "cdr_recover"


def test_nobody_gets_in_with_a_wrong_password(stranger: Screen) -> None:
    stranger.page.goto("/")
    stranger.take("sign-in")
    stranger.try_password("admin", "a guess")
    expect(stranger.page.get_by_text("Invalid credentials")).to_be_visible()


def test_the_form_refuses_a_mistake_and_no_run_exists(live: Live, screen: Screen) -> None:
    form = screen.open_form(DAG)
    form.section("Where to, and how wide")
    form.fill("parallelism", "two")
    screen.take("form")
    form.submit()
    expect(form.dialog.get_by_text("Invalid input for param parallelism")).to_be_visible()
    screen.take("form-refused")
    assert live.client.call("GET", f"dags/{DAG}/dagRuns")["dag_runs"] == []


def test_a_run_from_the_form_goes_green_task_by_task(
    live: Live, screen: Screen, fixture_checkpoint: FixtureCheckpoints
) -> None:
    form = screen.open_form(DAG)
    form.section("Where to, and how wide")
    output = live.home.root / "out" / "by-hand"
    form.fill("to", f"parquet:{output}")
    run = Run(live, form.submitted(), output)
    for phase in Phase:
        screen.wait_for_task(phase, "Success")
    screen.take("run")
    assert_right(run, expected_rows(fixture_checkpoint))
