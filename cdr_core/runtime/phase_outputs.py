"""Outputs of finished phases, as the phases after them use them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cdr_core.audit.ledger import Ledger, join_ledgers
from cdr_core.channels.batch_scan import Scanned
from cdr_core.evidence.spec_evidence import ExchangeEvidence
from cdr_core.runtime.earlier_versions import accounts_of, ledger_of_entries
from cdr_core.runtime.unit_results import FilterResult, ReadResult, SpillResult, UnitOutput

if TYPE_CHECKING:
    from cdr_core.metadata import Recovery
    from cdr_core.runtime.driver import PhaseRun


def evidence_of(recovery: Recovery) -> tuple[ExchangeEvidence, ...] | None:
    """What confirmed the types and keys when the plan was made; ``None`` if an older version made it."""
    found = None if recovery.plan_summary is None else recovery.plan_summary.evidence
    return None if found is None else tuple(map(ExchangeEvidence.from_json, found))


def scanned_by(run: PhaseRun) -> Scanned:
    """What the units of `read` found, by channel."""
    return scanned_in(run.outputs(ReadResult))


def scanned_in(outputs: Iterable[UnitOutput[ReadResult]]) -> Scanned:
    """What units of `read` found, by channel; earlier versions left a value per channel."""
    parts = [
        Scanned.from_columns(unit.columns, unit.result.special)
        if unit.columns
        else Scanned.of_dicts(unit.result.channels)
        for unit in outputs
    ]
    return Scanned.joined(parts or [Scanned.of_dicts([])]).in_order()


def source_ledger(scanned: Scanned) -> Ledger:
    """One line per virtual channel, its splits joined in order."""
    return join_ledgers([scanned.ledger.moved(scanned.splits["split_channel"])])


def selected_by(run: PhaseRun) -> tuple[Ledger, Ledger, Ledger]:
    """The selection ledger by line; per channel the other elements that stay somewhere, and that leave the stream."""
    parts: list[Ledger] = []
    kept: list[Ledger] = []
    left: list[Ledger] = []
    for unit in run.outputs(FilterResult):
        if unit.columns:
            found = [Ledger.from_columns(unit.columns, prefix) for prefix in ("", "kept_", "left_")]
        else:
            lines = sorted(unit.result.parts, key=lambda part: int(part["split"]))
            entries = ledger_of_entries(run.plan, [part["entry"] for part in lines])
            found = [entries, *accounts_of(run.plan, unit.result.accounts)]
        for each, ledgers in zip(found, (parts, kept, left), strict=True):
            ledgers.append(each)
    return join_ledgers(parts), join_ledgers(kept), join_ledgers(left)


def spilled_by(run: PhaseRun) -> Ledger:
    """The spill ledger, by line."""
    return join_ledgers(
        Ledger.from_columns(unit.columns) if unit.columns else ledger_of_entries(run.plan, unit.result.ledger)
        for unit in run.outputs(SpillResult)
    )
