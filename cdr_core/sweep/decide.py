"""Whether a file is a leftover: a decision on facts, without looking at any disk.

Everything not provably useless stays. A file is judged only below ``TIER-or-WORKSPACE/RECOVERY/eEPOCH`` of a recovery
that the database knows; of that, what any row still names stays, and so does whatever a running attempt may be writing.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum


class Why(StrEnum):
    """Why a file is a leftover."""

    RELEASED = "the last grant on its spill set is gone"
    FINISHED = "its recovery is over"
    OLDER = "an older attempt left it, and no row names it"


@dataclass(frozen=True, slots=True)
class Standing:
    """What the database says about a recovery.

    ``named`` = paths (files, or directories with all that is in them) that a row needs; ``released`` = files of spill
    sets that nobody needs; ``kept`` = what stays even when the recovery is over; ``unclear`` = a manifest that could
    not be read, so that nobody knows what it names.
    """

    epoch: int
    is_final: bool
    named: AbstractSet[str]
    released: AbstractSet[str]
    kept: AbstractSet[str]
    unclear: str | None = None


def judge(standing: Standing, epoch: int, path: str) -> Why | None:
    """Why a file of that attempt can go; ``None`` = it stays."""
    if standing.is_final:
        return None if _covers(standing.kept, path) else Why.FINISHED
    if standing.unclear is not None:
        return None
    if path in standing.released and not _covers(standing.named, path):
        return Why.RELEASED
    if epoch >= standing.epoch or _covers(standing.named, path):
        return None
    return Why.OLDER


def _covers(names: AbstractSet[str], path: str) -> bool:
    """Whether the file, or a directory that it is in, is named; names are paths or addresses of objects."""
    while path and path not in names:
        path = path.rpartition("/")[0]
    return bool(path)
