"""Outputs of finished phases, as the phases after them use them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cdr_core.audit.ledger import Ledger, join_ledgers
from cdr_core.channels.batch_scan import Scanned
from cdr_core.evidence.spec_evidence import ExchangeEvidence
from cdr_core.metadata import Phase
from cdr_core.runtime.earlier_versions import accounts_of, ledger_of_entries
from cdr_core.runtime.unit_results import UnitResult

if TYPE_CHECKING:
    from cdr_core.metadata import Recovery
    from cdr_core.runtime.driver import Drive

EVIDENCE = "evidence"
"""In a recovery's settings and its plan's summary: what confirms types and keys, one entry per exchange."""


def evidence_of(recovery: Recovery) -> tuple[ExchangeEvidence, ...] | None:
    """What confirmed the types and keys when the plan was made; ``None`` if an older version made it."""
    found = (recovery.plan_summary or {}).get(EVIDENCE)
    return None if found is None else tuple(map(ExchangeEvidence.from_json, found))


def scanned_by(drive: Drive) -> Scanned:
    """What the units of `read` found, by channel."""
    return scanned_in(drive.columns(Phase.READ))


def scanned_in(results: Iterable[UnitResult]) -> Scanned:
    """What units of `read` found, by channel; earlier versions left a value per channel."""
    parts = [
        Scanned.from_columns(unit.columns, unit.detail["special"])
        if unit.columns
        else Scanned.of_dicts(unit.detail["channels"])
        for unit in results
    ]
    return Scanned.joined(parts or [Scanned.of_dicts([])]).in_order()


def source_ledger(scanned: Scanned) -> Ledger:
    """One line per virtual channel, its splits joined in order."""
    return join_ledgers([scanned.ledger.moved(scanned.splits["split_channel"])])


def selected_by(drive: Drive) -> tuple[Ledger, Ledger, Ledger]:
    """The selection ledger by line; per channel the other elements that stay somewhere, and that leave the stream."""
    parts: list[Ledger] = []
    kept: list[Ledger] = []
    left: list[Ledger] = []
    for unit in drive.columns(Phase.FILTER):
        if unit.columns:
            found = [Ledger.from_columns(unit.columns, prefix) for prefix in ("", "kept_", "left_")]
        else:
            lines = sorted(unit.detail["parts"], key=lambda part: int(part["split"]))
            entries = ledger_of_entries(drive.plan, [part["entry"] for part in lines])
            found = [entries, *accounts_of(drive.plan, unit.detail["accounts"])]
        for each, ledgers in zip(found, (parts, kept, left), strict=True):
            ledgers.append(each)
    return join_ledgers(parts), join_ledgers(kept), join_ledgers(left)


def spilled_by(drive: Drive) -> Ledger:
    """The spill ledger, by line."""
    return join_ledgers(
        Ledger.from_columns(unit.columns) if unit.columns else ledger_of_entries(drive.plan, unit.detail["ledger"])
        for unit in drive.columns(Phase.SPILL)
    )
