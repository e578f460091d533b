"""Metrics through Airflow's own ``stats``: StatsD or OpenTelemetry, as configured there, else none.

Names and labels are the table in ``docs/airflow.md``; dashboards rely on them. A failing metric never fails its task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

PHASE_ENDED = "cdr.phase.ended"
PHASE_DURATION = "cdr.phase.duration"
RECORDS = "cdr.recovered.records"
BYTES = "cdr.recovered.bytes"
FAILURES = "cdr.failures"
FENCED = "cdr.fenced"
DEADLINE_MISSED = "cdr.deadline.missed"
DRILL_ENDED = "cdr.drill.ended"
DRILL_RTO = "cdr.drill.rto"
DRILL_RPO = "cdr.drill.rpo"

DONE, STORED = "done", "stored"
"""Outcomes of a task that succeeded: it did the work, or found it done and returned the stored result."""

log = logging.getLogger(__name__)


def phase_ended(
    phase: str, outcome: str, seconds: float, *, dag: str = "", result: Mapping[str, Any] | None = None
) -> None:
    """Count the end of a phase's task: ``outcome`` is :data:`DONE`, :data:`STORED` or the name of an error's class.

    Records and bytes are counted once per recovery, by the ``commit`` that published them.
    """
    labels = {"phase": phase, "dag_id": dag}
    _count(PHASE_ENDED, 1, labels | {"outcome": outcome})
    if outcome == STORED:
        return
    _time(PHASE_DURATION, seconds, labels | {"outcome": outcome})
    if outcome != DONE:
        _count(FAILURES, 1, labels | {"error": outcome})
        if outcome == "Fenced":
            _count(FENCED, 1, labels)
    elif phase == "commit" and result:
        _count(RECORDS, int(result.get("records") or 0), {"dag_id": dag})
        _count(BYTES, int(result.get("bytes") or 0), {"dag_id": dag})


def deadline_missed(dag: str) -> None:
    """Count a run that did not succeed within its recovery time objective."""
    _count(DEADLINE_MISSED, 1, {"dag_id": dag})


def drill_ended(result: str, plan: str, rto_s: float | None, rpo_s: float | None) -> None:
    """Count a drill's verdict; an unknown time is left out, not sent as zero."""
    _count(DRILL_ENDED, 1, {"result": result, "plan": plan})
    if rto_s is not None:
        _time(DRILL_RTO, rto_s, {"plan": plan})
    if rpo_s is not None:
        _send(lambda stats: stats.gauge(DRILL_RPO, rpo_s, tags={"plan": plan}))


def _count(name: str, by: int, labels: Mapping[str, str]) -> None:
    _send(lambda stats: stats.incr(name, count=by, tags=_known(labels)))


def _time(name: str, seconds: float, labels: Mapping[str, str]) -> None:
    _send(lambda stats: stats.timing(name, timedelta(seconds=seconds), tags=_known(labels)))


def _known(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if value}


def _send(emit: Callable[[Any], None]) -> None:
    try:
        from airflow.sdk.observability import stats

        emit(stats)
    except Exception:
        # Any failure of a backend or its network: the recovery does not depend on it.
        log.warning("A metric could not be sent.", exc_info=True)
