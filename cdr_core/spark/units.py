"""Units of work as Spark tasks, watched by the driver: one task each, or several units a task if there are many.

The same code runs on a Connect session and on a classic one: it uses DataFrames and mapInArrow only. Only the numbers
of the units pass through Spark; the function reads and writes its own files on the executor.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cdr_core.errors import CdrError, JobFailed, Refused
from cdr_core.spark.worker import UnitFunction, UnitTask, decode

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

MOST_TASKS = 64
"""Beyond so many units a task does several, one after another: starting a task takes longer than a small unit."""

INTERRUPT_TIMEOUT = 8.0
"""Seconds the driver waits for its job to end after it asked for that."""

_GONE = re.compile(r"UNAVAILABLE|Connection refused|failed to connect|Socket closed|RETRIES_EXCEEDED|Connection reset")
_INTERRUPTED = re.compile(r"OPERATION_CANCELED|cancelled|canceled|SESSION_CLOSED|OPERATION_ABANDONED", re.IGNORECASE)
_CRASHED = re.compile(r"Python worker exited unexpectedly|Python worker failed to connect back|EOFException")


def run_units(
    session: SparkSession,
    function: UnitFunction,
    payload: str,
    units: Sequence[str],
    *,
    on_poll: Callable[[], None],
    poll_seconds: float = 0.3,
    after: Callable[[], None] | None = None,
) -> None:
    """Run ``function(payload, unit, task_attempt)`` for every unit; returns when all are done.

    ``on_poll`` is called in the caller's thread every ``poll_seconds`` while the job runs and once after it ended, also
    when it failed, so that finished units can be recorded. An error of it stops the job and is raised again. An
    error of cdr raised by the function is raised here as the same class; any other failure is a :class:`JobFailed`.
    ``after`` is called by each task when its units are done. Refused: a function that executors cannot import (a
    lambda, a nested function, one of a script).
    """
    last = "" if after is None else importable(after)
    task = UnitTask(importable(function), payload, tuple(units), uuid.uuid4().hex, last)
    if not units:
        on_poll()
        return
    job = _Job(session, task)
    job.start()
    try:
        while not job.ended.wait(poll_seconds):
            on_poll()
        on_poll()
    except BaseException:
        job.interrupt()
        raise
    job.result()


def importable(function: Callable[..., None]) -> str:
    """Return ``package.module:name``, by which an executor finds the function."""
    module, name = function.__module__, function.__qualname__
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        module = spec.name if spec is not None else module
    if module == "__main__" or "<" in name:
        raise Refused(f"executors cannot import {name} of {module}", hint="define it at the top level of a module")
    return f"{module}:{name}"


class _Job:
    """Runs the action in a thread of its own, under a tag by which it can be interrupted."""

    def __init__(self, session: SparkSession, task: UnitTask) -> None:
        self.ended = threading.Event()
        self._session = session
        self._context: SparkContext | None = getattr(session, "sparkContext", None)  # none on Connect
        self._task = task
        self._tag = f"cdr-{task.run}"
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="cdr-spark-job", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._mark()
            count = len(self._task.units)
            tasks = self._session.range(count, numPartitions=min(count, MOST_TASKS))
            tasks.mapInArrow(self._task, "id long").collect()
        except Exception as error:
            self._error = error
        finally:
            self.ended.set()

    def _mark(self) -> None:
        """Name the jobs of this thread. A classic session accepts tags as well, but its interruptTag finds nothing."""
        if self._context is None:
            self._session.addTag(self._tag)
        else:
            self._context.setJobGroup(self._tag, "cdr units", interruptOnCancel=True)

    def _cancel(self) -> None:
        if self._context is None:
            self._session.interruptTag(self._tag)
        else:
            self._context.cancelJobGroup(self._tag)

    def interrupt(self) -> None:
        """Interrupt repeatedly until the thread ends: the first call may come before the server knows the job."""
        deadline = time.monotonic() + INTERRUPT_TIMEOUT
        while not self.ended.is_set() and time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                self._cancel()
            self.ended.wait(0.3)

    def result(self) -> None:
        if self._error is not None:
            raise translate(self._error) from self._error


def translate(error: Exception) -> CdrError:
    """Return a failure of Spark as one error: the unit's own error if one is inside, else the first useful line."""
    text = str(error)
    inner = decode(text)
    if inner is not None:
        return inner
    if _GONE.search(text):
        return JobFailed("the Spark server is gone", hint="run the phase again, a new server is started")
    if _CRASHED.search(text):
        return JobFailed("a Python worker died (killed, or out of memory)", hint="Spark's log names it")
    if _INTERRUPTED.search(text):
        return JobFailed("the Spark job was interrupted", hint="another attempt or a user stopped it")
    return JobFailed(f"the Spark job failed: {_first_useful_line(text)}", hint="Spark's log has the rest")


def _first_useful_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"^[\w.]*(Error|Exception)\b", line)]
    return next(iter(raised or lines), type(text).__name__)[:300]
