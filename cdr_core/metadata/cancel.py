"""Cancelling: at once when nothing runs, otherwise by a request to the driver.

Refused as soon as the commit log has an entry: something is published, or may be, and CANCELLED would hide it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from cdr_core.errors import Refused
from cdr_core.metadata.attempts import abandon, running_attempts
from cdr_core.metadata.models import CommandRow, CommitLogRow, RecoveryRow
from cdr_core.metadata.models.base import utc_now
from cdr_core.metadata.rows import settle_pin
from cdr_core.metadata.states import CANCEL, CommandState, RecoveryState, move
from cdr_core.metadata.values import Json

OPEN_COMMANDS = (CommandState.REQUESTED, CommandState.ACCEPTED)


def cancel(session: Session, recovery: RecoveryRow, *, force: bool) -> CommandRow:
    """Leaves a command: DONE when the recovery is cancelled now, REQUESTED when its runner must do it."""
    commands = select(CommandRow).where(CommandRow.recovery_id == recovery.id, CommandRow.kind == CANCEL)
    last = session.scalars(commands.order_by(CommandRow.id.desc()).limit(1)).first()
    if recovery.state is RecoveryState.CANCELLED and last is not None:
        return last
    refuse_to_cancel(session, recovery)
    if last is None or last.state not in OPEN_COMMANDS:
        last = CommandRow(recovery_id=recovery.id, kind=CANCEL, args={}, state=CommandState.REQUESTED)
        session.add(last)
        session.flush()
    if force or not running_attempts(session, recovery.id):
        cancel_now(session, recovery)
    return last


def cancelled_by_request(session: Session, recovery: RecoveryRow) -> bool:
    """Carries out a cancel that its runner did not live to see; whether the recovery is cancelled now."""
    if recovery.state is RecoveryState.CANCELLED:
        return True
    waiting = [command for command in open_commands(session, recovery.id) if command.kind == CANCEL]
    if not waiting:
        return False
    try:
        refuse_to_cancel(session, recovery)
    except Refused as refusal:
        close_commands(waiting, CommandState.REFUSED, {"reason": str(refusal)})
        return False
    cancel_now(session, recovery)
    return True


def refuse_to_cancel(session: Session, recovery: RecoveryRow) -> None:
    if recovery.state is RecoveryState.DONE:
        raise Refused(f"recovery {recovery.id} is done and cannot be cancelled")
    if recovery.state is RecoveryState.REPLACED:
        raise Refused(
            f"recovery {recovery.id} was replaced by {recovery.replaced_by}",
            hint=f"run: cdr cancel {recovery.replaced_by}",
        )
    entry = session.scalars(select(CommitLogRow).where(CommitLogRow.recovery_id == recovery.id).limit(1)).first()
    if entry is not None:
        raise Refused(
            f"recovery {recovery.id} cannot be cancelled: its commit {entry.commit_id} is {entry.state} in the log, "
            "so output is published or may be",
            hint=f"run: cdr resume {recovery.id}",
        )


def cancel_now(session: Session, recovery: RecoveryRow) -> None:
    """The recovery is CANCELLED; the epoch rises, so that a process that still lives is fenced."""
    abandon(session, recovery.id, "cancelled")
    recovery.state = move(recovery.state, RecoveryState.CANCELLED)
    recovery.epoch += 1
    commands = open_commands(session, recovery.id)
    mine = [command for command in commands if command.kind == CANCEL]
    others = [command for command in commands if command.kind != CANCEL]
    close_commands(mine, CommandState.DONE, {"state": str(recovery.state)})
    close_commands(others, CommandState.REFUSED, {"reason": "the recovery was cancelled"})
    settle_pin(session, recovery.source_checkpoint_id)


def open_commands(session: Session, recovery_id: str) -> Sequence[CommandRow]:
    return session.scalars(
        select(CommandRow)
        .where(CommandRow.recovery_id == recovery_id, CommandRow.state.in_(OPEN_COMMANDS))
        .order_by(CommandRow.id)
    ).all()


def close_commands(commands: Sequence[CommandRow], state: CommandState, answer: Json) -> None:
    for command in commands:
        command.state = move(command.state, state)
        command.answer = dict(answer)
        command.answered_at = utc_now()
