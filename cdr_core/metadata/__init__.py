"""The metadata database: what is known about every recovery, and the fence that keeps zombies from changing it."""

from __future__ import annotations

from cdr_core.metadata.cancel import CANCEL
from cdr_core.metadata.migrate import current_revision, upgrade
from cdr_core.metadata.repository import Repository
from cdr_core.metadata.states import (
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
from cdr_core.metadata.transaction import FencedTransaction
from cdr_core.metadata.values import (
    Attempt,
    Command,
    CommitLogEntry,
    CoordinatorState,
    Cursor,
    Drill,
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
    UnitResult,
    new_recovery_id,
)

__all__ = [
    "CANCEL",
    "Attempt",
    "AttemptState",
    "Command",
    "CommandState",
    "CommitLogEntry",
    "CommitState",
    "CoordinatorState",
    "Cursor",
    "Drill",
    "DrillOutcome",
    "FencedTransaction",
    "Grant",
    "Json",
    "NewRecovery",
    "Phase",
    "PhaseProgress",
    "PhaseState",
    "Prepared",
    "Proof",
    "Recovery",
    "RecoveryCheckpoint",
    "RecoveryCheckpointState",
    "RecoveryState",
    "Repository",
    "Runner",
    "SourceCheckpoint",
    "SpillFile",
    "SpillSet",
    "SpillSetState",
    "UnitResult",
    "current_revision",
    "new_recovery_id",
    "upgrade",
]
