"""What was counted, what is claimed before publishing, what is told afterwards."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Mapped, mapped_column

from cdr_core.metadata.models.base import Base, RecoveryKey, utc_now
from cdr_core.metadata.states import Phase


class LedgerRow(Base):
    """``entry`` is the place in the phase's ledger, which is written as a whole."""

    __tablename__ = "ledger"

    recovery_id: Mapped[RecoveryKey]
    phase: Mapped[Phase] = mapped_column(primary_key=True)
    entry: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    epoch: Mapped[int]
    body: Mapped[dict[str, Any]]


class ProofRow(Base):
    """Text, not JSON: its SHA-256 is published, so not a byte of it may change on the way through the database."""

    __tablename__ = "proof"

    recovery_id: Mapped[RecoveryKey]
    sha256: Mapped[str] = mapped_column(primary_key=True)
    body: Mapped[str]
    epoch: Mapped[int]
    saved_at: Mapped[datetime] = mapped_column(default=utc_now)


class ReceiptRow(Base):
    __tablename__ = "receipt"

    recovery_id: Mapped[RecoveryKey]
    body: Mapped[dict[str, Any]]
    epoch: Mapped[int]
    saved_at: Mapped[datetime] = mapped_column(default=utc_now)
