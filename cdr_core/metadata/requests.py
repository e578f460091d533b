"""Requests for a drain that may not have started: they wait, one row for each, and are given up by their age."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy.orm import Session

from cdr_core.errors import NotReady
from cdr_core.metadata.attempts import running_attempts
from cdr_core.metadata.cancel import close_commands, open_commands
from cdr_core.metadata.models import CommandRow, PhaseRow
from cdr_core.metadata.models.base import utc_now
from cdr_core.metadata.states import CANCEL, CommandState, Phase, PhaseState
from cdr_core.metadata.values import NOT_READY, Json


def request(session: Session, recovery_id: str, kind: str, args: Json) -> CommandRow:
    """The row of the request. A request that is repeated before a drain takes it has the row that it had.

    Raise ``NotReady`` if the drain is over and will not take it.
    """
    if session.get_one(PhaseRow, (recovery_id, Phase.DRAIN)).state is PhaseState.DONE:
        raise NotReady(f"the drain of recovery {recovery_id} is over", hint="its last checkpoint is complete")
    for row in open_commands(session, recovery_id):
        if (row.state, row.kind, row.args) == (CommandState.REQUESTED, kind, dict(args)):
            return row
    drains = any(attempt.phase is Phase.DRAIN for attempt in running_attempts(session, recovery_id))
    why = None if drains else {"reason": "the drain has not started", NOT_READY: True}
    row = CommandRow(recovery_id=recovery_id, kind=kind, args=dict(args), state=CommandState.REQUESTED, answer=why)
    session.add(row)
    session.flush()
    return row


def refuse_overdue(session: Session, recovery_id: str, timeout: float) -> None:
    """Refuse the requests for which no drain began within ``timeout`` seconds. A drain that began in time takes its
    requests, however busy it is.
    """
    began = [row.started_at for row in running_attempts(session, recovery_id) if row.phase is Phase.DRAIN]
    before = (began[0] if began else utc_now()) - timedelta(seconds=timeout)
    waiting = [row for row in open_commands(session, recovery_id) if row.state is CommandState.REQUESTED]
    overdue = [row for row in waiting if row.kind != CANCEL and row.requested_at <= before]
    reason = f"no drain took the request within {timeout:g} s"
    close_commands(overdue, CommandState.REFUSED, {"reason": reason, NOT_READY: True})
