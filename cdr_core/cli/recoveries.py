"""``cdr list``, ``cdr status``, ``cdr receipt``, ``cdr cancel``."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdr_core.cli.common import JsonFlag, load_settings, open_repository, print_json
from cdr_core.errors import Refused

if TYPE_CHECKING:
    from cdr_core.metadata import Repository

RecoveryId = Annotated[str, typer.Argument(metavar="RECOVERY", help="Id of the recovery.")]
BAR = 24


def list_recoveries(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many, newest first.")] = 50,
    as_json: JsonFlag = False,
) -> None:
    """List all recoveries, newest first."""
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
        typer.echo(f"{recovery.id:<15}  {recovery.state!s:<10}  {created}  {recovery.source.uri} → {recovery.target}")


def status(recovery: RecoveryId, as_json: JsonFlag = False) -> None:
    """Show the progress of a recovery."""
    with open_repository(load_settings()) as repository:
        value = status_of(repository, recovery)
    if as_json:
        print_json(value)
        return
    replaced = f" by {value['replaced_by']}" if value["replaced_by"] else ""
    typer.echo(f"{value['recovery']}  {value['state']}{replaced}  epoch {value['epoch']}")
    for phase in value["phases"]:
        typer.echo(f"  {phase['name']:<7} {_bar(phase)} {phase['state']}{_left(phase)}")
        for unit in phase["running"]:
            typer.echo(f"          unit {_unit(unit)}")
    for each in value["checkpoints"]:
        reason = f"  {each['reason']}" if each["reason"] else ""
        typer.echo(f"  recovery checkpoint {each['id']}  {each['state']}{reason}")
    if value["error"]:
        typer.echo(f"  {value['error']}")


def receipt(recovery: RecoveryId, as_json: JsonFlag = False) -> None:
    """Print the receipt of a published recovery."""
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
        cancelled = repository.recovery(recovery)
        state = str(cancelled.state)
        if state == "CANCELLED":
            from cdr_core.runtime.pin_file import unpin

            unpin(cancelled)
    waiting = "" if state == "CANCELLED" else ", its runner stops within seconds"
    print_json({"recovery": recovery, "state": state}) if as_json else typer.echo(f"{recovery}: {state}{waiting}")


def status_of(repository: Repository, recovery_id: str) -> dict[str, Any]:
    """Return a recovery's state, with the names of the API."""
    from cdr_core.metadata.progress import phase_status

    recovery, now = repository.recovery(recovery_id), datetime.now(UTC)
    return {
        "recovery": recovery.id,
        "state": str(recovery.state),
        "epoch": recovery.epoch,
        "source": recovery.source.uri,
        "target": recovery.target,
        "generation": recovery.generation,
        "replaced_by": recovery.replaced_by,
        "version": recovery.cdr_version,
        "error": recovery.error,
        "phases": [phase_status(row, now) for row in repository.phases(recovery_id)],
        "checkpoints": [
            {"id": c.checkpoint_id, "state": str(c.state), "epoch": c.epoch, "reason": c.reason}
            for c in repository.checkpoints(recovery_id)
        ],
    }


def _left(phase: dict[str, Any]) -> str:
    return "" if phase["eta_s"] is None else f", about {phase['eta_s']:.0f} s left"


def _unit(unit: dict[str, Any]) -> str:
    """Return one running unit as text; for spill and drain it is a new subtask."""
    whole = "" if unit["bytes_total"] is None else f" of {unit['bytes_total']:,}"
    return f"{unit['unit']}  {unit['records']:,} records, {unit['bytes']:,}{whole} bytes{_left(unit)}"


def _bar(phase: dict[str, Any]) -> str:
    if not phase["total"]:
        return "·" * BAR
    whole = phase["bytes_total"] or 0
    done = phase["bytes"] / whole if whole and phase["done"] < phase["total"] else phase["done"] / phase["total"]
    filled = int(BAR * min(done, 1.0))
    return "█" * filled + "·" * (BAR - filled) + f" {phase['done']}/{phase['total']} units"
