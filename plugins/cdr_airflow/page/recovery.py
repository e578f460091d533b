"""The details of one recovery, composed from a few short reads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from cdr_airflow.page import flow, views
from cdr_airflow.page.exports import Exports
from cdr_airflow.page.ledgers import Ledgers
from cdr_core.errors import CdrError
from cdr_core.metadata import (
    PER_CHECKPOINT,
    CommitLogEntry,
    CommitState,
    Drill,
    Phase,
    PhaseState,
    Recovery,
    RecoveryCheckpoint,
    RecoveryCheckpointState,
    RecoveryState,
    Repository,
)
from cdr_core.settings import Settings

MOST_CHECKPOINTS = 200
LOOKED_AT = 20
"""Newest complete checkpoints whose export is looked for: as many as the page lists. Each is a request to the storage,
which may be far away, and an open page repeats it every second or two.
"""
MOST_COMMANDS = 20


def detail(
    rows: Repository, recovery_id: str, settings: Settings, exports: Exports, ledgers: Ledgers, *, may_act: bool
) -> dict[str, Any]:
    """Return one recovery. Its reads are several transactions, so parts of a running one may differ by a moment."""
    now = datetime.now(UTC)
    line = rows.recovery_line(recovery_id)
    recovery = rows.recovery(recovery_id)
    checkpoints = rows.checkpoints(recovery_id)
    log = rows.commit_log(recovery_id)
    sums = ledgers.sums(rows, recovery_id, line.phases)
    source = next((each for each in sums if each.phase is Phase.READ), None)
    counted = Phase.FILTER if any(each.phase is Phase.FILTER for each in sums) else Phase.READ
    flows = ledgers.flows(rows, recovery_id, counted) if source is not None else None
    drill = rows.drill_of(recovery_id)
    return views.line(line, now) | {
        "spec": recovery.spec,
        "options": {"on_corrupt": recovery.options.on_corrupt, "commit": recovery.options.commit},
        "workspace": recovery.workspace,
        "generation": recovery.generation,
        "replaced_by": recovery.replaced_by,
        "version": recovery.cdr_version,
        "trust_key": recovery.settings.trust_key,
        "checkpoint_interval": recovery.settings.checkpoint_interval or None,
        "drain_order": ",".join(recovery.options.drain_order) or None,
        "plan": msgspec.to_builtins(recovery.plan_summary),
        "rpo_s": views.age_of_source(recovery),
        "quarantined": _quarantined(line.phases),
        "drill": None if drill is None else drill.id,
        "records": None if source is None else source.records,
        "bytes": None if source is None else source.bytes,
        "flow": flow.picture(recovery.plan_summary, flows),
        "ledger": views.ledger(sums),
        "routing": views.routing(line.phases),
        "attempts": views.attempts(rows.attempts(recovery_id), now),
        "checkpoints": _checkpoints(checkpoints[-MOST_CHECKPOINTS:], settings, exports, recovery_id),
        "checkpoints_in_all": len(checkpoints),
        "commands": [
            views.command(row, settings.checkpoint_timeout) for row in rows.commands(recovery_id)[-MOST_COMMANDS:]
        ],
        "receipt": rows.has_receipt(recovery_id),
        "actions": {
            "take": _why_not_take(line.state, line.phases, may_act=may_act),
            "export": _why_not_export(recovery, published=bool(log), may_act=may_act),
            "start_over": _why_not_start_over(recovery, log, drill, may_act=may_act),
        },
    }


def _checkpoints(
    rows: Sequence[RecoveryCheckpoint], settings: Settings, exports: Exports, recovery_id: str
) -> list[dict[str, Any]]:
    """Return checkpoints, oldest first. A storage that does not answer is not asked again, and the rest is shown."""
    answer, trouble = [], ""
    for place, row in enumerate(reversed(rows)):
        exported = failed = None
        if row.state is RecoveryCheckpointState.COMPLETED and place < LOOKED_AT:
            where = (settings.export_root, recovery_id, row.checkpoint_id)
            try:
                exported = None if trouble else exports.state_of(*where)
            except CdrError as error:
                trouble = f"it is unknown whether it was exported: {error}"
            failed = exports.failure_of(*where) or trouble or None
        answer.append(views.checkpoint(row, exported) | {"export_error": failed})
    return answer[::-1]


def _quarantined(phases: tuple[Any, ...]) -> int:
    return int((phases[0].result or {}).get("quarantined", 0))


def _why_not_take(state: RecoveryState, phases: tuple[Any, ...], *, may_act: bool) -> str | None:
    """Return why no checkpoint can be taken now; ``None`` = it can."""
    if not may_act:
        return "You may view recoveries, but not act on them."
    if state.is_final:
        return f"The recovery is {state.lower()}; its checkpoints are no longer needed."
    drain = next(row for row in phases if row.name is Phase.DRAIN)
    if drain.state is PhaseState.DONE:
        return "The drain is over; its last checkpoint is complete."
    return None


def _why_not_export(recovery: Recovery, *, published: bool, may_act: bool) -> str | None:
    if not may_act:
        return "You may look at recoveries, but not act on them."
    if recovery.state.is_final:
        return f"The recovery is {recovery.state.lower()}; its spilled records are gone."
    if recovery.options.commit == PER_CHECKPOINT:
        return "It publishes with every checkpoint; an export would hold those records again."
    if published:
        return "It has begun to publish; an export would hold those records again."
    return None


def _why_not_start_over(
    recovery: Recovery, log: Sequence[CommitLogEntry], drill: Drill | None, *, may_act: bool
) -> str | None:
    """Return why it cannot be started over; ``None`` = it can, and the first task checks the target before
    it does so.
    """
    if not may_act:
        return "You may view recoveries, but not act on them."
    if drill is not None:
        return "A drill's recovery is not started over; start another drill."
    if recovery.state is RecoveryState.REPLACED:
        return "It was replaced already."
    if recovery.state is RecoveryState.DONE or any(entry.state is not CommitState.INTENT for entry in log):
        return "It has published records; starting over would publish them again."
    if recovery.options.drop_records:
        return f"It leaves records out, which the form cannot ask for; run: cdr resume {recovery.id} --replace"
    return None
