"""The phase operator: one task = one attempt of one phase = one driver process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from cdr_airflow import recoveries
from cdr_airflow.driver import Driver
from cdr_core.errors import USAGE_EXIT_CODE, CdrError, PhaseRefused, Refused, from_exit_code

if TYPE_CHECKING:
    from airflow.sdk import Context

FIRST_PHASE = "read"
RECOVERY_KEY = "recovery"
"""XCom under which the first task hands the recovery's id to the others."""

TERM_SECONDS = 2.0
"""What a driver gets to stop by itself."""

KILL_SECONDS = 4.0
"""All that ``on_kill`` may take: Airflow kills the task five seconds after asking it to stop."""


class PhaseOperator(BaseOperator):
    """Runs one phase of a recovery, as often as Airflow likes, with the effect of running it once.

    How it works: the first task finds or creates the recovery that ``request`` names and hands its id to the others by
    XCom. Each task takes the recovery's next epoch *before* its driver exists, so that whatever an older try left
    running can no longer write. The driver does the work; its lines become the task's log and its exit code decides
    between "retry" and "fail now". A phase that is done takes no epoch and returns its stored result, so clearing a
    task resumes or does nothing.

    What it does not do: it knows nothing of checkpoints, Spark or sinks, and it believes the metadata database rather
    than Airflow: a task marked successful by hand does not make its successor run.

    When the task is stopped, the Spark session is interrupted and the driver's process group ended. When the task
    itself is killed, the kernel kills the driver; its Spark job is interrupted by the next try, or ends with the idle
    server.

    :param phase: ``read``, ``filter``, ``spill``, ``drain`` or ``commit``; also the driver's argument.
    :param request: for the first phase only: checkpoint, spec, parallelism, to, checkpoint_interval, on_corrupt.
    """

    template_fields: Sequence[str] = ("request",)
    template_fields_renderers = {"request": "json"}  # noqa: RUF012 # Airflow reads it as a plain class attribute
    ui_color = "#e8f4f2"

    driver_module = "cdr_core.phases"
    """The module whose main is the driver; tests put their own here."""

    def __init__(self, *, phase: str, request: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.phase = phase
        self.request = dict(request) if request is not None else None
        self._recovery: str | None = None
        self._driver: Driver | None = None
        self._killed = False

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the phase and return its result; every refusal is one sentence."""
        try:
            return self._run(context)
        except CdrError as error:
            _give_up(error)

    def _run(self, context: Context) -> dict[str, Any]:
        recovery = self._recovery = self._find_recovery(context)
        ti = context["ti"]
        begun = recoveries.begin(recovery, self.phase, recoveries.TaskTry(ti.run_id, ti.task_id, ti.try_number))
        if isinstance(begun, recoveries.AlreadyDone):
            self.log.info("Phase %s of recovery %s is done already; nothing to do.", self.phase, recovery)
            return begun.result
        self.log.info("Phase %s of recovery %s starts with epoch %d.", self.phase, recovery, begun.epoch)
        return self._drive(recovery, begun.epoch)

    def _find_recovery(self, context: Context) -> str:
        ti = context["ti"]
        if self.request is not None:
            recovery = recoveries.create(self.request)
            ti.xcom_push(key=RECOVERY_KEY, value=recovery)
            return recovery
        pulled = ti.xcom_pull(task_ids=FIRST_PHASE, key=RECOVERY_KEY)
        if not isinstance(pulled, str):
            raise PhaseRefused(
                f"task {FIRST_PHASE} of this run has not named a recovery, so {self.phase} has nothing to work on",
                hint=f"clear {FIRST_PHASE} and let it run",
            )
        return pulled

    def _drive(self, recovery: str, epoch: int) -> dict[str, Any]:
        command = [sys.executable, "-m", self.driver_module, self.phase, "--recovery", recovery, "--epoch", str(epoch)]
        self._refuse_if_killed()
        driver = self._driver = Driver.start(command, recoveries.driver_environment())
        try:
            self._refuse_if_killed()
            outcome = driver.follow(lambda line: self.log.info("%s", line))
        finally:
            # Also when Airflow's timeout or Ctrl-C broke in: whatever is left of the group goes with the task.
            driver.end(TERM_SECONDS)
        self._refuse_if_killed()
        if outcome.exit_code == USAGE_EXIT_CODE:
            raise Refused(outcome.sentence)
        if outcome.exit_code != 0:
            raise from_exit_code(outcome.exit_code, outcome.sentence)
        return outcome.result

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
        if self._recovery is None or self._driver is None:
            return None
        try:
            return recoveries.start_interrupt(self._recovery)
        except Exception:
            # Whatever is wrong there, the driver must still be ended; the next try interrupts the session again.
            self.log.exception("The Spark session could not be interrupted.")
            return None


def _give_up(error: CdrError) -> NoReturn:
    """Say it in Airflow's words: to be retried, or failed for good."""
    if error.retry_helps:
        raise AirflowException(str(error)) from error
    raise AirflowFailException(str(error)) from error
