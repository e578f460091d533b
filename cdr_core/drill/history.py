"""The status of every drill plan: the plans of ``drills.yaml``, joined with the history of drills."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cdr_core.drill.plan import DEFAULT_STALE_AFTER, DrillPlan
from cdr_core.drill.plans import Plans
from cdr_core.metadata import Drill, DrillArgs, DrillOutcome


@dataclass(frozen=True, slots=True)
class PlanStatus:
    """What the drills of a plan showed, by those that ended; a drill that runs changes nothing here.

    An empty ``plan`` stands for the drills of ``job`` that were run by hand. ``is_planned``: drills.yaml has the plan,
    so drills of it are expected. ``refusal`` says why drills.yaml's plan cannot be used. ``age_s`` counts from the
    start of the last drill that passed; ``rto_s`` and ``rpo_s`` are of the newest drill that measured them.
    """

    plan: str
    job: str
    is_planned: bool
    refusal: str | None
    last_result: DrillOutcome | None
    last_success: datetime | None
    age_s: float | None
    limit_s: float
    rto_s: float | None
    rpo_s: float | None

    @property
    def is_stale(self) -> bool:
        """Whether a plan's last success is too old, or drills ended and none ever passed. Only a plan can be stale."""
        if not self.is_planned:
            return False
        if self.age_s is None:
            return self.last_result is not None
        return self.age_s > self.limit_s

    @property
    def sentence(self) -> str:
        who = f"Drill plan {self.plan}" if self.plan else f"Job {self.job or '(unnamed)'}, drilled by hand,"
        if self.plan and not self.is_planned:
            who += ", which drills.yaml no longer has,"
        if self.last_result is None:
            return f"{who} has no result yet."
        if self.age_s is None:
            return f"{who} has never passed."
        passed = f"{who} passed last {self.age_s / 3600:,.1f} h ago"
        if not self.is_planned:
            return f"{passed}."
        state = "too old" if self.is_stale else "in time"
        return f"{passed}, {state} at a limit of {self.limit_s / 3600:,.1f} h."

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": self.plan,
            "job": self.job,
            "is_planned": self.is_planned,
            "refusal": self.refusal,
            "last_success": self.last_success.isoformat() if self.last_success else None,
            "age_s": self.age_s,
            "limit_s": self.limit_s,
            "last_result": str(self.last_result) if self.last_result else None,
            "is_stale": self.is_stale,
        }


def plan_statuses(plans: Plans, history: Iterable[Drill], now: datetime) -> tuple[PlanStatus, ...]:
    """One per plan of drills.yaml, per plan that only the history has, and per job that was drilled by hand; by name.

    ``Repository.newest_drills()`` is history enough. Where drills.yaml as a whole cannot be read, every plan of the
    history counts as planned: an unreadable file must not silence an alarm.
    """
    refusals = dict(plans.refusals)
    known = {plan.name: plan for plan in plans.plans}
    groups: dict[tuple[str, str], list[Drill]] = {(name, ""): [] for name in [*known, *refusals] if name}
    for drill in sorted(history, key=lambda drill: drill.started_at, reverse=True):
        name, job = drill.args.plan or "", drill.args.job or ""
        # A plan keeps its group when its job gets another name.
        groups.setdefault((name, "" if name else job), []).append(drill)
    return tuple(_status(name, known, refusals, drills, now) for (name, _), drills in sorted(groups.items()))


def _status(
    name: str, known: Mapping[str, DrillPlan], refusals: Mapping[str, str], drills: list[Drill], now: datetime
) -> PlanStatus:
    """``drills`` is newest first, and empty for a plan that never ran."""
    plan = known.get(name)
    newest = drills[0].args if drills else DrillArgs()
    limit = plan.stale_after_s if plan else newest.stale_after_s or DEFAULT_STALE_AFTER
    passed = next((drill.started_at for drill in drills if drill.result is DrillOutcome.PASSED), None)
    return PlanStatus(
        plan=name,
        job=(plan.job if plan else "") or newest.job or "",
        is_planned=bool(name) and (plan is not None or name in refusals or "" in refusals),
        refusal=refusals.get(name) if name else None,
        last_result=next((drill.result for drill in drills if drill.result is not None), None),
        last_success=passed,
        age_s=round((now - passed).total_seconds(), 3) if passed else None,
        limit_s=limit,
        rto_s=next((drill.rto_s for drill in drills if drill.rto_s is not None), None),
        rpo_s=next((drill.rpo_s for drill in drills if drill.rpo_s is not None), None),
    )
