"""The task ``approve`` before ``commit``: Airflow's own human approval, where ``CDR_APPROVAL`` asks for one."""

from __future__ import annotations

from airflow.sdk import BaseOperator

from cdr_core import settings
from cdr_core.errors import CdrError

BODY = """Everything is drained. Nothing more is published until you approve.

| | |
|---|---|
| recovery | `{{ ti.xcom_pull(task_ids="read", key="recovery") }}` |
| checkpoint | `{{ params.checkpoint }}` |
| target | `{{ params.to }}` |
| records | {{ (ti.xcom_pull(task_ids="drain") or {}).get("records", "unknown") }} |

*Approve* lets `commit` check it once more and publish it. *Reject* fails this run; the recovery stays as it is, and
clearing this task asks again."""


def is_wanted() -> bool:
    """Return whether the DAG has the task; also true where the settings do not load, which may demand it."""
    try:
        return settings.load().approval
    except CdrError:
        return True


def tasks() -> list[BaseOperator]:
    """Return the approval task, or none. A rejection fails the run, because a green run must have published."""
    if not is_wanted():
        return []
    from airflow.providers.standard.operators.hitl import ApprovalOperator

    return [
        ApprovalOperator(
            task_id="approve",
            subject="Publish the recovered records?",
            body=BODY,
            fail_on_reject=True,
            retries=0,  # a user has rejected it
        )
    ]
