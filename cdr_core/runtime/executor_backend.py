"""Who does a phase's units: Spark, by the recovery's embedded server, by a master, or by ``spark-submit``.

Static settings of a server are fixed when it starts, so everything an attempt decides travels with the work instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cdr_core.extras import require_extra
from cdr_core.runtime.unit_runner import end_task, run_unit
from cdr_core.settings import Settings
from cdr_core.spark.interrupt import interrupt
from cdr_core.spark.server import ServerSpec, find_server, start_server, stop_server, wait_ready
from cdr_core.spark.session import open_session, preload
from cdr_core.spark.units import run_units

if TYPE_CHECKING:
    from cdr_core.runtime.driver import PhaseRun

CONNECT = "connect"
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by ``spark-submit`` for the Python process it starts; the session then is the one it was submitted with."""


class Workers(Protocol):
    """Runs the units of a driver. Tests of single steps run them in their own process."""

    def start(self, run: PhaseRun) -> None:
        """Stop what an earlier attempt left running, and get ready while the driver still plans."""

    def run(self, run: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        """Do every unit; ``on_poll`` is called while that goes on, and what it raises stops the work."""

    def end(self, run: PhaseRun) -> None:
        """Stop the recovery's Spark server and session."""


class SparkWorkers:
    """See :class:`Workers`. At most one session per process, opened for the first unit and shared by its phases."""

    def __init__(self, settings: Settings) -> None:
        require_extra("spark", "a recovery")
        self._settings = settings
        self._stack = ExitStack()
        self._session: Any = None
        self._started = False

    def __enter__(self) -> SparkWorkers:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    def start(self, run: PhaseRun) -> None:
        if not self._embedded or self._started:
            return
        self._started = True
        running = find_server(self._directory(run))
        if running is not None and running.is_current:  # start_server ends one of other code
            interrupt(running)
        start_server(self._spec(run))
        preload()

    def run(self, run: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        if self._session is None:
            self._session = self._stack.enter_context(self._open(run))
        run_units(self._session, run_unit, payload, units, on_poll=on_poll, after=end_task)

    def end(self, run: PhaseRun) -> None:
        if not self._embedded:
            return
        self._stack.close()
        self._session, self._started = None, False
        running = find_server(self._directory(run))
        if running is not None:
            stop_server(running)

    @property
    def _embedded(self) -> bool:
        return self._settings.spark == CONNECT and SUBMITTED not in os.environ

    def _directory(self, run: PhaseRun) -> Path:
        return self._settings.home / "spark" / run.recovery.id

    def _spec(self, run: PhaseRun) -> ServerSpec:
        return ServerSpec(
            directory=self._directory(run),
            home=self._settings.home,
            cores=self._settings.spark_cores,
            idle_seconds=self._settings.spark_idle,
            preload=("cdr_core.recovery.kernel_warmup",),
        )

    @contextmanager
    def _open(self, run: PhaseRun) -> Iterator[Any]:
        if SUBMITTED in os.environ:
            from pyspark.sql import SparkSession

            yield SparkSession.builder.appName("cdr").getOrCreate()
        elif self._embedded:
            handle = wait_ready(self._spec(run))
            with run.fenced() as transaction:
                transaction.set_server(json.loads(handle.to_json()))
            with open_session(CONNECT, home=self._settings.home, handle=handle) as session:
                yield session
        else:
            conf = share_of_cluster(self._settings)
            with open_session(self._settings.spark, home=self._settings.home, conf=conf) as session:
                with run.fenced() as transaction:
                    transaction.set_server(driver_ui(session, run.epoch))
                yield session


def driver_ui(session: Any, epoch: int) -> dict[str, Any] | None:
    """Where a driver shows what it does, and which: the next attempt's driver is another one with another address."""
    ui = getattr(session.sparkContext, "uiWebUrl", None)
    return {"ui": str(ui), "epoch": epoch} if ui else None


def share_of_cluster(settings: Settings) -> dict[str, str]:
    """How much of a standalone cluster a recovery may take at once; all of it where nothing is said."""
    if not settings.spark.startswith("spark://") or not settings.spark_cores:
        return {}
    return {"spark.cores.max": str(settings.spark_cores)}
