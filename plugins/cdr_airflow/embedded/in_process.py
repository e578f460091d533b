"""One run of ``cdr_recover`` by Airflow in this very process, without its services.

``python -m cdr_airflow.embedded.in_process`` loads Airflow, which takes seconds, and then takes the run's conf from
standard input: its starter can get the rest ready meanwhile. It is a run with its five task instances in Airflow's
database, executed in order with Airflow's own dependency rules, retries and XComs. What the tasks log goes to the
files where the UI looks for it; each event is one JSON line on standard output. Must not run beside a live scheduler,
which would take the same tasks.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from cdr_airflow.demo_checkpoint import REPOSITORY

if TYPE_CHECKING:
    from airflow.sdk import DAG

DAG_FILE = REPOSITORY / "dags" / "cdr_recover.py"


class Events:
    """Writes JSON lines to the process that started this one."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def tell(self, **event: Any) -> None:
        self._stream.write(json.dumps(event).encode() + b"\n")
        self._stream.flush()


class TaskLog(io.RawIOBase):
    """Airflow's log output: written to the running task's own file, and each message passed on as an event."""

    def __init__(self, folder: Path, events: Events) -> None:
        self._folder = folder
        self._events = events
        self._task: str | None = None
        self._file: BinaryIO | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write one structured message, as Airflow's own workers do."""
        message = bytes(data)
        if self._file is not None:
            self._file.write(message)
            self._tell(message)
        else:
            sys.stderr.buffer.write(message)
        return len(message)

    def _tell(self, message: bytes) -> None:
        try:
            record = json.loads(message)
        except ValueError:
            return
        if "cdr_airflow" in str(record.get("logger")):
            self._events.tell(task=self._task, line=str(record.get("event", "")))

    def begin(self, task: Any) -> None:
        relative = f"dag_id={task.dag_id}/run_id={task.run_id}/task_id={task.task_id}/attempt={task.try_number}.log"
        path = self._folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        self._task = task.task_id
        self._file = path.open("ab", buffering=0)

    def end(self) -> None:
        if self._file is not None:
            self._file.close()
        self._task, self._file = None, None


def main() -> int:
    """Run it; return 0 if the run succeeded, 1 if it did not or no conf came in."""
    events = Events(os.fdopen(os.dup(1), "wb"))
    # Airflow prints much by itself; this process's standard output is for the events alone.
    os.dup2(2, 1)
    dag = _load(events)
    conf = sys.stdin.readline()
    if not conf:
        return 1
    run = dag.test(run_conf=json.loads(conf))
    state = str(getattr(run.state, "value", run.state))
    events.tell(run=run.run_id, state=state)
    return 0 if state == "success" else 1


def _load(events: Events) -> DAG:
    from airflow.configuration import conf
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk.listener import get_listener_manager
    from airflow.sdk.log import configure_logging

    log = TaskLog(Path(conf.get("logging", "base_log_folder")), events)
    configure_logging(json_output=True, output=log)
    get_listener_manager().add_listener(_listener(log, events))  # type: ignore[no-untyped-call]
    bag = DagBag(DAG_FILE)
    if bag.import_errors:
        raise RuntimeError(next(iter(bag.import_errors.values())))
    dag = bag.dags["cdr_recover"]
    # No process watches deadlines here, and Airflow 3.3 fails a test run that has one after its last task.
    dag.deadline = None
    return dag


def _listener(log: TaskLog, events: Events) -> object:
    from airflow.listeners import hookimpl

    class Listener:
        """Called by Airflow's task runner."""

        @hookimpl
        def on_task_instance_running(self, task_instance: Any) -> None:
            log.begin(task_instance)
            events.tell(task=task_instance.task_id, state="running")

        @hookimpl
        def on_task_instance_success(self, task_instance: Any) -> None:
            log.end()
            events.tell(task=task_instance.task_id, state="success")

        @hookimpl
        def on_task_instance_failed(self, task_instance: Any, error: Any) -> None:
            log.end()
            state = str(getattr(task_instance.state, "value", task_instance.state))
            events.tell(task=task_instance.task_id, state=state, line=str(error))

    return Listener()


if __name__ == "__main__":
    sys.exit(main())
