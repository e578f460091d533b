"""Starting over as a person does: by the button on the page, and by the switch in the form."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import expect

from cdr_airflow.embedded.rest import DAG
from cdr_core.metadata import Phase, RecoveryState
from tests.airflow.live import Live
from tests.browser.screen import PATIENCE, Screen
from tests.browser.sections import SOURCE, WIDTH
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.damage import Damaged

pytestmark = pytest.mark.timeout(1800)

BEHAVIOUR = "Behaviour"


def _damaged(fixture_checkpoint: FixtureCheckpoints, folder: Path) -> tuple[Path, Path]:
    original = fixture_checkpoint("a_p3_thr0", 2)
    damaged = Damaged(original, folder / "chk-2")
    damaged.flip((1, 1), damaged.frames((1, 1))[20], 6)
    return damaged.folder, Path(shutil.copy(original.spec, folder / "job.yaml"))


def test_the_button_recovers_what_is_sound_of_a_damaged_checkpoint(
    live: Live, screen: Screen, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    checkpoint, spec = _damaged(fixture_checkpoint, tmp_path)
    form = screen.open_form(DAG)
    form.section(SOURCE)
    form.fill("checkpoint", str(checkpoint))
    form.section(WIDTH)
    form.fill("to", f"parquet:{live.home.root / 'out' / 'sound'}")
    form.section(BEHAVIOUR)
    form.fill("drain_order", "main")
    form.submitted()
    screen.wait_for_task("read", "Failed")
    with live.repository() as repository:
        (failed,) = [each for each in repository.recoveries() if each.source.uri == str(checkpoint)]
    page = screen.page
    page.goto(f"/cdr/recoveries/{failed.id}")
    expect(page.get_by_test_id("error")).to_contain_text("start over")
    expect(page.get_by_test_id("claim-key")).to_contain_text("key: by hand, proven")
    expect(page.get_by_test_id("claim-types")).to_contain_text("types: by hand, unproven")
    expect(page.get_by_test_id("sample-rows")).to_contain_text("smallest")
    page.get_by_test_id("start-over").click()
    page.get_by_test_id("over-corrupt").select_option("quarantine")
    screen.take("start-over", full=True)
    page.get_by_test_id("over-submit").click()
    expect(page.get_by_test_id("start-over-message")).to_contain_text("replaces this recovery")
    expect(page.get_by_test_id("state")).to_have_text("replaced", timeout=PATIENCE)
    page.get_by_test_id("replaced-by").click()
    expect(page.get_by_test_id("recovery-id")).to_have_text(f"{failed.id}-g2")
    expect(page.get_by_test_id("verdict")).to_contain_text("Partial", timeout=PATIENCE)
    assert spec.is_file()
    with live.repository() as repository:
        orders = [repository.recovery(each).options.drain_order for each in (failed.id, f"{failed.id}-g2")]
    assert orders == [("main",), ("main",)], "the form passes the order on, and so does the button"


def test_the_switch_replaces_a_recovery_that_was_cancelled(
    live: Live, screen: Screen, fixture_checkpoint: FixtureCheckpoints
) -> None:
    target = f"parquet:{live.home.root / 'out' / 'cancelled'}"
    with live.paused("filter") as wait_until_caught:
        form = screen.open_form(DAG)
        form.section(WIDTH)
        form.fill("parallelism", "5")
        form.fill("to", target)
        form.submitted()
        wait_until_caught()
        with live.repository() as repository:
            (running,) = [each for each in repository.recoveries() if each.target == target]
            repository.cancel(running.id, force=True)
    form = screen.open_form(DAG)
    form.section(WIDTH)
    form.fill("to", target)
    form.section(BEHAVIOUR)
    form.switch("replace")
    screen.take("form-behaviour")
    form.submitted()
    for phase in Phase:
        screen.wait_for_task(phase, "Success")
    with live.repository() as repository:
        assert repository.recovery(running.id).state is RecoveryState.REPLACED
        assert repository.recovery(f"{running.id}-g2").state is RecoveryState.DONE
