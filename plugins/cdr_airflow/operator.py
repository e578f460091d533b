"""The phase operator: one task = one attempt of one phase = one driver process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from cdr_airflow import assets, connections, links, metrics, recoveries
from cdr_airflow.driver import Driver
from cdr_airflow.redact import Redactor, redactor_for, tell_airflow
from cdr_core import settings
from cdr_core.errors import USAGE_EXIT_CODE, CdrError, PhaseRefused, Refused, from_exit_code

if TYPE_CHECKING:
    from airflow.sdk import Context

FIRST_PHASE = "read"
RECOVERY_KEY = "recovery"
"""XCom under which the first task hands the recovery's id to the others."""

TERM_SECONDS = 2.0
"""Seconds that a driver gets to stop by itself."""

KILL_SECONDS = 4.0
"""Most seconds of ``on_kill``: Airflow kills the task five seconds after asking it to stop."""

KILLED, STOPPED = "Killed", "Stopped"
"""Metric labels of a driver that a signal ended, and of a task that was stopped or failed."""

UI_LOOKS = 10
"""Number of look-ups of the Spark UI: it has none before the session is open, and none at all if it is off."""


class PhaseOperator(BaseOperator):
    """Runs one phase of a recovery, as often as Airflow likes, with the effect of running it once.

    How it works: the first task finds or creates the recovery that ``request`` names and hands its id to the others by
    XCom. Each task takes the recovery's next epoch *before* its driver exists, so that processes of an older try
    can no longer write. The driver does the work; its lines become the task's log and its exit code decides
    between "retry" and "fail now". A phase that is done takes no epoch and returns its stored result, so clearing a
    task resumes or does nothing.

    What it does not do: it knows nothing of checkpoints, Spark or sinks, and it relies on the metadata database, not
    on Airflow: a task marked successful by hand does not make its successor run.

    When the task is stopped, the Spark session is interrupted and the driver's process group ended. When the task
    itself is killed, the kernel kills the driver; its Spark job is interrupted by the next try, or ends with the idle
    server.

    :param phase: ``read``, ``filter``, ``spill``, ``drain`` or ``commit``; also the driver's argument.
    :param request: for the first phase only: checkpoint, spec, parallelism, to, checkpoint_interval, on_corrupt.
    :param spark_conn: a ``spark`` connection that names the master; ``CDR_SPARK_CONN`` when left out.
    :param aws_conn: an ``aws`` connection for S3; ``CDR_AWS_CONN`` when left out.
    """

    template_fields: Sequence[str] = ("request",)
    template_fields_renderers = {"request": "json"}  # noqa: RUF012 # Airflow reads it as a plain class attribute
    operator_extra_links = links.LINKS
    ui_color = "#e8f4f2"

    driver_module = "cdr_core.phases"
    """The module whose main is the driver; tests replace it."""

    def __init__(
        self,
        *,
        phase: str,
        request: Mapping[str, str] | None = None,
        spark_conn: str | None = None,
        aws_conn: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.phase = phase
        self.request = dict(request) if request is not None else None
        self.spark_conn, self.aws_conn = spark_conn, aws_conn
        self.recovery = self.spark_ui = ""
        self._driver: Driver | None = None
        self._killed = False
        self._looks = 0
        self._outcome = metrics.DONE

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the phase and return its result; every refusal is one sentence without a secret in it."""
        begun, result = time.monotonic(), None
        clean = Redactor()
        try:
            with connections.applied(self._connected()):
                clean = redactor_for(os.environ)
                tell_airflow(clean)
                result = self._run(context, clean)
        except CdrError as error:
            if self._outcome == metrics.DONE:
                self._outcome = type(error).__name__
            _give_up(error, clean)
        except BaseException:
            self._outcome = STOPPED
            raise
        finally:
            seconds = time.monotonic() - begun
            metrics.phase_ended(self.phase, self._outcome, seconds, dag=self.dag_id, result=result)
        return result

    def _connected(self) -> dict[str, str]:
        current = settings.load()
        spark = current.spark_conn if self.spark_conn is None else self.spark_conn
        return connections.environment(spark, current.aws_conn if self.aws_conn is None else self.aws_conn)

    def _run(self, context: Context, clean: Redactor) -> dict[str, Any]:
        recovery = self.recovery = self._find_recovery(context)
        ti = context["ti"]
        self._publish_links(ti)
        begun = recoveries.begin(recovery, self.phase, recoveries.TaskTry(ti.run_id, ti.task_id, ti.try_number))
        if isinstance(begun, recoveries.AlreadyDone):
            self.log.info("Phase %s of recovery %s is done already; nothing to do.", self.phase, recovery)
            self._outcome, result = metrics.STORED, begun.result
        else:
            self.log.info("Phase %s of recovery %s starts with epoch %d.", self.phase, recovery, begun.epoch)
            result = self._drive(recovery, begun.epoch, ti, clean)
        if assets.RECOVERED in self.outlets:
            self._announce(context, recovery)
        return result

    def _publish_links(self, ti: Any) -> None:
        try:
            links.publish(self, ti)
        except Exception:
            self.log.warning("The task goes on without its links.", exc_info=True)

    def _find_recovery(self, context: Context) -> str:
        ti = context["ti"]
        if self.request is not None:
            request = recoveries.checked_spec(self.request)
            plan, refused = recoveries.what_if(request)
            for line in plan:
                self.log.info("%s", line)
            if refused is not None:
                raise refused
            recovery = recoveries.create(request)
            ti.xcom_push(key=RECOVERY_KEY, value=recovery)
            return recovery
        pulled = ti.xcom_pull(task_ids=FIRST_PHASE, key=RECOVERY_KEY)
        if not isinstance(pulled, str):
            raise PhaseRefused(
                f"task {FIRST_PHASE} of this run has not named a recovery, so {self.phase} has nothing to work on",
                hint=f"clear {FIRST_PHASE} and let it run",
            )
        return pulled

    def _drive(self, recovery: str, epoch: int, ti: Any, clean: Redactor) -> dict[str, Any]:
        command = [sys.executable, "-m", self.driver_module, self.phase, "--recovery", recovery, "--epoch", str(epoch)]
        log = self.log.bind(recovery=recovery, phase=self.phase, epoch=epoch)

        last_line = ""

        def on_line(line: str) -> None:
            nonlocal last_line
            if line == last_line:
                return  # a waiting driver prints its progress every two seconds
            last_line = line
            log.info("%s", line)
            self._link_spark(line, epoch, ti)

        self._refuse_if_killed()
        driver = self._driver = Driver.start(command, recoveries.driver_environment())
        try:
            self._refuse_if_killed()
            outcome = driver.follow(on_line, clean, seconds=self._time_left())
        finally:
            # Also when Airflow's timeout or Ctrl-C interrupts: the rest of the group ends with the task.
            driver.end(TERM_SECONDS)
        self._refuse_if_killed()
        if outcome.exit_code == 0:
            return outcome.result
        self._refuse_if_late()
        self._outcome = outcome.kind or (KILLED if outcome.exit_code < 0 else metrics.DONE)
        if outcome.exit_code == USAGE_EXIT_CODE:
            raise Refused(outcome.sentence)
        raise from_exit_code(outcome.exit_code, outcome.sentence + recoveries.form_remedy(outcome.remedy))

    def _time_left(self) -> float | None:
        """Return the seconds that the driver may work; a recovery has no limit, drills do."""
        return None

    def _refuse_if_late(self) -> None:
        """Raise if the driver failed because its time was over; a recovery has no limit."""

    def _link_spark(self, line: str, epoch: int, ti: Any) -> None:
        """Store the link to the Spark UI; its address is known with the first line of progress."""
        if self.spark_ui or self._looks == UI_LOOKS or not line.startswith(f"{self.phase}: "):
            return
        self._looks += 1
        try:
            self.spark_ui = recoveries.spark_ui(self.recovery, epoch)
            links.publish(self, ti)
        except Exception:
            self.log.warning("The task goes on without a link to the Spark UI.", exc_info=True)

    def _announce(self, context: Context, recovery: str) -> None:
        published = recoveries.publication(recovery)
        if published is None:
            return
        if assets.announce(context, published):
            self.log.info("Asset %s has new data of recovery %s.", published.target, recovery)
        else:
            self.log.info("The publication of recovery %s was announced before.", recovery)

    def _refuse_if_killed(self) -> None:
        if self._killed:
            raise AirflowException(f"Phase {self.phase} was stopped from outside; it resumes where it was.")

    def on_kill(self) -> None:
        """Stop the Spark jobs and the driver with everything it started, in less than five seconds."""
        deadline = time.monotonic() + KILL_SECONDS
        self._killed = True
        interrupt = self._start_interrupt()
        if self._driver is not None:
            self._driver.end(TERM_SECONDS)
        if interrupt is not None:
            try:
                interrupt.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.log.info("The Spark session is still being interrupted; that goes on without this task.")

    def _start_interrupt(self) -> subprocess.Popen[bytes] | None:
        if not self.recovery or self._driver is None:
            return None
        try:
            return recoveries.start_interrupt(self.recovery)
        except Exception:
            # Any error: the driver must still be ended; the next try interrupts the session again.
            self.log.exception("The Spark session could not be interrupted.")
            return None


def _give_up(error: CdrError, clean: Redactor) -> NoReturn:
    """Raise Airflow's exception: retry, or fail for good. Not ``from`` the error, whose text may contain secrets."""
    sentence = clean(str(error)) + recoveries.form_remedy(error.remedy)
    if error.retry_helps:
        raise AirflowException(sentence) from None
    raise AirflowFailException(sentence) from None
