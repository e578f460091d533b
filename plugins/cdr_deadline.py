"""Registers the deadline that ``cdr_recover`` uses: Airflow only accepts references that a plugin lists."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from cdr_airflow.deadline import RecoveryTime


class CdrDeadlinePlugin(AirflowPlugin):
    """See :mod:`cdr_airflow.deadline`."""

    name = "cdr_deadline"
    deadline_references = [RecoveryTime]  # noqa: RUF012 # Airflow reads it as a plain class attribute
