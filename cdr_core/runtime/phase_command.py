"""A phase as a process: ``python -m cdr_core.phases NAME``, or ``spark-submit cdr_core/phases/NAME.py``.

Progress goes to stderr, a line per step; the last line of stdout is the phase's result, or the error as an object of
``error`` and ``kind``; the exit code is the error's.
"""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from collections.abc import Mapping
from typing import Any, NoReturn

from cdr_core import settings as settings_module
from cdr_core.errors import CdrError
from cdr_core.log import configure
from cdr_core.metadata import Phase, Repository, Runner
from cdr_core.runtime.driver import Progress, as_line, run_phase, stored_result
from cdr_core.runtime.executor_backend import SparkWorkers
from cdr_core.runtime.pin_file import begin
from cdr_core.runtime.quarantine import require_whole
from cdr_core.storage.local import host_id


def main(name: str, arguments: list[str] | None = None) -> None:
    """Run one phase and end the process with its exit code."""
    parser = argparse.ArgumentParser(prog=f"cdr phase {name}")
    parser.add_argument("--recovery", required=True, help="id of the recovery")
    parser.add_argument("--epoch", type=int, help="the epoch taken for this attempt; taken now when left out")
    options = parser.parse_args(arguments)
    try:
        result = _run(Phase(name), options.recovery, options.epoch)
    except CdrError as error:
        answer = {"error": str(error), "kind": type(error).__name__, "remedy": list(error.remedy)}
        print(as_line(answer), flush=True)
        _exit(error)
    print(as_line(result), flush=True)
    try:
        require_whole(options.recovery, result.get("verdict", ""))
    except CdrError as error:
        _exit(error)


def _exit(error: CdrError) -> NoReturn:
    print(f"cdr: {error}", file=sys.stderr, flush=True)
    sys.exit(error.exit_code)


def _run(phase: Phase, recovery: str, epoch: int | None) -> Mapping[str, Any]:
    settings = settings_module.load()
    configure(settings.log_level, settings.log_format)
    with Repository.open(settings.database_url) as repository:
        if epoch is None:
            attempt = begin(repository, recovery, phase, own_runner(str(phase)))
            if attempt is None:
                return stored_result(repository, recovery, phase)
            epoch = attempt.epoch
        with SparkWorkers(settings) as workers:
            return run_phase(repository, recovery, phase, epoch, settings, workers, print_progress)


def own_runner(task: str) -> Runner:
    """An attempt started by hand: a run of its own."""
    return Runner(run=f"shell-{uuid.uuid4().hex[:12]}", task=task, try_number=1, host=host_id(), pid=os.getpid())


def print_progress(progress: Progress) -> None:
    """A line per step, for logs."""
    line = f"{progress.phase}: {progress.units_done}/{progress.units_total} units, {progress.records:,} records"
    print(line, file=sys.stderr, flush=True)
