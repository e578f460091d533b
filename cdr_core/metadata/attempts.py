"""Taking the recovery: one epoch per attempt, and everything older loses its voice in the same transaction."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cdr_core.errors import Fenced, PhaseRefused
from cdr_core.metadata.models import AttemptRow, PhaseRow, RecoveryCheckpointRow, RecoveryRow
from cdr_core.metadata.models.base import utc_now
from cdr_core.metadata.states import AttemptState, Phase, PhaseState, RecoveryCheckpointState, move
from cdr_core.metadata.values import Runner


def begin(session: Session, recovery: RecoveryRow, phase: Phase, runner: Runner) -> AttemptRow | None:
    """The new attempt, whose epoch is the recovery's; ``None`` when the phase is DONE, which takes no epoch.

    The recovery's row is locked. Refuses a try older than one already seen, and a phase whose predecessor is not DONE.
    """
    row = session.get_one(PhaseRow, (recovery.id, phase))
    if row.state is PhaseState.DONE:
        return None
    _refuse_older_try(session, recovery.id, runner)
    _refuse_early(session, recovery.id, phase)
    abandon(session, recovery.id, "a newer attempt took over")
    recovery.epoch += 1
    recovery.state = move(recovery.state, phase.running_state)
    recovery.error = None
    start_phase(row)
    attempt = AttemptRow(
        recovery_id=recovery.id,
        epoch=recovery.epoch,
        phase=phase,
        run=runner.run,
        task=runner.task,
        try_number=runner.try_number,
        host=runner.host,
        pid=runner.pid,
        state=AttemptState.RUNNING,
        started_at=utc_now(),
    )
    session.add(attempt)
    session.flush()
    return attempt


def start_phase(row: PhaseRow) -> None:
    row.state = move(row.state, PhaseState.RUNNING)
    row.started_at = row.started_at or utc_now()
    row.ended_at = row.running = None


def running_attempts(session: Session, recovery_id: str) -> Sequence[AttemptRow]:
    return session.scalars(
        select(AttemptRow).where(AttemptRow.recovery_id == recovery_id, AttemptRow.state == AttemptState.RUNNING)
    ).all()


def abandon(session: Session, recovery_id: str, reason: str) -> None:
    """Ends what older attempts left open: they are FENCED, their phase FAILED, their pending checkpoints ABORTED.

    What they finished stays; grants of theirs that are not durable are void by their epoch alone.
    """
    for attempt in running_attempts(session, recovery_id):
        end_attempt(attempt, AttemptState.FENCED, reason)
        phase = session.get_one(PhaseRow, (recovery_id, attempt.phase))
        if phase.state is PhaseState.RUNNING:
            phase.state = move(phase.state, PhaseState.FAILED)
    pending = select(RecoveryCheckpointRow).where(
        RecoveryCheckpointRow.recovery_id == recovery_id,
        RecoveryCheckpointRow.state == RecoveryCheckpointState.TRIGGERED,
    )
    for checkpoint in session.scalars(pending):
        checkpoint.state = move(checkpoint.state, RecoveryCheckpointState.ABORTED)
        checkpoint.reason = reason
        checkpoint.ended_at = utc_now()


def end_attempt(attempt: AttemptRow, state: AttemptState, error: str | None) -> None:
    attempt.state = move(attempt.state, state)
    attempt.error = error
    attempt.ended_at = utc_now()


def _refuse_older_try(session: Session, recovery_id: str, runner: Runner) -> None:
    # The same try again is let through: a worker that was restarted repeats it, and its twin is fenced by the epoch.
    newest = session.scalars(
        select(func.max(AttemptRow.try_number)).where(
            AttemptRow.recovery_id == recovery_id, AttemptRow.run == runner.run, AttemptRow.task == runner.task
        )
    ).one()
    if newest is not None and newest > runner.try_number:
        raise Fenced(
            f"try {runner.try_number} of {runner.task} in {runner.run} comes too late: "
            f"try {newest} has taken recovery {recovery_id}"
        )


def _refuse_early(session: Session, recovery_id: str, phase: Phase) -> None:
    before = phase.predecessor
    if before is None:
        return
    state = session.get_one(PhaseRow, (recovery_id, before)).state
    if state is not PhaseState.DONE:
        raise PhaseRefused(
            f"phase {phase} cannot start: {before} is not done ({state}) in recovery {recovery_id}",
            hint=f"run: cdr phase {before} {recovery_id}",
        )
