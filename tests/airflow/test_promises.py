"""What a recovery promises beside its five tasks, in a real Airflow: deadline, approval, asset events, links.

``make test-airflow ARGS=tests/airflow/test_promises.py`` runs it. One instance whose recoveries ask to be approved.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cdr_core.metadata import Phase
from tests.airflow.alerts import Alerts
from tests.airflow.judge import expected_rows
from tests.airflow.live import Live, Run, wait_for
from tests.support.checkpoints import FixtureCheckpoints

pytestmark = [
    pytest.mark.timeout(2400),
    pytest.mark.soak,
]


@pytest.fixture(scope="module")
def alerts() -> Iterator[Alerts]:
    with Alerts.open() as opened:
        yield opened


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, alerts: Alerts) -> Iterator[Live]:
    wishes = {"CDR_NOTIFY_WEBHOOK": alerts.url, "CDR_APPROVAL": "true"}
    instance = Live.make(tmp_path_factory.mktemp("promises"), **wishes)
    with instance.guarded():
        up = instance.command("up", "--port", "0")
        assert up.returncode == 0, up.stderr
        yield instance


@pytest.fixture(scope="module")
def approved(live: Live) -> Run:
    """A recovery in earnest that has a second for everything, was approved, and is over."""
    run = Run.trigger(live, "approved", rto="1s")
    run.answer("Approve")
    assert run.wait_until_over() == "success"
    return run


def test_a_run_that_misses_its_deadline_is_told_of_once_and_goes_on(approved: Run, alerts: Alerts) -> None:
    def told() -> list[dict[str, Any]]:
        return [posted for posted in alerts.posted if posted["alert"] == "deadline_missed"]

    (alert,) = wait_for("the alert", told)
    assert (alert["dag"], alert["run"]) == ("cdr_recover", approved.id)
    assert approved.id in alert["text"]


def test_what_was_approved_is_published_and_announced_once(
    approved: Run, fixture_checkpoint: FixtureCheckpoints
) -> None:
    assert approved.published() == expected_rows(fixture_checkpoint)
    (event,) = approved.events()
    assert event["extra"]["recovery"] == approved.recovery
    assert event["extra"]["target"] == f"parquet:{approved.output}"
    approved.clear("commit")
    wait_for("commit to run again", lambda: approved.task("commit")["try_number"] == 2)
    assert approved.wait_until_over() == "success"
    assert len(approved.events()) == 1, "who publishes nothing announces nothing"


def test_the_tasks_lead_to_the_page_the_receipt_and_the_spark_ui(live: Live, approved: Run) -> None:
    assert {approved.links(phase)["Recovery"] for phase in Phase} == {f"{live.url}/cdr/recoveries/{approved.recovery}"}
    receipt = approved.links("commit")["Receipt"]
    assert receipt is not None
    assert json.loads(live.page(receipt.partition("/cdr/")[2]))["recovery"]["id"] == approved.recovery
    assert str(approved.links("drain")["Spark UI"]).startswith("http://localhost:")


def test_what_was_rejected_fails_the_run_and_publishes_nothing(live: Live) -> None:
    run = Run.trigger(live, "rejected")
    run.answer("Reject")
    assert run.wait_until_over() == "failed"
    assert run.task("approve")["state"] == "failed"
    assert run.task("commit")["state"] == "upstream_failed"
    assert not (run.output / "_cdr").exists()
    assert run.events() == []
