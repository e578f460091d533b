"""Which way a recovery runs: in five phases or in one pass. What was done one way is not gone on with the other way."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from cdr_core.errors import Refused, SettingsRefused
from cdr_core.metadata import Phase, PhaseState
from cdr_core.phases.unit import step_of

if TYPE_CHECKING:
    from cdr_core.metadata import Repository
    from cdr_core.settings import Settings

COUNTERS = "one_pass"
"""What the result of a unit of one pass holds and no other does: how its bytes went."""


class Way(StrEnum):
    """How a recovery runs."""

    PHASES = "in five phases"
    ONE_PASS = "in one pass"


def begun(repository: Repository, recovery_id: str) -> Way | None:
    """The way in which work was recorded; ``None`` while none was, and after the drain, where both ways meet."""
    states = {row.name: row.state for row in repository.phases(recovery_id)}
    if states[Phase.DRAIN] is PhaseState.DONE:
        return None
    done = [row for row in repository.units(recovery_id, Phase.READ) if not step_of(row.unit)]
    if done:
        return Way.ONE_PASS if COUNTERS in done[0].result else Way.PHASES
    return Way.PHASES if states[Phase.READ] is PhaseState.DONE else None


def refuse_mixing(repository: Repository, recovery_id: str, way: Way) -> None:
    """Raise if the recovery has done something the other way."""
    before = begun(repository, recovery_id)
    if before is None or before is way:
        return
    again = "with --one-pass" if before is Way.ONE_PASS else "without --one-pass"
    raise Refused(
        f"recovery {recovery_id} was begun {before} and cannot go on {way}",
        hint=f"run cdr recover {again}, or choose another target",
    )


def spills(settings: Settings) -> bool:
    """Whether one pass spills: only with both flags."""
    return settings.recover_output_downstream and settings.checkpoint_during_recovery


def refuse_without_tiers(settings: Settings) -> None:
    """A consumer that waits must not stop the reader, and what was read has to lie somewhere."""
    if spills(settings) and not settings.spill_dirs:
        raise SettingsRefused(
            "one pass spills with CDR_RECOVER_OUTPUT_DOWNSTREAM and CDR_CHECKPOINT_DURING_RECOVERY on, "
            "and no spill directory is configured",
            hint="set CDR_SPILL_DIRS, or switch one of the two off to deliver in memory only",
        )
