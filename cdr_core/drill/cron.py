"""Whether a schedule is one that Airflow can keep."""

from __future__ import annotations

from datetime import UTC, datetime


def is_ever_due(cron: str) -> bool:
    """By the library with which Airflow's own timetables read it; where that is not installed, nothing is scheduled.

    The 31st of February is no schedule: such a drill would never run, unnoticed, and Airflow's DAG processor
    fails where it looks for the next run.
    """
    if cron.startswith("@"):
        return True
    try:
        from croniter import CroniterBadDateError, croniter  # type: ignore[import-untyped] # it ships no types
    except ImportError:
        return True
    if not croniter.is_valid(cron):
        return False
    try:
        croniter(cron, datetime.now(UTC)).get_next()
    except CroniterBadDateError:
        return False
    return True
