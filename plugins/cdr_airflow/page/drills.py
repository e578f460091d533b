"""Restore drills for the page: history, pass rate, recovery times, age of the last success."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query

from cdr_airflow.page import access
from cdr_airflow.page.database import Rows
from cdr_core import settings
from cdr_core.drill.history import PlanStatus, plan_statuses
from cdr_core.drill.plans import load_plans
from cdr_core.metadata import Drill, DrillOutcome, Repository
from cdr_core.metadata.statistics import DrillCount

READ = [Depends(access.may_read_drills)]
MOST_DRILLS = 500

router = APIRouter(prefix="/api/v1/drills")


@router.get("", dependencies=READ)
def drills(
    rows: Rows,
    limit: Annotated[int, Query(ge=1, le=MOST_DRILLS)] = 100,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
    plan: Annotated[str | None, Query(max_length=200)] = None,
) -> dict[str, Any]:
    """List drills, newest first, of one plan or of all; ``plans`` summarises each plan over its whole history."""
    counts = rows.drill_counts()
    return {
        "drills": [drill_json(drill) for drill in rows.drills(limit, offset, plan=plan)],
        "total": sum(each.count for each in counts if plan is None or each.plan == plan),
        "limit": limit,
        "offset": offset,
        "plans": plans(statuses(rows, datetime.now(UTC)), counts),
    }


@router.get("/{drill}", dependencies=READ)
def one(rows: Rows, drill: str) -> dict[str, Any]:
    return drill_json(rows.drill(drill))


def statuses(rows: Repository, now: datetime) -> tuple[PlanStatus, ...]:
    """Return the status of every plan in drills.yaml and in the history."""
    return plan_statuses(load_plans(settings.load().drills), rows.newest_drills(), now)


def plans(found: Sequence[PlanStatus], counts: Sequence[DrillCount]) -> list[dict[str, Any]]:
    """Return each plan's (or, without one, job's) last success and pass rate. A drill that could not run is excluded:
    it proves nothing about the checkpoint.
    """
    sums: dict[tuple[str, str], dict[DrillOutcome | None, int]] = defaultdict(lambda: defaultdict(int))
    for each in counts:
        sums[each.plan, "" if each.plan else each.job][each.result] += each.count
    answer = []
    for status in found:
        counted = sums[status.plan, "" if status.plan else status.job]
        judged = sum(counted[result] for result in (DrillOutcome.PASSED, DrillOutcome.FAILED, DrillOutcome.TIMED_OUT))
        answer.append(
            status.to_json()
            | {
                "sentence": status.sentence,
                "counts": {str(result): counted[result] for result in DrillOutcome},
                "running": counted[None],
                "pass_rate": round(counted[DrillOutcome.PASSED] / judged, 4) if judged else None,
            }
        )
    return answer


def drill_json(drill: Drill) -> dict[str, Any]:
    """Return a drill; its checks contain the meaning of a failure and the next step."""
    seconds = None if drill.ended_at is None else round((drill.ended_at - drill.started_at).total_seconds(), 3)
    return {
        "drill": drill.id,
        "job": drill.args.job or "",
        "plan": drill.args.plan or "",
        "parallelism": drill.args.parallelism or "",
        "checkpoint": drill.checkpoint,
        "recovery": drill.recovery_id,
        "result": None if drill.result is None else str(drill.result),
        "started_at": drill.started_at.isoformat(timespec="milliseconds"),
        "ended_at": None if drill.ended_at is None else drill.ended_at.isoformat(timespec="milliseconds"),
        "seconds": seconds,
        "rto_s": drill.rto_s,
        "rpo_s": drill.rpo_s,
        "rto_limit_s": drill.args.rto_limit_s,
        "rpo_limit_s": drill.args.rpo_limit_s,
        "error": drill.error,
        "checks": [msgspec.to_builtins(check) for check in drill.checks],
    }
