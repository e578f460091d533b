"""``cdr checkpoint``: a recovery checkpoint now, exported as a checkpoint in Flink's format on request."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdr_core.cli.common import JsonFlag, load_settings, open_repository, print_json
from cdr_core.cli.recoveries import RecoveryId
from cdr_core.errors import NotReady

if TYPE_CHECKING:
    from cdr_core.metadata import Command, Repository

POLL_SECONDS = 0.2
GRACE_SECONDS = 15.0
"""Seconds that the command waits for an answer beyond the checkpoint's own timeout."""
SILENT_SECONDS = 10.0
"""Seconds without an answer after which the command prints that it waits: a killed driver never answers."""


def checkpoint(
    recovery: RecoveryId,
    to: Annotated[
        str | None, typer.Option("--to", metavar="DIR", help="Export it as a checkpoint in Flink's format.")
    ] = None,
    aligned: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Let the data in flight pass first, for at most this long."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Take a recovery checkpoint while the recovery drains; it is kept until the recovery ends."""
    settings = load_settings()
    with open_repository(settings) as repository:
        from cdr_core.runtime.checkpoint_requests import ask_for_checkpoint

        if to is not None:
            from cdr_core.checkpoint_target.export import refuse_export

            refuse_export(repository, repository.recovery(recovery), to)
        timeout = settings.checkpoint_timeout
        asked = ask_for_checkpoint(repository, recovery, timeout, aligned)
        number = asked if isinstance(asked, int) else _wait(repository, recovery, asked, timeout)
        value: dict[str, Any] = {"recovery": recovery, "checkpoint": number, "state": "COMPLETED"}
        if to is not None:
            from cdr_core.checkpoint_target.export import export_checkpoint

            exported = export_checkpoint(repository, recovery, number, to)
            value |= {"directory": exported.directory, "records": exported.records, "bytes": exported.bytes}
    print_json(value) if as_json else typer.echo(_as_text(value))


def _wait(repository: Repository, recovery: str, command: Command, timeout: float) -> int:
    from cdr_core.runtime.checkpoint_requests import answer_of, waits_until

    began, announced, seconds = time.monotonic(), False, timeout + GRACE_SECONDS
    until = waits_until(command, timeout)
    if until is not None:
        typer.echo(f"cdr: the drain has not started; waiting until {until.astimezone():%H:%M:%S}", err=True)
    while (waited := time.monotonic() - began) < seconds:
        found = next(c for c in repository.commands(recovery) if c.id == command.id)
        number = answer_of(found)
        if number is not None:
            return number
        if until is not None and waits_until(found, timeout) is None:
            until, began = None, time.monotonic()  # the drain has accepted it, and has the checkpoint's timeout for it
        elif until is not None and datetime.now(UTC) >= until:
            repository.refuse_overdue(recovery, timeout)  # possibly no driver runs to refuse it
        elif until is None and waited > SILENT_SECONDS and not announced:
            announced = True
            why = f"cdr: no answer yet, waiting up to {seconds:.0f} s; if its driver is dead: cdr resume {recovery}"
            typer.echo(why, err=True)
        time.sleep(POLL_SECONDS)
    raise NotReady(f"no driver answered for recovery {recovery} in {seconds:.0f} s", hint="is its drain still running?")


def _as_text(value: dict[str, Any]) -> str:
    text = f"{value['recovery']}: recovery checkpoint {value['checkpoint']} is complete"
    if "directory" not in value:
        return text
    return f"{text}\n  exported  {value['directory']}  {value['records']:,} records, {value['bytes']:,} bytes"
