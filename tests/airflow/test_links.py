"""Extra links of a phase's task."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.configuration import conf

from cdr_airflow import links
from cdr_airflow.operator import PhaseOperator


class Pushed(dict[str, Any]):
    """The XComs of a task."""

    def xcom_push(self, key: str, value: Any) -> None:
        self[key] = value


@pytest.fixture(autouse=True)
def _address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/")
    assert conf.get("api", "base_url") == "https://airflow.example/"


def operator(phase: str, recovery: str = "r-1", ui: str = "") -> PhaseOperator:
    made = PhaseOperator(task_id=phase, phase=phase)
    made.recovery, made.spark_ui = recovery, ui
    return made


def urls(made: PhaseOperator) -> dict[str, str]:
    return {link.name: link.get_link(made, ti_key=None) for link in made.operator_extra_links}  # type: ignore[arg-type]


def test_a_task_leads_to_its_recovery_and_to_the_spark_ui_while_there_is_one() -> None:
    assert urls(operator("drain", ui="http://localhost:4040")) == {
        "Recovery": "https://airflow.example/cdr/recoveries/r-1",
        "Receipt": "",
        "Spark UI": "http://localhost:4040",
    }


def test_only_commit_leads_to_the_receipt_because_it_writes_it() -> None:
    assert urls(operator("commit"))["Receipt"] == "https://airflow.example/cdr/api/v1/recoveries/r-1/receipt"


def test_a_task_that_found_no_recovery_has_no_links() -> None:
    assert set(urls(operator("read", recovery="")).values()) == {""}


def test_links_that_are_known_are_there_before_the_task_ends() -> None:
    pushed = Pushed()
    links.publish(operator("spill"), pushed)
    assert pushed == {links.RecoveryLink().xcom_key: "https://airflow.example/cdr/recoveries/r-1"}
