"""The metadata database: what is known about every recovery, and the fence that keeps zombies from changing it.

States and values are plain; the database behind them is loaded on first use. Executors never do.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cdr_core.drill_values import DrillArgs, DrillCheck, DrillChecks, DrillProcess, Expect, Query
from cdr_core.metadata.recovery_options import (
    AT_END,
    PER_CHECKPOINT,
    PlannedEnds,
    PlanSummary,
    RecoveryOptions,
    RecoverySettings,
)
from cdr_core.metadata.states import (
    CANCEL,
    HAND_OVER,
    AttemptState,
    CommandState,
    CommitState,
    DrillOutcome,
    Phase,
    PhaseState,
    RecoveryCheckpointState,
    RecoveryState,
    SpillSetState,
)
from cdr_core.metadata.values import (
    NOT_READY,
    Attempt,
    Command,
    CommitLogEntry,
    CoordinatorState,
    Drill,
    Export,
    Grant,
    Json,
    NewRecovery,
    PhaseProgress,
    Prepared,
    Proof,
    Recovery,
    RecoveryCheckpoint,
    Runner,
    SourceCheckpoint,
    SpillFile,
    SpillSet,
    UnitProgress,
    UnitResult,
    already_visible,
    generation_id,
    new_recovery_id,
)

if TYPE_CHECKING:
    from cdr_core.metadata.migrate import current_revision, upgrade
    from cdr_core.metadata.repository import Repository
    from cdr_core.metadata.transaction import FencedTransaction

_DATABASE = {
    "FencedTransaction": "transaction",
    "Repository": "repository",
    "current_revision": "migrate",
    "upgrade": "migrate",
}
"""What needs SQLAlchemy, and the module it is in."""

__all__ = [
    "AT_END",
    "CANCEL",
    "HAND_OVER",
    "NOT_READY",
    "PER_CHECKPOINT",
    "Attempt",
    "AttemptState",
    "Command",
    "CommandState",
    "CommitLogEntry",
    "CommitState",
    "CoordinatorState",
    "Drill",
    "DrillArgs",
    "DrillCheck",
    "DrillChecks",
    "DrillOutcome",
    "DrillProcess",
    "Expect",
    "Export",
    "FencedTransaction",
    "Grant",
    "Json",
    "NewRecovery",
    "Phase",
    "PhaseProgress",
    "PhaseState",
    "PlanSummary",
    "PlannedEnds",
    "Prepared",
    "Proof",
    "Query",
    "Recovery",
    "RecoveryCheckpoint",
    "RecoveryCheckpointState",
    "RecoveryOptions",
    "RecoverySettings",
    "RecoveryState",
    "Repository",
    "Runner",
    "SourceCheckpoint",
    "SpillFile",
    "SpillSet",
    "SpillSetState",
    "UnitProgress",
    "UnitResult",
    "already_visible",
    "current_revision",
    "generation_id",
    "new_recovery_id",
    "upgrade",
]


def __getattr__(name: str) -> Any:
    if name not in _DATABASE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_DATABASE[name]}"), name)
