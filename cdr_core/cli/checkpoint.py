"""``cdr checkpoint``: a recovery checkpoint now, exported as a checkpoint in Flink's format if asked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdr_core.cli.recoveries import RecoveryId
from cdr_core.cli.shared import JsonFlag, load_settings, open_repository, print_json
from cdr_core.errors import CdrError, NotReady, Refused

if TYPE_CHECKING:
    from cdr_core.metadata import Command, Repository

POLL_SECONDS = 0.2
GRACE_SECONDS = 15.0
"""How much longer than the checkpoint's own timeout the shell waits for an answer."""


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
    """Take a recovery checkpoint of a draining recovery; it is kept until the recovery ends."""
    settings = load_settings()
    with open_repository(settings) as repository:
        number = _finished_drain(repository, recovery)
        if number is None:
            command = repository.request(recovery, "checkpoint", {"aligned_timeout": aligned})
            number = _wait(repository, recovery, command, settings.checkpoint_timeout + GRACE_SECONDS)
        value: dict[str, Any] = {"recovery": recovery, "checkpoint": number, "state": "COMPLETED"}
        if to is not None:
            from cdr_core.phases.export import export_checkpoint

            exported = export_checkpoint(repository, recovery, number, to)
            value |= {"directory": exported.directory, "records": exported.records, "bytes": exported.bytes}
    print_json(value) if as_json else typer.echo(_as_text(value))


def _finished_drain(repository: Repository, recovery: str) -> int | None:
    """The last checkpoint of a drain that is over; ``None`` while it runs. Before it: not ready, after all: refused."""
    from cdr_core.metadata import Phase, PhaseState, RecoveryCheckpointState

    row = repository.recovery(recovery)
    if row.state.is_final:
        raise Refused(f"recovery {recovery} is {row.state}, its recovery checkpoints are gone")
    drain = next(phase for phase in repository.phases(recovery) if phase.name is Phase.DRAIN)
    if drain.state is PhaseState.DONE:
        complete = [c for c in repository.checkpoints(recovery) if c.state is RecoveryCheckpointState.COMPLETED]
        return complete[-1].checkpoint_id
    if drain.state is not PhaseState.RUNNING:
        raise NotReady(f"recovery {recovery} does not drain, it is {row.state}", hint="ask again when it does")
    return None


def _wait(repository: Repository, recovery: str, command: Command, seconds: float) -> int:
    from cdr_core.metadata import CommandState

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answered = next(c for c in repository.commands(recovery) if c.id == command.id)
        if answered.state is CommandState.DONE:
            return int((answered.answer or {})["checkpoint"])
        if answered.state is CommandState.REFUSED:
            raise _refusal(recovery, dict(answered.answer or {}))
        time.sleep(POLL_SECONDS)
    raise NotReady(f"nobody answered for recovery {recovery} in {seconds:.0f} s", hint="is its drain still running?")


def _refusal(recovery: str, answer: dict[str, Any]) -> CdrError:
    reason = answer.get("reason", "no reason given")
    if answer.get("not_ready"):
        return NotReady(f"recovery {recovery} is not ready: {reason}", hint="ask again while it drains")
    return CdrError(f"no recovery checkpoint of {recovery}: {reason}", hint="ask again")


def _as_text(value: dict[str, Any]) -> str:
    text = f"{value['recovery']}: recovery checkpoint {value['checkpoint']} is complete"
    if "directory" not in value:
        return text
    return f"{text}\n  exported  {value['directory']}  {value['records']:,} records, {value['bytes']:,} bytes"
