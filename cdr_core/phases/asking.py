"""Asking a recovery for a checkpoint, as the shell and the page do: what is possible now, and what came of it."""

from __future__ import annotations

from cdr_core.errors import CdrError, NotReady, Refused
from cdr_core.metadata import Command, CommandState, Phase, PhaseState, RecoveryCheckpointState, Repository

CHECKPOINT = "checkpoint"
"""The kind of command that asks for one."""


def ask_for_checkpoint(repository: Repository, recovery: str, aligned: float | None = None) -> Command | int:
    """The command that was given to a running drain, or the number of the last checkpoint of a drain that is over.

    Before the drain it is not ready, after all it is refused.
    """
    row = repository.recovery(recovery)
    if row.state.is_final:
        raise Refused(f"recovery {recovery} is {row.state}, its recovery checkpoints are gone")
    drain = next(phase for phase in repository.phases(recovery) if phase.name is Phase.DRAIN)
    if drain.state is PhaseState.DONE:
        complete = [c for c in repository.checkpoints(recovery) if c.state is RecoveryCheckpointState.COMPLETED]
        return complete[-1].checkpoint_id
    if drain.state is not PhaseState.RUNNING:
        raise NotReady(f"recovery {recovery} does not drain, it is {row.state}", hint="ask again when it does")
    return repository.request(recovery, CHECKPOINT, {"aligned_timeout": aligned})


def answer_of(command: Command) -> int | None:
    """The checkpoint that answers the command, ``None`` while nobody has; a refusal is raised."""
    answer = dict(command.answer or {})
    if command.state is CommandState.DONE:
        return int(answer["checkpoint"])
    if command.state is CommandState.REFUSED:
        raise _refusal(command.recovery_id, str(answer.get("reason", "no reason given")), answer.get("not_ready"))
    return None


def _refusal(recovery: str, reason: str, not_ready: object) -> CdrError:
    if not_ready:
        return NotReady(f"recovery {recovery} is not ready: {reason}", hint="ask again while it drains")
    return CdrError(f"no recovery checkpoint of {recovery}: {reason}", hint="ask again")
