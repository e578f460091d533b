"""A phase of the DAG executed in this process, as Airflow would."""

from __future__ import annotations

from typing import Any

from airflow.sdk.bases.operator import ExecutorSafeguard

from cdr_airflow.operator import PhaseOperator


class Task:
    """The task instance of a run whose XComs are kept here."""

    run_id, try_number = "manual__1", 1

    def __init__(self, task_id: str, xcoms: dict[str, Any]) -> None:
        self.task_id, self.xcoms = task_id, xcoms

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def xcom_pull(self, task_ids: str, key: str) -> Any:
        return self.xcoms[key]


def execute(phase: str, xcoms: dict[str, Any], request: dict[str, str] | None = None) -> Any:
    operator = PhaseOperator(task_id=phase, phase=phase, request=request)
    token = ExecutorSafeguard.tracker.set(operator)
    try:
        return operator.execute({"ti": Task(phase, xcoms)})  # type: ignore[typeddict-item]
    finally:
        ExecutorSafeguard.tracker.reset(token)
