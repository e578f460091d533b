"""A drill as the shell, the page and programs see it."""

from __future__ import annotations

from typing import Any

import msgspec

from cdr_core.metadata import Drill, DrillOutcome

EXIT_CODES = {
    DrillOutcome.PASSED: 0,
    DrillOutcome.FAILED: 2,
    DrillOutcome.TIMED_OUT: 1,
    DrillOutcome.COULD_NOT_RUN: 3,
}
"""As everywhere: 2 = looked at and wrong, 1 = the next one may do better, 3 = a precondition does not hold."""


def as_json(drill: Drill) -> dict[str, Any]:
    """One object; ``result`` is null while it runs."""
    return {
        "drill": drill.id,
        "plan": drill.args.plan,
        "job": drill.args.job,
        "result": str(drill.result) if drill.result else None,
        "checks": [msgspec.to_builtins(check) for check in drill.checks],
        "rto_s": drill.rto_s,
        "rpo_s": drill.rpo_s,
        "rto_limit_s": drill.args.rto_limit_s,
        "rpo_limit_s": drill.args.rpo_limit_s,
        "checkpoint": drill.checkpoint,
        "choice": drill.args.choice or None,
        "seed": drill.args.seed,
        "parallelism": drill.args.parallelism or None,
        "cores": drill.args.cores,
        "recovery": drill.recovery_id,
        "started_at": drill.started_at.isoformat(),
        "ended_at": drill.ended_at.isoformat() if drill.ended_at else None,
        "error": drill.error,
    }


def as_line(drill: Drill) -> str:
    """One drill in a list."""
    began = drill.started_at.strftime("%Y-%m-%d %H:%M:%S")
    times = f"rto {_seconds(drill.rto_s):>9}  rpo {_seconds(drill.rpo_s):>11}"
    result = str(drill.result) if drill.result else "running"
    return f"{drill.id:<18}  {result:<13}  {began}  {times}  {drill.args.plan or '-'}  {drill.checkpoint}"


def as_text(drill: Drill) -> str:
    """All of a drill, for a person: each check, and for one that failed what that means and what to do."""
    lines = [
        f"{drill.id}: {drill.result or 'running'}",
        f"  plan        {drill.args.plan or '-'} (job {drill.args.job or '-'})",
        f"  checkpoint  {drill.checkpoint} ({drill.args.choice}, seed {drill.args.seed})",
        f"  recovery    {drill.recovery_id or '-'}",
    ]
    for check in drill.checks:
        lines.append(f"  {check.result:<14}  {check.name}: {check.sentence}")
        if check.means:
            lines += [f"{'':18}{check.means}", f"{'':18}{check.do}"]
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} s"
