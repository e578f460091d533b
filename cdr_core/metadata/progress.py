"""How far a phase is, from its row: what the shell and the page show. Pure; the caller passes the time."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from cdr_core.metadata.states import PhaseState
from cdr_core.metadata.values import PhaseProgress, UnitProgress


def phase_status(row: PhaseProgress, now: datetime) -> dict[str, Any]:
    """A phase as the interface has it."""
    return {
        "name": str(row.name),
        "state": str(row.state),
        "done": row.units_done,
        "total": row.units_total,
        "records": row.records_done + sum(unit.records for unit in row.running.values()),
        "bytes": bytes_so_far(row),
        "bytes_total": row.bytes_total,
        "eta_s": eta_s(row, now),
        "running": [
            {
                "unit": name,
                "records": unit.records,
                "bytes": unit.bytes,
                "bytes_total": unit.bytes_total,
                "eta_s": unit.eta_s,
            }
            for name, unit in sorted(row.running.items())
        ],
    }


def bytes_so_far(row: PhaseProgress) -> int:
    """Finished units, and the units under way as far as they are."""
    return row.bytes_done + sum(unit.bytes for unit in row.running.values())


def eta_s(row: PhaseProgress, now: datetime) -> float | None:
    """Seconds left at the pace of the units under way; where none of them says, at that of the phase so far. Unknown
    before anything is done, and where nothing runs.
    """
    if row.state is not PhaseState.RUNNING or row.started_at is None or not row.bytes_total or not bytes_so_far(row):
        return None
    rest = max(row.bytes_total - bytes_so_far(row), 0)
    at_this_pace = rest_s(rest, row.running.values())
    if at_this_pace is not None:
        return round(at_this_pace, 1)
    return round((now - row.started_at).total_seconds() * rest / bytes_so_far(row), 1)


def rest_s(rest: int, running: Collection[UnitProgress]) -> float | None:
    """Seconds that so many bytes take at the pace of these units, and no less than the slowest of them needs.

    A unit's pace is that of its current try: neither what earlier attempts did nor the time between them is in it.
    """
    known = [(unit.bytes_total - unit.bytes, unit.eta_s) for unit in running if unit.bytes_total and unit.eta_s]
    pace = sum(left / seconds for left, seconds in known if left > 0)
    return max(rest / pace, *(seconds for _, seconds in known)) if pace else None


def fraction(row: PhaseProgress) -> float | None:
    """Between 0 and 1: by bytes while units run, else by units; ``None`` while nobody knows how much there is."""
    if row.state is PhaseState.DONE:
        return 1.0
    if not row.units_total:
        return None
    if row.bytes_total and row.units_done < row.units_total:
        return min(bytes_so_far(row) / row.bytes_total, 1.0)
    return min(row.units_done / row.units_total, 1.0)
