"""Beginning a drill: choose a checkpoint, write down what was chosen, make the recovery that rehearses it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from cdr_core.drill import resource_limits
from cdr_core.drill.checkpoint_search import candidates
from cdr_core.drill.choice import Candidate, choose, is_newer
from cdr_core.drill.plan import Choice, DrillPlan
from cdr_core.drill.scratch import place_of, target_of
from cdr_core.errors import Refused
from cdr_core.metadata import Drill, DrillArgs, DrillProcess, Repository
from cdr_core.planning.job_spec import parse_spec, read_spec
from cdr_core.recovery.recovery_request import RecoveryRequest, create_in
from cdr_core.settings import Settings
from cdr_core.storage.local import host_id

LOOKED_BACK = 200
"""Drills of a plan among which a checkpoint counts as seen."""


@dataclass(frozen=True, slots=True)
class DrillRequest:
    """How a drill is begun. ``id`` is the same for every try of one run; ``run`` and ``process`` say who runs it, for
    people and for the sweep; with ``only_newer`` a checkpoint that was drilled before is nothing to do.
    """

    id: str
    run: str = ""
    seed: int | None = None
    process: DrillProcess | None = None
    only_newer: bool = False


def begin(repository: Repository, settings: Settings, plan: DrillPlan, asked: DrillRequest) -> Drill | None:
    """The drill with its recovery, begun now or by an earlier try; ``None`` = there is no newer checkpoint.

    Refused when it has its result already: a new drill is a new run.
    """
    drill = repository.find_drill(asked.id)
    if drill is None:
        spec = read_spec(plan.spec)
        seed = asked.seed if asked.seed is not None else secrets.randbits(32)
        chosen = choose(candidates(plan.checkpoints), plan.choice, datetime.now(UTC), seed, plan.checkpoints)
        if asked.only_newer and not is_newer(chosen, _drilled(repository, plan.name)):
            return None
        drill = repository.begin_drill(
            chosen.directory, _args(plan, settings, asked, spec=spec, seed=seed, chosen=chosen), asked.id
        )
    if drill.result is not None:
        raise Refused(
            f"drill {drill.id} ended {drill.result} and a result does not change",
            hint="start a new run for a new drill",
        )
    if drill.recovery_id is None:
        request = RecoveryRequest(
            drill.checkpoint,
            drill.args.spec,
            drill.args.parallelism,
            drill.args.target,
            trust_key=True,  # a rehearsal reports what is unproven instead of refusing it
        )
        recovery, _ = create_in(repository, request, resource_limits.bounded(settings))
        repository.set_drill_recovery(drill.id, recovery.id)
    return repository.drill(drill.id)


def record_unbegun(repository: Repository, settings: Settings, plan: DrillPlan, asked: DrillRequest) -> Drill:
    """The row of a drill that found nothing to begin with, so that its history has it; an existing one stays."""
    return repository.begin_drill(plan.checkpoints, _args(plan, settings, asked), asked.id)


def was_begun(repository: Repository, drill_id: str) -> bool:
    """Whether a checkpoint was chosen: what goes wrong before says nothing about any."""
    drill = repository.find_drill(drill_id)
    return drill is not None and drill.args.modified is not None


def has_newer(repository: Repository, plan: DrillPlan) -> bool:
    """Whether a checkpoint lies there that no drill of this plan has seen; an empty place has none."""
    found = candidates(plan.checkpoints)
    if not found:
        return False
    newest = choose(found, Choice(), datetime.now(UTC), 0, plan.checkpoints)
    return is_newer(newest, _drilled(repository, plan.name))


def _drilled(repository: Repository, plan: str) -> list[tuple[str, str | None]]:
    return [(drill.checkpoint, drill.args.modified) for drill in repository.drills(LOOKED_BACK, plan=plan)]


def _args(
    plan: DrillPlan,
    settings: Settings,
    asked: DrillRequest,
    *,
    spec: str = "",
    seed: int | None = None,
    chosen: Candidate | None = None,
) -> DrillArgs:
    return DrillArgs(
        job=plan.job or (parse_spec(spec).job if spec else "") or plan.name,
        plan=plan.name or None,
        parallelism=plan.parallelism,
        rto_limit_s=plan.rto_s,
        rpo_limit_s=plan.max_age_s,
        stale_after_s=plan.stale_after_s,
        give_up_s=plan.give_up_s,
        choice=plan.choice.text,
        schedule=plan.schedule.text,
        seed=seed,
        modified=chosen.modified.isoformat() if chosen else None,
        spec=spec,
        target=target_of(plan, settings, asked.id),
        scratch=place_of(asked.id, settings),
        host=host_id(),
        cores=resource_limits.cores(settings),
        run=asked.run,
        process=asked.process,
        checks=plan.checks,
    )
