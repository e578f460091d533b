"""The recovery time objective as a deadline of the DAG run, watched by Airflow's scheduler.

Airflow fixes a deadline when the run is created; a DAG has one for all its runs, so this reference reads the run's own
``rto`` first. The scheduler sees a run that has not succeeded by then and has the triggerer call :func:`passed`. A run
that fails early is reported when its time is up, not before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import BaseDeadlineReference, DeadlineAlert

from cdr_core import settings

if TYPE_CHECKING:
    from airflow.models import DagRun

log = logging.getLogger(__name__)


class RecoveryTime(BaseDeadlineReference):
    """Trigger time plus the run's ``rto``, else plus ``CDR_RTO``; no deadline where both are empty."""

    required_kwargs: ClassVar[set[str]] = {"dag_id", "run_id"}

    def _evaluate_with(self, *, session: Any, dag_id: str, run_id: str) -> datetime | None:
        from airflow.models import DagRun

        run = DagRun.find_duplicate(dag_id, run_id, session=session)
        return needed_by(run) if run is not None else None


def needed_by(run: DagRun) -> datetime | None:
    """Return when the run must have succeeded. An unreadable value is no deadline: it must not keep a run from
    starting.
    """
    try:
        rto = str((run.conf or {}).get("rto") or "")
        seconds = settings.parse_duration(rto) if rto else settings.load().rto
        begun: datetime | None = run.queued_at or run.run_after
        # Inside: a sum beyond any calendar is an error, too, and would fail the trigger.
        return begun + timedelta(seconds=seconds) if seconds and begun else None
    except Exception:
        log.exception("The recovery time of run %s cannot be read, so it has no deadline.", run.run_id)
        return None


def alert() -> DeadlineAlert:
    """Return the deadline of a DAG whose runs have an ``rto``."""
    return DeadlineAlert(
        name="Recovery time objective",
        reference=RecoveryTime(),
        interval=timedelta(0),  # the reference is the deadline itself
        callback=AsyncCallback(passed),
    )


async def passed(context: Mapping[str, Any]) -> str:
    """Send the alert; called in the triggerer when a deadline is missed. Return the channels as text: another type ends
    the triggerer.
    """
    from cdr_airflow import notify

    run = context["dag_run"]
    deadline = str(context["deadline"]["deadline_time"])
    channels = await asyncio.to_thread(
        notify.deadline_missed, str(run["dag_id"]), str(run["dag_run_id"]), deadline, str(run.get("state") or "")
    )
    return ", ".join(channels)
