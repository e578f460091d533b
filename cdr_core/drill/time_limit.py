"""When a drill is given up. Apart from the rest, because a verdict needs it and little else."""

from __future__ import annotations

from datetime import datetime

from cdr_core.errors import GivenUp
from cdr_core.metadata import Drill


def refuse_if_given_up(drill: Drill, now: datetime) -> None:
    """A drill that takes far longer than its plan allows starts nothing more."""
    if is_given_up(drill, now):
        raise GivenUp(
            f"drill {drill.id} is given up: it began {(now - drill.started_at).total_seconds():,.0f} s ago",
            hint="its verdict says what that means",
        )


def is_given_up(drill: Drill, now: datetime) -> bool:
    """Whether its time is over; clocks decide this one thing, and only for a rehearsal."""
    left = time_left(drill, now)
    return left is not None and left < 0


def time_left(drill: Drill, now: datetime) -> float | None:
    """Seconds until it is given up, negative afterwards; ``None`` = it never is."""
    give_up_s = drill.args.give_up_s
    return give_up_s - (now - drill.started_at).total_seconds() if give_up_s else None
