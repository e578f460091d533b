"""Asking a recovery for a checkpoint, as the shell and the page do: what is possible now, and what came of it."""

from __future__ import annotations

from datetime import datetime, timedelta

from cdr_core.errors import CdrError, NotReady
from cdr_core.metadata import NOT_READY, Command, CommandState, RecoveryCheckpointState, Repository

CHECKPOINT = "checkpoint"
"""The kind of command that asks for one."""


def ask_for_checkpoint(
    repository: Repository, recovery: str, timeout: float, aligned: float | None = None
) -> Command | int:
    """The command that the drain takes when it runs, or the number of the last checkpoint of a drain that is over.

    Refused when the recovery has ended.
    """
    repository.refuse_overdue(recovery, timeout)  # a request whose time is over must not be taken for this one
    try:
        return repository.request(recovery, CHECKPOINT, {"aligned_timeout": aligned})
    except NotReady:  # decided in one transaction, so a drain that ends meanwhile leaves no request behind
        complete = repository.checkpoints(recovery, RecoveryCheckpointState.COMPLETED)
        return complete[-1].checkpoint_id


def waits_until(command: Command, timeout: float) -> datetime | None:
    """When a request for which no drain has started is given up; ``None`` if it does not wait for that."""
    if command.state is not CommandState.REQUESTED or not (command.answer or {}).get(NOT_READY):
        return None
    return command.requested_at + timedelta(seconds=timeout)


def answer_of(command: Command) -> int | None:
    """The checkpoint that answers the command, ``None`` while there is none; a refusal is raised."""
    answer = dict(command.answer or {})
    if command.state is CommandState.DONE:
        return int(answer["checkpoint"])
    if command.state is CommandState.REFUSED:
        recovery, reason = command.recovery_id, answer.get("reason", "no reason given")
        if answer.get(NOT_READY):
            hint = f"ask again while it drains; if nothing runs: cdr resume {recovery}"
            raise NotReady(f"recovery {recovery} is not ready: {reason}", hint=hint)
        raise CdrError(f"no recovery checkpoint of {recovery}: {reason}", hint="ask again")
    return None
