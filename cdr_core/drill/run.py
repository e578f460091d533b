"""A whole drill in this process: the five phases, then the verdict. Whatever happens, it ends with a result."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cdr_core.drill import resource_limits
from cdr_core.drill.finish import end
from cdr_core.drill.start import DrillRequest, begin, record_unbegun, was_begun
from cdr_core.drill.time_limit import refuse_if_given_up
from cdr_core.drill.verdict import Failure, FailureKind, failure_of
from cdr_core.errors import CdrError
from cdr_core.metadata import Drill, DrillProcess, Phase, Repository
from cdr_core.metadata.drills import new_drill_id
from cdr_core.runtime.driver import Progress, Report, run_phase
from cdr_core.runtime.phase_command import own_runner
from cdr_core.settings import Settings
from cdr_core.spark.processes import start_time

if TYPE_CHECKING:
    from cdr_core.drill.plan import DrillPlan
    from cdr_core.runtime.executor_backend import Workers


def by_this_process(seed: int | None = None) -> DrillRequest:
    """A drill that this process runs, and that is dead when it is."""
    pid = os.getpid()
    return DrillRequest(new_drill_id(), run="shell", seed=seed, process=DrillProcess(pid, start_time(pid)))


def run_drill(
    repository: Repository, settings: Settings, plan: DrillPlan, asked: DrillRequest, workers: Workers, report: Report
) -> Drill:
    """The drill with its result. Ctrl-C ends it as one that could not run, and is raised afterwards."""
    failure: Failure | None = None
    try:
        _rehearse(repository, settings, plan, asked, workers, report)
    except CdrError as error:
        failure = beginning_failure(repository, settings, plan, asked, error)
    except BaseException as error:
        sentence = f"The drill was interrupted: {type(error).__name__}."
        _finish(repository, settings, plan, asked, Failure(FailureKind.SURROUNDINGS, sentence))
        raise
    return _finish(repository, settings, plan, asked, failure)


def beginning_failure(
    repository: Repository, settings: Settings, plan: DrillPlan, asked: DrillRequest, error: CdrError
) -> Failure:
    """Whom an error blames: before a checkpoint was chosen, it can blame none."""
    if was_begun(repository, asked.id):
        return failure_of(error)
    record_unbegun(repository, settings, plan, asked)
    return Failure(FailureKind.SURROUNDINGS, str(error))


def _rehearse(
    repository: Repository, settings: Settings, plan: DrillPlan, asked: DrillRequest, workers: Workers, report: Report
) -> None:
    drill = begin(repository, settings, plan, asked)
    assert drill is not None, "a drill by hand takes any checkpoint"
    assert drill.recovery_id is not None, "it was begun"

    def watched(progress: Progress) -> None:
        # A driver reports every few seconds also when nothing moves, so this ends a drill that hangs, too.
        refuse_if_given_up(drill, datetime.now(UTC))
        report(progress)

    for phase in Phase:
        refuse_if_given_up(drill, datetime.now(UTC))
        attempt = repository.begin_attempt(drill.recovery_id, phase, own_runner(str(phase)))
        if attempt is not None:
            run_phase(
                repository, drill.recovery_id, phase, attempt.epoch, resource_limits.bounded(settings), workers, watched
            )


def _finish(
    repository: Repository, settings: Settings, plan: DrillPlan, asked: DrillRequest, failure: Failure | None
) -> Drill:
    record_unbegun(repository, settings, plan, asked)  # nothing where it was begun
    return end(repository, settings, asked.id, failure)
