"""A restore drill by hand: triggered from its form, judged, and kept in the history."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from cdr_core.metadata import Phase
from tests.airflow.live import Live
from tests.browser.screen import Screen

pytestmark = pytest.mark.timeout(1800)

DAG = "cdr_restore_drill"


def test_a_drill_from_the_form_passes_and_is_in_the_history(live: Live, screen: Screen) -> None:
    form = screen.open_form(DAG)
    form.section("Limits")
    form.fill("rto", "1h")
    screen.take("drill-form")
    form.submitted()
    for task in (*Phase, "verdict"):
        screen.wait_for_task(task, "Success")
    screen.page.goto("/cdr/drills")
    (drill,) = screen.page.get_by_test_id("drill-row").all()
    expect(drill).to_contain_text("passed")
    screen.page.get_by_test_id(f"checks-{drill.get_attribute('data-drill')}").click()
    expect(screen.page.get_by_test_id("checks")).to_contain_text("balanced")
    screen.take("drills", full=True)
    screen.page.emulate_media(color_scheme="dark")
    screen.page.reload()
    expect(screen.page.get_by_test_id("drill-row")).to_be_visible()
    screen.take("drills-dark", full=True)
    screen.page.emulate_media(color_scheme="light")
    with live.repository() as repository:
        (known,) = repository.drills()
    assert not (live.home.root / "drills" / known.id).exists(), "its output is scratch and goes"
