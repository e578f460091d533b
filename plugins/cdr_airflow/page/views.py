"""Rows as responses of the API. Pure; nothing here queries the database.

Texts are as they were stored: ``clean`` removes secrets from all of them at once, when they are sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import yaml

from cdr_core.audit.receipt import verdict_text
from cdr_core.metadata import (
    NOT_READY,
    Attempt,
    AttemptState,
    Command,
    CommandState,
    PhaseProgress,
    PhaseState,
    Recovery,
    RecoveryCheckpoint,
    RecoveryCheckpointState,
    RecoveryState,
)
from cdr_core.metadata.progress import fraction, phase_status
from cdr_core.metadata.recovery_list import LedgerSum, RecoveryLine
from cdr_core.runtime.checkpoint_requests import waits_until

_GO_ON = (
    "Remove the cause, then clear the failed task in Airflow or run: cdr resume {id}. Finished phases are kept. "
    "If other options are needed, start over."
)
_READ, _DRAIN, _COMMIT = 0, 3, 4


def line(recovery: RecoveryLine, now: datetime) -> dict[str, Any]:
    """Return a recovery for the list; fields with the meaning of ``cdr status --json`` have its names."""
    return {
        "recovery": recovery.id,
        "job": job_of(recovery.spec),
        "state": str(recovery.state),
        "epoch": recovery.epoch,
        "source": recovery.source,
        "checkpoint_id": recovery.flink_checkpoint_id,
        "target": recovery.target,
        "parallelism": recovery.parallelism,
        "created_at": _time(recovery.created_at),
        "updated_at": _time(recovery.updated_at),
        **outcome(recovery, now),
        **_failure(recovery),
        "phases": [phase(row, _until(recovery, now)) for row in recovery.phases],
    }


def outcome(recovery: RecoveryLine, now: datetime) -> dict[str, Any]:
    """Return the known part of the result: nothing is claimed before commit has stored it."""
    phases = recovery.phases
    committed = phases[_COMMIT].result if phases[_COMMIT].state is PhaseState.DONE else None
    verdict, proven = (committed or {}).get("verdict"), bool((committed or {}).get("proven"))
    read = phases[_READ].result if phases[_READ].state is PhaseState.DONE else None
    ended = phases[_COMMIT].ended_at if committed is not None else None
    return {
        "verdict": verdict,
        "proven": proven if verdict else None,
        "verdict_text": verdict_text(verdict, proven=proven) if verdict else None,
        "records": (committed or read or {}).get("records"),
        "bytes": (committed or {}).get("bytes"),
        "location": str(committed["location"]) if committed and committed.get("location") else None,
        "ended_at": _time(ended),
        "seconds": _seconds(recovery.created_at, ended or _until(recovery, now)),
    }


def _until(recovery: RecoveryLine, now: datetime) -> datetime:
    """Return the end of a recovery's times: one that failed or was cancelled ends with its last recorded event."""
    stopped = (RecoveryState.FAILED, RecoveryState.CANCELLED, RecoveryState.REPLACED)
    return recovery.updated_at if recovery.state in stopped else now


def phase(row: PhaseProgress, now: datetime) -> dict[str, Any]:
    """Return a phase with the fields of the command line, its times and the share of its bar (``None`` =
    unknown yet).
    """
    status = phase_status(row, now)
    status["running"] = len(row.running)
    return status | {
        "fraction": fraction(row),
        "started_at": _time(row.started_at),
        "ended_at": _time(row.ended_at),
        "seconds": None if row.started_at is None else _seconds(row.started_at, row.ended_at or now),
    }


def ledger(sums: Sequence[LedgerSum]) -> list[dict[str, Any]]:
    """Return each phase's sum, and whether it is that of the phase before; the phase itself has compared
    every channel.
    """
    answer: list[dict[str, Any]] = []
    for before, each in zip([None, *sums], sums, strict=False):
        same = None if before is None else (before.records, before.bytes) == (each.records, each.bytes)
        answer.append(
            {
                "phase": str(each.phase),
                "entries": each.entries,
                "records": each.records,
                "bytes": each.bytes,
                "balances": same,
            }
        )
    return answer


def routing(phases: Sequence[PhaseProgress]) -> dict[str, int] | None:
    """Return bytes by the way they took; ``None`` before the drain is done, and where its version did not
    count them.
    """
    drain = phases[_DRAIN]
    counted: dict[str, int] | None = (drain.result or {}).get("routing")
    return counted if drain.state is PhaseState.DONE else None


def attempts(rows: Sequence[Attempt], now: datetime) -> list[dict[str, Any]]:
    """Return attempts, newest first; a fenced one names the epoch that overtook it."""
    epochs = sorted(row.epoch for row in rows)
    return [
        {
            "epoch": row.epoch,
            "phase": str(row.phase),
            "state": str(row.state),
            "run": row.runner.run,
            "task": row.runner.task,
            "try": row.runner.try_number,
            "host": row.runner.host,
            "pid": row.runner.pid,
            "started_at": _time(row.started_at),
            "ended_at": _time(row.ended_at),
            "seconds": _seconds(row.started_at, row.ended_at or now),
            "fenced_by": _successor(row, epochs),
            "error": row.error,
        }
        for row in sorted(rows, key=lambda row: -row.epoch)
    ]


def _successor(row: Attempt, epochs: Sequence[int]) -> int | None:
    if row.state is not AttemptState.FENCED:
        return None
    return next((epoch for epoch in epochs if epoch > row.epoch), None)


def checkpoint(row: RecoveryCheckpoint, exported: str | None) -> dict[str, Any]:
    """Return a recovery checkpoint. An expired one has that time as its end, so its duration is unknown."""
    is_timed = row.ended_at is not None and row.state is not RecoveryCheckpointState.EXPIRED
    return {
        "id": row.checkpoint_id,
        "state": str(row.state),
        "epoch": row.epoch,
        "reason": row.reason,
        "triggered_at": _time(row.triggered_at),
        "ended_at": _time(row.ended_at),
        "seconds": _seconds(row.triggered_at, row.ended_at) if is_timed else None,
        "exported": exported,
    }


def command(row: Command, timeout: float) -> dict[str, Any]:
    """Return a command. One for which no drain started in time is shown as refused, even if no driver runs to refuse
    it.
    """
    answer, until = dict(row.answer or {}), waits_until(row, timeout)
    is_over = until is not None and until <= datetime.now(UTC)
    return {
        "id": row.id,
        "kind": row.kind,
        "state": str(CommandState.REFUSED if is_over else row.state),
        "checkpoint": answer.get("checkpoint"),
        "reason": answer.get("reason"),
        "not_ready": bool(answer.get(NOT_READY)),
        "waits_until": None if is_over else _time(until),
        "requested_at": _time(row.requested_at),
        "answered_at": _time(row.answered_at),
    }


def age_of_source(recovery: Recovery) -> float | None:
    """How old the checkpoint was when its recovery was asked for; ``None`` where its storage did not say."""
    return None if recovery.source_age_s is None else max(recovery.source_age_s, 0.0)


@lru_cache(maxsize=1024)
def job_of(spec: str) -> str:
    """Return the job's name; specs were checked when their recovery was made, and hardly ever differ."""
    try:
        value = yaml.safe_load(spec)
    except yaml.YAMLError:
        return ""
    return str(value.get("job") or "") if isinstance(value, Mapping) else ""


def _failure(recovery: RecoveryLine) -> dict[str, Any]:
    if recovery.error is None:
        return {"error": None, "hint": None}
    hint = _GO_ON.format(id=recovery.id) if recovery.state is RecoveryState.FAILED else None
    return {"error": recovery.error, "hint": hint}


def _time(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat(timespec="milliseconds")


def _seconds(start: datetime, end: datetime | None) -> float | None:
    return None if end is None else round(max((end - start).total_seconds(), 0.0), 3)
