"""The sweep's operator: ``cdr sweep`` as a task, its report as the task's log."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from cdr_airflow import connections, recoveries
from cdr_airflow.driver import Driver
from cdr_airflow.operator import TERM_SECONDS
from cdr_airflow.redact import redactor_for, tell_airflow
from cdr_core import settings

if TYPE_CHECKING:
    from airflow.sdk import Context


class SweepOperator(BaseOperator):
    """Removes leftovers; with ``dry_run`` it only lists them and the reasons.

    In a run that a user triggered, it removes only if the form has ``remove``.

    :param remove: the form's answer as text; empty = none was given.
    :param keep: how long files of a finished recovery are kept; empty = ``CDR_SWEEP_AFTER``.
    """

    template_fields: Sequence[str] = ("remove", "keep")

    def __init__(self, *, dry_run: bool, remove: str = "", keep: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.is_dry_run, self.remove, self.keep = dry_run, remove, keep
        self._driver: Driver | None = None

    def execute(self, context: Context) -> None:
        if not self.is_dry_run and self.remove != "yes":
            raise AirflowSkipException(
                "Nothing is removed, because the form has Remove off. The previous task lists what would be."
            )
        command = [sys.executable, "-m", "cdr_core.cli.main", "sweep", *(["--dry-run"] if self.is_dry_run else [])]
        current = settings.load()
        with connections.applied(connections.environment("", current.aws_conn)):
            clean = redactor_for(os.environ)
            tell_airflow(clean)
            environment = recoveries.driver_environment()
            environment |= {"CDR_SWEEP_AFTER": self.keep} if self.keep else {}
            driver = self._driver = Driver.start(command, environment)
            try:
                outcome = driver.follow(lambda line: self.log.info("%s", line), clean)
            finally:
                driver.end(TERM_SECONDS)
        if outcome.exit_code != 0:
            raise AirflowException(outcome.sentence)

    def on_kill(self) -> None:
        """Do nothing: a sweep may be stopped anywhere, and the next one continues."""
        if self._driver is not None:
            self._driver.end(TERM_SECONDS)
