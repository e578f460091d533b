"""What users ask of a running recovery."""

from __future__ import annotations

from cdr_core.errors import Refused
from cdr_core.metadata import convert, requests
from cdr_core.metadata.cancel import close_commands, open_commands
from cdr_core.metadata.models import CommandRow
from cdr_core.metadata.states import CommandState, move
from cdr_core.metadata.transaction.scope import Scope
from cdr_core.metadata.values import Command, Json


class Commands(Scope):
    def take_commands(self, kind: str | None = None) -> tuple[Command, ...]:
        """Accepts what waits, of one ``kind`` if given, oldest first, and what a dead attempt accepted and left."""
        taken = []
        for row in open_commands(self._session, self.recovery_id):
            if (row.state is CommandState.ACCEPTED and row.epoch == self.epoch) or kind not in (None, row.kind):
                continue
            row.state = move(row.state, CommandState.ACCEPTED)
            row.epoch, row.answer = self.epoch, None
            taken.append(convert.command(row))
        return tuple(taken)

    def refuse_overdue(self, timeout: float) -> None:
        """See :func:`cdr_core.metadata.requests.refuse_overdue`."""
        requests.refuse_overdue(self._session, self.recovery_id, timeout)

    def answer_command(self, command_id: int, state: CommandState, answer: Json) -> None:
        """DONE or REFUSED, with what the user should know. An answered command is not answered again."""
        if state not in (CommandState.DONE, CommandState.REFUSED):
            raise Refused(f"{state} is no answer to command {command_id}")
        row = self._session.get(CommandRow, command_id)
        if row is None or row.recovery_id != self.recovery_id:
            raise Refused(f"recovery {self.recovery_id} has no command {command_id}")
        close_commands([row], state, answer)
