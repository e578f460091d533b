"""``cdr list``, ``cdr status``, ``cdr receipt``: looking at recoveries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdr_core.cli.shared import JsonFlag, load_settings, open_repository, print_json
from cdr_core.errors import Refused

if TYPE_CHECKING:
    from cdr_core.metadata import PhaseProgress, Repository

RecoveryId = Annotated[str, typer.Argument(metavar="RECOVERY", help="Id of the recovery.")]
BAR = 24


def list_recoveries(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many, newest first.")] = 50,
    as_json: JsonFlag = False,
) -> None:
    """All recoveries, newest first."""
    with open_repository(load_settings()) as repository:
        found = repository.recoveries(limit=limit)
        if as_json:
            for recovery in found:
                print_json(status_of(repository, recovery.id))
            return
    if not found:
        typer.echo("no recoveries yet")
    for recovery in found:
        created = recovery.created_at.strftime("%Y-%m-%d %H:%M:%S")
        typer.echo(f"{recovery.id}  {recovery.state!s:<10}  {created}  {recovery.source.uri} → {recovery.target}")


def status(recovery: RecoveryId, as_json: JsonFlag = False) -> None:
    """How far a recovery is."""
    with open_repository(load_settings()) as repository:
        value = status_of(repository, recovery)
    if as_json:
        print_json(value)
        return
    typer.echo(f"{value['recovery']}  {value['state']}  epoch {value['epoch']}")
    for phase in value["phases"]:
        typer.echo(f"  {phase['name']:<7} {_bar(phase)} {phase['state']}")
    if value["error"]:
        typer.echo(f"  {value['error']}")


def receipt(recovery: RecoveryId, as_json: JsonFlag = False) -> None:
    """The receipt of a published recovery."""
    with open_repository(load_settings()) as repository:
        value = repository.receipt(recovery)
        state = repository.recovery(recovery).state
    if value is None:
        raise Refused(f"recovery {recovery} has no receipt, it is {state}", hint=f"run: cdr status {recovery}")
    typer.echo(json.dumps(value) if as_json else json.dumps(value, indent=2))


def cancel(
    recovery: RecoveryId,
    force: Annotated[
        bool, typer.Option("--force", help="Do not wait for a runner that may be dead: fence it.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Stop a recovery for good; refused once something may have been published."""
    with open_repository(load_settings()) as repository:
        repository.cancel(recovery, force=force)
        state = str(repository.recovery(recovery).state)
    waiting = "" if state == "CANCELLED" else ", its runner stops within seconds"
    print_json({"recovery": recovery, "state": state}) if as_json else typer.echo(f"{recovery}: {state}{waiting}")


def status_of(repository: Repository, recovery_id: str) -> dict[str, Any]:
    """A recovery's state as the interface has it."""
    recovery = repository.recovery(recovery_id)
    return {
        "recovery": recovery.id,
        "state": str(recovery.state),
        "epoch": recovery.epoch,
        "source": recovery.source.uri,
        "target": recovery.target,
        "error": recovery.error,
        "phases": [_phase(row) for row in repository.phases(recovery_id)],
        "checkpoints": [{"id": c.checkpoint_id, "state": str(c.state)} for c in repository.checkpoints(recovery_id)],
    }


def _phase(row: PhaseProgress) -> dict[str, Any]:
    return {
        "name": str(row.name),
        "state": str(row.state),
        "done": row.units_done,
        "total": row.units_total,
        "records": row.records_done,
        "bytes": row.bytes_done,
        "eta_s": _eta(row),
    }


def _eta(row: PhaseProgress) -> float | None:
    """Seconds left if the rest takes as long as what is done took; unknown before the first unit."""
    if row.started_at is None or row.ended_at is not None or not row.units_done or row.units_total is None:
        return None
    from datetime import UTC, datetime

    elapsed = (datetime.now(UTC) - row.started_at).total_seconds()
    return round(elapsed * (row.units_total - row.units_done) / row.units_done, 1)


def _bar(phase: dict[str, Any]) -> str:
    if not phase["total"]:
        return "·" * BAR
    filled = int(BAR * phase["done"] // phase["total"])
    return "█" * filled + "·" * (BAR - filled) + f" {phase['done']}/{phase['total']} units"
