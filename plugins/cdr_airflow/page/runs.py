"""From a run of a DAG to its recovery: by the XCom of its first task, else its drill, else the attempts it began."""

from __future__ import annotations

import re
from typing import Any

from cdr_core.drill.drill_id import drill_id_of
from cdr_core.metadata import Repository

RECOVERY_KEY = "recovery"
"""XCom under which the first task names the recovery, also where it found one that was done already."""

OWN_DAGS = "cdr_"
"""Prefix of cdr's DAGs. Scheduled runs of different DAGs share their ids, so a run's id alone is ambiguous."""

DRILL_DAGS = "cdr_restore_drill"
"""Prefix of drill DAGs. Plans with the same schedule share the ids of their runs, so a drill is found by both."""

_RECOVERY_ID = re.compile(r"r-[0-9a-f]{4,64}(?:-g[0-9]{1,9})?")


def recovery_of_run(rows: Repository, dag_id: str, run_id: str) -> str | None:
    named = _named_by_task(dag_id, run_id)
    if named is not None:
        return named
    if dag_id.startswith(DRILL_DAGS):
        drill = rows.find_drill(drill_id_of(f"{dag_id}/{run_id}"))
        return None if drill is None else drill.recovery_id
    return rows.recovery_of_run(run_id) if dag_id.startswith(OWN_DAGS) else None


def _named_by_task(dag_id: str, run_id: str) -> str | None:
    # Not at module level: only the api-server has to load Airflow's models.
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        found: Any = session.scalars(
            XComModel.get_many(run_id=run_id, key=RECOVERY_KEY, dag_ids=[dag_id]).limit(1)
        ).first()
        value = None if found is None else XComModel.deserialize_value(found)
    return value if isinstance(value, str) and _RECOVERY_ID.fullmatch(value) else None
