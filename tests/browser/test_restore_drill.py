"""A restore drill by hand: triggered from its form, judged, and kept in the history."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from cdr_core.metadata import DrillOutcome, Phase
from tests.airflow.live import Live
from tests.browser.screen import Screen
from tests.page import sample

pytestmark = pytest.mark.timeout(1800)

DAG = "cdr_restore_drill"

_PASSED, _LATE, _WRONG = DrillOutcome.PASSED, DrillOutcome.TIMED_OUT, DrillOutcome.FAILED
HISTORY = {
    "orders": [_PASSED, _PASSED, _PASSED, _PASSED],
    "payments": [_PASSED, _PASSED, _LATE, _PASSED, _WRONG, _PASSED, DrillOutcome.COULD_NOT_RUN, _PASSED, _PASSED],
}
"""For the pictures: what some weeks of drills look like."""


def test_a_drill_from_the_form_passes_and_is_in_the_history(live: Live, screen: Screen) -> None:
    form = screen.open_form(DAG)
    form.section("Limits")
    form.fill("rto", "1h")
    screen.take("drill-form")
    form.submitted()
    for task in (*Phase, "verdict"):
        screen.wait_for_task(task, "Success")
    screen.page.goto("/cdr/drills")
    drill = screen.page.get_by_test_id("drill-row")
    expect(drill).to_have_count(1)  # waits until it is drawn, which all() does not
    expect(drill).to_contain_text("passed")
    screen.page.get_by_test_id(f"checks-{drill.get_attribute('data-drill')}").click()
    expect(screen.page.get_by_test_id("checks")).to_contain_text("balanced")
    with live.repository() as repository:
        (known,) = repository.drills()
        assert not (live.home.root / "drills" / known.id).exists(), "its output is scratch and goes"
        if screen.pictures.folder is not None:
            for plan, outcomes in HISTORY.items():
                sample.drilled(repository, plan, outcomes)
            screen.page.goto("/cdr/drills?plan=payments")
            expect(screen.page.get_by_test_id("plan-row")).to_have_count(3)
            failed = screen.page.get_by_test_id("drill-row").filter(has_text="failed").first
            screen.page.get_by_test_id(f"checks-{failed.get_attribute('data-drill')}").click()
            expect(screen.page.get_by_test_id("checks")).to_be_visible()
    screen.take("drills", full=True)
    screen.page.emulate_media(color_scheme="dark")
    screen.page.reload()
    expect(screen.page.get_by_test_id("drill-row").first).to_be_visible()
    screen.take("drills-dark", full=True)
    screen.page.emulate_media(color_scheme="light")
