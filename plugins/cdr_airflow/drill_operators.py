"""The drill's operators: the five phases as in a recovery, and the verdict."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from cdr_airflow import connections, drills, metrics, notify, recoveries
from cdr_airflow.driver import Driver
from cdr_airflow.operator import FIRST_PHASE, RECOVERY_KEY, TERM_SECONDS, PhaseOperator
from cdr_airflow.redact import Redactor, redactor_for, tell_airflow
from cdr_core import settings
from cdr_core.errors import CdrError

if TYPE_CHECKING:
    from airflow.sdk import Context

DRILL_KEY = "drill"
FAILURE_KEY = "failure"
NOTHING_NEW_KEY = "nothing_new"
PASSED = "PASSED"


class DrillPhaseOperator(PhaseOperator):
    """A phase of a drill: a :class:`PhaseOperator` with a bounded share of the cores, which stores for the verdict why
    it failed.

    The first phase chooses the checkpoint, writes the drill's row and makes its recovery; it skips the run when its
    plan waits for a new checkpoint and there is none.
    """

    _run_of = ("", "")
    """The DAG and the run that is executed, by which the drill is found."""

    def execute(self, context: Context) -> dict[str, Any]:
        if self.request is not None:
            self._skip_without_news(context)
        return super().execute(context)

    def _skip_without_news(self, context: Context) -> None:
        ti = context["ti"]
        try:
            with connections.applied(self._connected()):
                nothing = drills.has_nothing_new(self.request or {}, ti.dag_id, ti.run_id)
        except CdrError:
            return  # any error: the phase itself meets it and reports it better
        if nothing:
            ti.xcom_push(key=NOTHING_NEW_KEY, value=True)
            raise AirflowSkipException("There is no checkpoint that was not drilled before.")

    def _connected(self) -> dict[str, str]:
        connected = super()._connected()
        return connected | drills.share_environment(connected)

    def _run(self, context: Context, clean: Redactor) -> dict[str, Any]:
        ti = context["ti"]
        self._run_of = (ti.dag_id, ti.run_id)
        try:
            drills.refuse_if_given_up(ti.dag_id, ti.run_id)
            return super()._run(context, clean)
        except AirflowSkipException:
            raise
        except CdrError as error:
            self._remember(error, ti, clean)
            raise
        except Exception as error:
            self._remember(CdrError(f"{type(error).__name__}: {error}"), ti, clean)
            raise

    def _time_left(self) -> float | None:
        return drills.time_left(*self._run_of)

    def _refuse_if_late(self) -> None:
        try:
            drills.refuse_if_given_up(*self._run_of)
        except CdrError:
            self._start_interrupt()  # ending a driver does not end its Spark job
            raise

    def _remember(self, error: CdrError, ti: Any, clean: Redactor) -> None:
        try:
            noted = drills.failure(error, self._outcome, ti.dag_id, ti.run_id, clean)
            ti.xcom_push(key=FAILURE_KEY, value=noted)
        except Exception:
            self.log.exception("The verdict will not know why this task failed.")

    def _find_recovery(self, context: Context) -> str:
        if self.request is None:
            return super()._find_recovery(context)
        ti = context["ti"]
        recovery = drills.begin(self.request, ti.dag_id, ti.run_id)
        if recovery is None:
            ti.xcom_push(key=NOTHING_NEW_KEY, value=True)
            raise AirflowSkipException("There is no checkpoint that was not drilled before.")
        drill = drills.drill_id(ti.dag_id, ti.run_id)
        self.log.info("Drill %s rehearses recovery %s.", drill, recovery)
        ti.xcom_push(key=DRILL_KEY, value=drill)
        ti.xcom_push(key=RECOVERY_KEY, value=recovery)
        return recovery


class VerdictOperator(BaseOperator):
    """Judges the drill of this run, writes its result into the history and removes the rehearsed recovery.

    It runs even if phases failed. A result other than PASSED fails the task and the run, without a retry: the same
    facts give the same verdict. It sends the alerts of the settings, and the metrics count it.
    """

    template_fields: Sequence[str] = ("request",)
    template_fields_renderers = {"request": "json"}  # noqa: RUF012 # Airflow reads it as a plain class attribute
    ui_color = "#f4efe8"

    def __init__(self, *, request: Mapping[str, str], phases: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.request = dict(request)
        self.phases = list(phases)
        self._driver: Driver | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the drill as ``cdr drill show --json`` prints it."""
        ti = context["ti"]
        if ti.xcom_pull(task_ids=FIRST_PHASE, key=NOTHING_NEW_KEY):
            raise AirflowSkipException("There was nothing to drill.")
        connected, refused = _connected()
        with connections.applied(connected):
            # Not before: secrets of a connection must be hidden too.
            clean = redactor_for(os.environ)
            tell_airflow(clean)
            try:
                value = self._judge(ti, clean, refused)
            except CdrError as error:
                kind = AirflowException if error.retry_helps else AirflowFailException
                raise kind(clean(str(error))) from None
        self._report(value)
        if value["result"] != PASSED:
            raise AirflowFailException(f"Drill {value['drill']} {value['result']}: {value['error']}")
        return value

    def _judge(self, ti: Any, clean: Redactor, refused: CdrError | None) -> dict[str, Any]:
        drill = drills.record(self.request, ti.dag_id, ti.run_id)
        ti.xcom_push(key=DRILL_KEY, value=drill)
        command = [sys.executable, "-m", "cdr_core.drill", drill]
        failure = self._failure(ti)
        if not failure and refused is not None:
            failure = drills.surroundings(clean(str(refused)))
        if failure:
            command += ["--failure", failure]
        driver = self._driver = Driver.start(command, recoveries.driver_environment())
        try:
            outcome = driver.follow(lambda line: self.log.info("%s", line), clean)
        finally:
            driver.end(TERM_SECONDS)
        if outcome.exit_code != 0 or "result" not in outcome.result:
            raise AirflowException(f"Drill {drill} has no verdict yet: {outcome.sentence}")
        return outcome.result

    def _failure(self, ti: Any) -> str:
        """Return the failure that the last failed phase stored."""
        failures = [ti.xcom_pull(task_ids=phase, key=FAILURE_KEY) for phase in self.phases]
        return next((text for text in reversed(failures) if isinstance(text, str)), "")

    def _report(self, value: Mapping[str, Any]) -> None:
        plan = str(value["plan"] or "")
        metrics.drill_ended(value["result"], plan, value["rto_s"], value["rpo_s"])
        self.log.info("Drill %s of plan %s: %s.", value["drill"], plan, value["result"])
        if value["result"] == PASSED:
            return
        failed = [check for check in value["checks"] if check["result"] in ("FAILED", "NOT_RUN") and check["means"]]
        advice = f" {failed[0]['means']} {failed[0]['do']}" if failed else ""
        message = f"Restore drill {value['drill']} of plan {plan} {value['result']}: {value['error']}.{advice}"
        notify.drill_ended(
            value["result"], plan, message, drill=value["drill"], rto_s=value["rto_s"], rpo_s=value["rpo_s"]
        )

    def on_kill(self) -> None:
        """End the process with the task; the drill gets its verdict by the next try, or by the sweep."""
        if self._driver is not None:
            self._driver.end(TERM_SECONDS)


def _connected() -> tuple[dict[str, str], CdrError | None]:
    """Return the connections' environment, and their error if they have none: a drill gets its row and verdict without
    them, too.
    """
    try:
        current = settings.load()
        return connections.environment(current.spark_conn, current.aws_conn), None
    except CdrError as error:
        return {}, error
