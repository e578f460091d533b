"""A recovery as a person sees it: sign in, fill in the form, watch it, look closer, take the receipt home.

The tests are one visit, in this order; each needs what the one before has left on the screen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from cdr_airflow.embedded.rest import DAG
from cdr_core.metadata import Phase
from tests.airflow.judge import assert_receipt, assert_right, expected_rows
from tests.airflow.live import Live, Run
from tests.browser.screen import LIGHTNESS, PATIENCE, Screen
from tests.browser.sections import SOURCE, WIDTH
from tests.support.checkpoints import FixtureCheckpoints

pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True, slots=True)
class Held:
    """A run that was started from the form and whose drain waits until it is let go."""

    run: Run
    hold: ExitStack

    def let_go(self) -> None:
        self.hold.close()


def test_nobody_gets_in_with_a_wrong_password(stranger: Screen) -> None:
    stranger.page.goto("/")
    stranger.try_password("admin", "a guess")
    expect(stranger.page.get_by_text("Invalid credentials")).to_be_visible()


def test_the_page_is_closed_to_who_is_not_signed_in(stranger: Screen) -> None:
    answer = stranger.page.goto("/cdr/")
    assert answer is not None
    assert answer.status == 401
    expect(stranger.page.get_by_test_id("login-link")).to_be_visible()


def test_an_empty_page_says_how_to_begin(live: Live, screen: Screen) -> None:
    screen.page.goto("/cdr/")
    expect(screen.page.get_by_test_id("empty")).to_contain_text("Trigger the DAG")
    screen.take("empty")
    screen.page.goto("/cdr/drills")
    expect(screen.page.get_by_test_id("empty")).to_contain_text("No drills yet")


def test_the_form_refuses_a_mistake_and_starts_nothing(live: Live, screen: Screen) -> None:
    before = live.client.call("GET", f"dags/{DAG}/dagRuns")["total_entries"]
    form = screen.open_form(DAG)
    form.section(WIDTH)
    form.fill("parallelism", "two")
    form.submit()
    expect(form.dialog.get_by_text("Invalid input for param parallelism")).to_be_visible()
    screen.take("form-refused")
    assert live.client.call("GET", f"dags/{DAG}/dagRuns")["total_entries"] == before


@pytest.fixture(scope="module")
def held(live: Live, screen: Screen) -> Iterator[Held]:
    with ExitStack() as hold:
        wait_until_caught = hold.enter_context(live.paused("drain"))
        form = screen.open_form(DAG)
        form.section(SOURCE)
        screen.take("form-source")
        form.section(WIDTH)
        output = live.home.root / "out" / "by-hand"
        form.fill("to", f"parquet:{output}")
        screen.take("form")
        run = Run(live, form.submitted(), output)
        screen.wait_for_task("drain", "Running")
        wait_until_caught()
        yield Held(run, hold)


def test_the_tab_of_the_run_shows_it_draining(held: Held, screen: Screen) -> None:
    screen.page.get_by_role("tab", name="Recovery").or_(screen.page.get_by_role("link", name="Recovery")).first.click()
    tab = screen.page.frame_locator("iframe")
    expect(tab.get_by_test_id("recovery-id")).to_have_text(held.run.recovery)
    expect(tab.get_by_test_id("state")).to_have_text("draining")
    expect(tab.get_by_test_id("phase-spill-state")).to_contain_text("done")
    expect(tab.get_by_test_id("routing")).to_have_count(0)
    screen.take("tab")


def test_the_button_takes_a_recovery_checkpoint_that_can_be_exported(held: Held, screen: Screen) -> None:
    tab = screen.page.frame_locator("iframe")
    tab.get_by_test_id("take-checkpoint").click()
    expect(tab.get_by_test_id("checkpoint-message")).to_contain_text("is complete", timeout=PATIENCE)
    (row,) = tab.get_by_test_id("checkpoint-row").all()
    number = row.get_attribute("data-checkpoint")
    screen.page.goto(f"/cdr/recoveries/{held.run.recovery}")
    screen.page.get_by_test_id(f"export-{number}").click()
    expect(screen.page.get_by_test_id("checkpoint-message")).to_contain_text("was exported: 1,878 records")
    screen.take("recovery-draining", full=True)
    exports = held.run.live.home.root / "exports"
    assert (exports / f"{held.run.recovery}-chk-{number}" / "_metadata").is_file()


def test_five_tasks_go_green_and_the_result_is_right(
    held: Held, screen: Screen, fixture_checkpoint: FixtureCheckpoints
) -> None:
    screen.open_run(DAG, held.run.id)
    held.let_go()
    for phase in Phase:
        screen.wait_for_task(phase, "Success")
    screen.take("run")
    assert_right(held.run, expected_rows(fixture_checkpoint))


def assert_routing_is_shown(run: Run, page: Page) -> None:
    """A line for each counter of the receipt, in the page's format, and a bar with the shares of what was delivered."""
    with run.live.repository() as repository:
        receipt = repository.receipt(run.recovery)
    assert receipt is not None
    counted: dict[str, int] = receipt["run"]["routing"]
    for name, size in counted.items():
        text = page.evaluate("async (size) => (await import('/cdr/static/format.js')).bytes(size)", size)
        row = page.get_by_test_id(f"routing-{name.replace('_', '-')}")
        expect(row.get_by_role("cell").nth(1)).to_have_text(text)
    parts = "(bar) => [...bar.children].map((part) => [part.className, part.offsetWidth / bar.offsetWidth])"
    shown = dict(page.get_by_test_id("routing-bar").evaluate(parts))
    delivered = counted["handed_over"] + counted["replayed"]
    expected = {"handed-over": counted["handed_over"] / delivered, "replayed": counted["replayed"] / delivered}
    assert shown == pytest.approx(expected, abs=0.01)


def test_the_navigation_leads_to_the_recovery_and_its_receipt(held: Held, screen: Screen, tmp_path: Path) -> None:
    screen.page.get_by_role("link", name="Recoveries").click()
    screen.page.frame_locator("iframe").get_by_test_id("recovery-row").first.wait_for()
    screen.take("recoveries")
    screen.page.goto("/cdr/")
    screen.page.locator(f'[data-recovery="{held.run.recovery}"] a').click()
    expect(screen.page.get_by_test_id("verdict")).to_contain_text("Balanced")
    expect(screen.page.get_by_test_id("ledger-commit")).to_contain_text("1,878")
    assert_routing_is_shown(held.run, screen.page)
    screen.take("recovery", full=True)
    with screen.page.expect_download() as download:
        screen.page.get_by_test_id("download-receipt").click()
    download.value.save_as(tmp_path / "receipt.json")
    receipt = json.loads((tmp_path / "receipt.json").read_text())
    assert receipt["recovery"]["id"] == held.run.recovery
    assert_receipt(receipt, 1878)


def test_the_page_can_be_dark(held: Held, screen: Screen) -> None:
    def lightness() -> float:
        return float(screen.page.evaluate(LIGHTNESS))

    screen.page.emulate_media(color_scheme="light")
    screen.page.goto(f"/cdr/recoveries/{held.run.recovery}")
    expect(screen.page.get_by_test_id("verdict")).to_be_visible()
    light = lightness()
    screen.page.emulate_media(color_scheme="dark")
    screen.page.reload()
    expect(screen.page.get_by_test_id("verdict")).to_be_visible()
    screen.take("recovery-dark", full=True)
    assert lightness() < light / 2
    screen.page.emulate_media(color_scheme="light")


def test_nothing_went_wrong_in_the_browser(held: Held, screen: Screen) -> None:
    assert screen.complaints == []
