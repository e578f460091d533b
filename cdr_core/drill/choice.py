"""Which checkpoint a drill takes: a decision on what was found, the time and a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cdr_core.drill.plan import Choice
from cdr_core.errors import Unreadable


@dataclass(frozen=True, slots=True)
class Candidate:
    """A complete checkpoint: ``number`` is that of its directory ``chk-N``, ``modified`` when its metadata was
    written, which Flink does last.
    """

    directory: str
    number: int
    modified: datetime


def choose(candidates: Sequence[Candidate], choice: Choice, now: datetime, seed: int, place: str) -> Candidate:
    """The same candidates, time and seed give the same one. None at all is an error that names the place."""
    if not candidates:
        raise Unreadable(
            f"no complete checkpoint lies in {place}", hint="check the path, and that the job takes checkpoints"
        )
    if choice.within_s is None:
        return max(candidates, key=_newness)
    oldest = now - timedelta(seconds=choice.within_s)
    eligible = sorted((each for each in candidates if each.modified >= oldest), key=_newness)
    if not eligible:
        newest = max(candidates, key=_newness)
        age = (now - newest.modified).total_seconds()
        raise Unreadable(
            f"no checkpoint in {place} is as young as {choice.text} asks: the newest, {newest.directory}, "
            f"was written {age:,.0f} s ago",
            hint="look at the job, or widen the window",
        )
    # Not for secrets: for a choice that can be repeated.
    return random.Random(seed).choice(eligible)


def _newness(candidate: Candidate) -> tuple[datetime, int, str]:
    return candidate.modified, candidate.number, candidate.directory


def is_newer(candidate: Candidate, drilled: Sequence[tuple[str, str | None]]) -> bool:
    """Whether a checkpoint was written after all that were drilled: (directory, when it was written, in ISO) each."""
    if any(directory == candidate.directory for directory, _ in drilled):
        return False
    return all(modified is None or datetime.fromisoformat(modified) < candidate.modified for _, modified in drilled)
