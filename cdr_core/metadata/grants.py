"""Which grants still count. An attempt's end with its epoch, durable ones when they are released, an export's in time.

An export is no attempt: no epoch begins or ends with it, and no other process can tell whether it still lives. So its
grant has its expiry in its name; the export renews it, and that of a dead export expires.
"""

from __future__ import annotations

import time

from cdr_core.metadata.models import GrantRow

_EXPORT = "export-"
_UNTIL = "@"
NO_EPOCH = -1
"""Grants of exports do not ask for one."""


def export_holder(export: str, until: float) -> str:
    """The holder's name of an export that is taken for dead after ``until``, in seconds since 1970."""
    return f"{_EXPORT}{export}{_UNTIL}{until:.3f}"


def export_of(holder: str) -> str | None:
    """The export that a grant belongs to; ``None`` for everybody else's."""
    name, sign, _ = holder.removeprefix(_EXPORT).rpartition(_UNTIL)
    return name if sign and holder.startswith(_EXPORT) else None


def is_live(row: GrantRow, epoch: int) -> bool:
    """Whether a grant still keeps its set, ``epoch`` being the recovery's."""
    if row.released:
        return False
    if export_of(row.holder) is not None:
        return time.time() < float(row.holder.rpartition(_UNTIL)[2])
    return row.durable or row.epoch == epoch
