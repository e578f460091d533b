"""What the history of drills says: how old the last success is, and whether that is too old."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cdr_core.drill.plan import DEFAULT_STALE_AFTER
from cdr_core.metadata import Drill, DrillOutcome


@dataclass(frozen=True, slots=True)
class Staleness:
    """A plan's last success. ``age_s`` counts from when that drill began; ``None`` = there never was one."""

    plan: str
    job: str
    last_success: datetime | None
    age_s: float | None
    limit_s: float
    last_result: DrillOutcome | None

    @property
    def is_stale(self) -> bool:
        """Whether somebody should worry; never having succeeded counts, once there is a result at all."""
        if self.age_s is None:
            return self.last_result is not None
        return self.age_s > self.limit_s

    @property
    def sentence(self) -> str:
        who = f"Drill plan {self.plan}" if self.plan else f"Job {self.job}, drilled by hand,"
        if self.age_s is None:
            return f"{who} has never passed."
        state = "too old" if self.is_stale else "in time"
        return f"{who} passed last {self.age_s / 3600:,.1f} h ago, {state} at a limit of {self.limit_s / 3600:,.1f} h."

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": self.plan,
            "job": self.job,
            "last_success": self.last_success.isoformat() if self.last_success else None,
            "age_s": self.age_s,
            "limit_s": self.limit_s,
            "last_result": str(self.last_result) if self.last_result else None,
            "is_stale": self.is_stale,
        }


def staleness(history: Iterable[Drill], now: datetime, limit_s: float | None = None) -> tuple[Staleness, ...]:
    """One per plan (drills without a plan: per job), by name. The limit is the one given, else that of the plan's
    newest drill. The newest drill and the newest that passed of each are history enough.
    """
    groups: dict[tuple[str, str], list[Drill]] = {}
    for drill in sorted(history, key=lambda drill: drill.started_at, reverse=True):
        plan, job = (str(drill.args.get(name) or "") for name in ("plan", "job"))
        # A plan stays itself when its job gets another name.
        groups.setdefault((plan, "" if plan else job), []).append(drill)
    return tuple(_one(plan, drills, now, limit_s) for (plan, _), drills in sorted(groups.items()))


def _one(plan: str, drills: list[Drill], now: datetime, limit_s: float | None) -> Staleness:
    passed = next((drill for drill in drills if drill.result is DrillOutcome.PASSED), None)
    said = drills[0].args.get("stale_after_s")
    return Staleness(
        plan=plan,
        job=str(drills[0].args.get("job") or ""),
        last_success=passed.started_at if passed else None,
        age_s=round((now - passed.started_at).total_seconds(), 3) if passed else None,
        limit_s=limit_s if limit_s is not None else float(said or DEFAULT_STALE_AFTER),
        last_result=next((drill.result for drill in drills if drill.result is not None), None),
    )
