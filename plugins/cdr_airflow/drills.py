"""Calls of the drill's tasks into cdr_core. As in ``recoveries``, every heavy import is inside a function."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cdr_airflow import recoveries
from cdr_core import errors, settings
from cdr_core.drill.drill_id import drill_id_of
from cdr_core.drill.plan import DrillPlan
from cdr_core.drill.plans import load_plans
from cdr_core.errors import CdrError

if TYPE_CHECKING:
    from cdr_core.drill.start import DrillRequest

Request = Mapping[str, str]


def drill_id(dag: str, run: str) -> str:
    """Return the drill of a DAG run: one, however often its tasks are tried or cleared."""
    return drill_id_of(f"{dag}/{run}")


def plan_of(request: Request) -> DrillPlan:
    """Return the plan of a run: by its name, overridden by the form; or by the form alone."""
    from cdr_core.drill.plan_overrides import WISHES, with_wishes

    name = request.get("plan", "")
    base = load_plans(settings.load().drills).get(name) if name else None
    given = {wish: request.get(wish, "") for wish in WISHES}
    plan = with_wishes(base, given)
    if not given["spec"]:
        return plan
    # A form may not name any module of this host; the plans' file may, because its owner is trusted.
    return replace(plan, spec=recoveries.checked_spec({"spec": plan.spec})["spec"])


def begin(request: Request, dag: str, run: str) -> str | None:
    """Return the recovery of the run's drill, begun now or by an earlier try; ``None`` if there is no new
    checkpoint.
    """
    from cdr_core.drill.start import begin as begin_drill
    from cdr_core.metadata import Repository

    current, plan = settings.load(), plan_of(request)
    with Repository.open(current.database_url) as repository:
        drill = begin_drill(repository, current, plan, _asked(dag, run, plan, request))
    return None if drill is None else drill.recovery_id


def has_nothing_new(request: Request, dag: str, run: str) -> bool:
    """Return whether a drill that waits for a new checkpoint has none; a drill that was begun has its own."""
    from cdr_core.drill.start import has_newer
    from cdr_core.metadata import Repository

    current, plan = settings.load(), plan_of(request)
    if plan.schedule.poll_s is None or not request.get("only_newer"):
        return False
    with Repository.open(current.database_url) as repository:
        return repository.find_drill(drill_id(dag, run)) is None and not has_newer(repository, plan)


def refuse_if_given_up(dag: str, run: str) -> None:
    """Refuse to start a phase of a drill whose time is over."""
    from datetime import UTC, datetime

    from cdr_core.drill.time_limit import refuse_if_given_up as refuse
    from cdr_core.metadata import Repository

    with Repository.open(settings.load().database_url) as repository:
        drill = repository.find_drill(drill_id(dag, run))
    if drill is not None:
        refuse(drill, datetime.now(UTC))


def time_left(dag: str, run: str) -> float | None:
    """Return the seconds until the drill is given up, in whatever phase; ``None`` = its plan has no limit."""
    from datetime import UTC, datetime

    from cdr_core.drill.time_limit import time_left as left
    from cdr_core.metadata import Repository

    with Repository.open(settings.load().database_url) as repository:
        drill = repository.find_drill(drill_id(dag, run))
    return None if drill is None else left(drill, datetime.now(UTC))


def failure(error: CdrError, ended_as: str, dag: str, run: str, clean: Callable[[str], str] = str) -> str:
    """Return the failure for the verdict's process: the cause that the error names; ``ended_as`` is the class that a
    driver named, which is more precise than its exit status.
    """
    from cdr_core.drill.start import was_begun
    from cdr_core.drill.verdict import Failure, FailureKind, blame
    from cdr_core.metadata import Repository

    named = getattr(errors, ended_as, None)
    kind = named if isinstance(named, type) and issubclass(named, CdrError) else type(error)
    blamed = blame(kind)
    if blamed is not FailureKind.SURROUNDINGS:
        # Only here: an unreachable database is passed to the verdict without a query.
        with Repository.open(settings.load().database_url) as repository:
            blamed = blamed if was_begun(repository, drill_id(dag, run)) else FailureKind.SURROUNDINGS
    return json.dumps(Failure(blamed, clean(str(error))).to_json())


def surroundings(sentence: str) -> str:
    """Return a failure of the environment for the verdict's process; it blames no checkpoint."""
    from cdr_core.drill.verdict import Failure, FailureKind

    return json.dumps(Failure(FailureKind.SURROUNDINGS, sentence).to_json())


def record(request: Request, dag: str, run: str) -> str:
    """Return the drill's id, with a row in the history also where nothing could be begun.

    Raise the refusal of a request that describes no drill, without a row: the history is about checkpoints and plans.
    """
    from cdr_core.drill.start import record_unbegun
    from cdr_core.metadata import Repository

    current = settings.load()
    with Repository.open(current.database_url) as repository:
        begun = repository.find_drill(drill_id(dag, run))
        if begun is not None:
            return begun.id  # its plan may have been changed or removed since
        try:
            plan = plan_of(request)
        except CdrError:
            name = request.get("plan", "")
            if not name or not {name, ""} & dict(load_plans(current.drills).refusals).keys():
                raise
            # The request is sound, but drills.yaml's plan of this name is not: the plan's history shows that.
            plan = DrillPlan(name=name, job=name, spec="", checkpoints=f"(plan {name})")
        return record_unbegun(repository, current, plan, _asked(dag, run, plan, request)).id


def share_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that bound the cores of a driver with this environment."""
    from cdr_core.drill import resource_limits

    return resource_limits.environment(settings.load({**os.environ, **environment}))


def _asked(dag: str, run: str, plan: DrillPlan, request: Request) -> DrillRequest:
    from cdr_core.drill.start import DrillRequest

    only_newer = plan.schedule.poll_s is not None and bool(request.get("only_newer"))
    return DrillRequest(drill_id(dag, run), run=f"{dag}/{run}", only_newer=only_newer)
