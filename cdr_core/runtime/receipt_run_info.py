"""What the receipt says about the run: attempts, recovery checkpoints, times, the age of the checkpoint, versions."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import cdr_core
from cdr_core.runtime.quarantine import quarantined
from cdr_core.spill.router import ROUTING

if TYPE_CHECKING:
    from cdr_core.channels.batch_scan import Scanned
    from cdr_core.metadata import PhaseProgress, Recovery, RecoveryCheckpoint
    from cdr_core.runtime.driver import PhaseRun

TOUCHING_RECORDS = ("numba", "numpy", "pyarrow", "pyspark", "google-crc32c")
"""Libraries whose version may matter when a receipt is looked at years later."""


def run_facts(run: PhaseRun, scanned: Scanned) -> dict[str, Any]:
    """Everything but the records themselves; see ``run`` in the receipt's schema."""
    recovery = run.repository.recovery(run.recovery.id)
    phases = run.repository.phases(recovery.id)
    return {
        "cdr": cdr_core.__version__,
        "seconds": _seconds(phases),
        "rto_s": round((datetime.now(UTC) - recovery.created_at).total_seconds(), 3),
        **({} if recovery.source_age_s is None else {"rpo_s": recovery.source_age_s}),
        "quarantine": quarantined(scanned),
        "fetched_bytes": sum((row.result or {}).get("fetched_bytes", 0) for row in phases),
        **_routing(phases),
        "checkpoints": [_checkpoint(row) for row in run.repository.checkpoints(recovery.id)],
        "attempts": _attempts(run, recovery),
        "versions": {"python": platform.python_version(), "spark": _version("pyspark")},
        "dependencies": {name: _version(name) for name in TOUCHING_RECORDS},
    }


def _routing(phases: tuple[PhaseProgress, ...]) -> Mapping[str, Any]:
    """The ways that bytes took; left out where an earlier version drained."""
    found = next((row.result[ROUTING] for row in phases if row.result and ROUTING in row.result), None)
    return {} if found is None else {ROUTING: found}


def _seconds(phases: tuple[PhaseProgress, ...]) -> dict[str, float]:
    return {
        str(row.name): round((row.ended_at - row.started_at).total_seconds(), 3)
        for row in phases
        if row.started_at and row.ended_at
    }


def _checkpoint(row: RecoveryCheckpoint) -> dict[str, Any]:
    value: dict[str, Any] = {"id": row.checkpoint_id, "state": str(row.state)}
    if row.ended_at is not None:
        value["seconds"] = round(max((row.ended_at - row.triggered_at).total_seconds(), 0.0), 3)
    return value


def _attempts(run: PhaseRun, recovery: Recovery) -> list[dict[str, Any]]:
    return [
        {
            "epoch": attempt.epoch,
            "phase": str(attempt.phase),
            "run": attempt.runner.run,
            "try": attempt.runner.try_number,
            "state": str(attempt.state),
        }
        for attempt in run.repository.attempts(recovery.id)
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
