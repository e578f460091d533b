"""The tables, as SQLAlchemy classes. They stay inside ``cdr_core.metadata``: everybody else sees frozen values."""

from __future__ import annotations

from cdr_core.metadata.models.audit import LedgerRow, ProofRow, ReceiptRow
from cdr_core.metadata.models.base import Base
from cdr_core.metadata.models.commit import CommitLogRow, CoordinatorStateRow, PreparedRow
from cdr_core.metadata.models.drill import DrillResultRow, DrillRow
from cdr_core.metadata.models.recovery import (
    AttemptRow,
    CommandRow,
    PhaseRow,
    RecoveryRow,
    SourceCheckpointRow,
    UnitResultRow,
)
from cdr_core.metadata.models.spill import GrantRow, RecoveryCheckpointRow, SpillFileRow, SpillSetRow

__all__ = [
    "AttemptRow",
    "Base",
    "CommandRow",
    "CommitLogRow",
    "CoordinatorStateRow",
    "DrillResultRow",
    "DrillRow",
    "GrantRow",
    "LedgerRow",
    "PhaseRow",
    "PreparedRow",
    "ProofRow",
    "ReceiptRow",
    "RecoveryCheckpointRow",
    "RecoveryRow",
    "SourceCheckpointRow",
    "SpillFileRow",
    "SpillSetRow",
    "UnitResultRow",
]
