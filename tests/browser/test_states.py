"""What a person sees of recoveries that did not go well, of hostile names, and of a page that is asked too quickly.

After the visits of the other files: the rows here are written by the tests, into the same Airflow's database.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass

import pytest
from playwright.sync_api import Route, expect

from cdr_core.metadata import DrillOutcome
from tests.airflow.live import Live
from tests.browser.screen import LIGHTNESS, Screen
from tests.page import sample
from tests.support.checkpoints import FixtureCheckpoints

pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True, slots=True)
class States:
    """Recoveries by what became of them."""

    overtaken: str
    failed: str
    partial: str
    created: str
    draining: str


@pytest.fixture(scope="module")
def states(live: Live, fixture_checkpoint: FixtureCheckpoints, tmp_path_factory: pytest.TempPathFactory) -> States:
    folder, checkpoint = tmp_path_factory.mktemp("states"), fixture_checkpoint("a_p3_thr0", 2)
    with pytest.MonkeyPatch.context() as patch, live.repository() as repository:
        patch.setenv("CDR_HOME", str(live.home.root))
        return States(
            sample.overtaken(checkpoint, folder / "other"),
            sample.failed(checkpoint, folder),
            sample.partial(checkpoint, folder),
            sample.created(checkpoint, folder),
            sample.wide(repository),
        )


@pytest.fixture
def page_of(states: States, screen: Screen) -> Screen:
    screen.page.goto("/cdr/")
    expect(screen.page.locator(f'[data-recovery="{states.draining}"]')).to_be_visible()
    return screen


def show(screen: Screen, recovery: str) -> None:
    screen.page.goto(f"/cdr/recoveries/{recovery}")
    expect(screen.page.get_by_test_id("recovery-id")).to_have_text(recovery)


def test_a_hostile_name_is_shown_and_not_run(page_of: Screen, states: States) -> None:
    page = page_of.page
    row = page.locator(f'[data-recovery="{states.overtaken}"]')
    expect(row).to_contain_text("<img src=x")
    for where in ("", f"recoveries/{states.overtaken}"):
        page.goto(f"/cdr/{where}")
        expect(page.get_by_text("<script>window.taken=1</script>").first).to_be_visible()
        assert page.evaluate("window.taken") is None
        assert page.locator("main img, main script").count() == 0


def test_every_ending_has_its_words(states: States, screen: Screen) -> None:
    page = screen.page
    show(screen, states.failed)
    expect(page.get_by_test_id("state")).to_have_text("failed")
    expect(page.get_by_test_id("error")).to_contain_text(f"cdr resume {states.failed}")
    expect(page.get_by_test_id("phase-read-state")).to_have_text("failed")
    screen.take("recovery-failed", full=True)
    show(screen, states.partial)
    expect(page.get_by_test_id("verdict")).to_contain_text("Partial")
    expect(page.get_by_test_id("verdict")).to_contain_text("quarantine")
    show(screen, states.overtaken)
    expect(page.get_by_test_id("attempts")).to_contain_text("overtaken by epoch 3")
    expect(page.get_by_test_id("attempts")).to_contain_text("1 fenced")
    show(screen, states.created)
    expect(page.get_by_test_id("facts")).to_contain_text("Waiting for")


def test_an_address_of_nothing_leads_back(screen: Screen) -> None:
    for address, heading in (("recoveries/r-none", "Recoveries"), ("drills/d-none", "Restore drills")):
        screen.page.goto(f"/cdr/{address}")
        expect(screen.page.get_by_test_id("failure")).to_contain_text("There is no")
        screen.page.get_by_test_id("back").click()
        expect(screen.page.get_by_role("heading", name=heading, exact=True)).to_be_visible()


def test_many_subtasks_are_drawn(states: States, screen: Screen) -> None:
    show(screen, states.draining)
    expect(screen.page.get_by_test_id("flow-picture")).to_be_visible()
    assert screen.page.locator('[data-testid="flow-picture"] .ribbon').count() > 40


def test_two_clicks_are_one_checkpoint(states: States, screen: Screen) -> None:
    asked: list[str] = []

    def count(route: Route) -> None:
        asked.append(route.request.url)
        route.continue_()

    show(screen, states.draining)
    screen.page.route(re.compile(r"/checkpoints$"), count)
    screen.page.get_by_test_id("take-checkpoint").dblclick()
    expect(screen.page.get_by_test_id("take-checkpoint")).to_have_text("Taking a checkpoint …")
    screen.page.unroute_all()
    assert len(asked) == 1


def test_an_answer_to_an_older_search_is_not_shown(page_of: Screen, states: States) -> None:
    page, held = page_of.page, list[Route]()
    page.route(re.compile(r"[?&]q=nothing-fits-this"), lambda route: held.append(route))
    with page.expect_request(re.compile(r"q=nothing-fits-this")):
        page.get_by_test_id("search").fill("nothing-fits-this")
    page.get_by_test_id("search").fill(states.draining)
    expect(page.get_by_test_id("recovery-row")).to_have_count(1)
    with page.expect_response(re.compile(r"q=nothing-fits-this")):
        held[0].continue_()
    page.wait_for_timeout(300)
    page.unroute_all()
    expect(page.get_by_test_id("recovery-row")).to_have_count(1)


def test_a_plan_that_is_not_there_leads_back_to_all_drills(live: Live, screen: Screen) -> None:
    with live.repository() as repository:
        sample.drilled(repository, "payments", [DrillOutcome.PASSED])
    screen.page.goto("/cdr/drills?plan=unknown")
    expect(screen.page.get_by_test_id("empty")).to_contain_text("No drill of unknown")
    screen.page.get_by_test_id("all-drills").click()
    expect(screen.page.get_by_test_id("drill-row").first).to_be_visible()


def test_older_drills_are_a_click_away(screen: Screen) -> None:
    answer = screen.page.request.get("/cdr/api/v1/drills").json()
    screen.page.route(re.compile(r"/api/v1/drills\?"), lambda route: route.fulfill(json=answer | {"total": 250}))
    screen.page.goto("/cdr/drills")
    with screen.page.expect_request(re.compile(r"offset=100")):
        screen.page.get_by_test_id("older").click()
    screen.page.unroute_all()


def test_the_page_is_as_dark_as_airflow_is_set(states: States, screen: Screen) -> None:
    """Airflow keeps its switch in the browser's storage under ``theme``, whatever the system prefers. That it does so
    is looked up in Airflow's own page.
    """
    page = screen.page
    page.emulate_media(color_scheme="light")
    show(screen, states.created)
    light = float(page.evaluate(LIGHTNESS))
    page.evaluate("localStorage.setItem('theme', 'dark')")
    page.goto("/")
    expect(page.get_by_test_id("nav-dags-link")).to_be_visible()
    assert "dark" in page.evaluate("document.documentElement.cloneNode(false).outerHTML")
    show(screen, states.created)
    expect(page.get_by_test_id("facts")).to_be_visible()
    assert float(page.evaluate(LIGHTNESS)) < light / 2
    page.emulate_media(color_scheme="dark")
    page.evaluate("localStorage.setItem('theme', 'light')")
    page.reload()
    expect(page.get_by_test_id("facts")).to_be_visible()
    assert float(page.evaluate(LIGHTNESS)) == light
    page.evaluate("localStorage.removeItem('theme')")
    page.emulate_media(color_scheme="light")


def test_a_database_that_is_away_is_said_and_the_page_comes_back_by_itself(
    live: Live, states: States, screen: Screen
) -> None:
    assert screen.complaints == []
    show(screen, states.created)
    database = live.home.root / "cdr.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # nothing of it lies in another file
    aside = database.rename(database.with_name("aside.db"))
    try:
        expect(screen.page.get_by_test_id("failure")).to_be_visible()
        expect(screen.page.get_by_role("heading", name="The metadata database is unavailable")).to_be_visible()
        expect(screen.page.get_by_test_id("failure")).to_contain_text("tries again by itself")
        screen.take("away")
    finally:
        aside.rename(database)
    expect(screen.page.get_by_test_id("recovery-id")).to_have_text(states.created)
