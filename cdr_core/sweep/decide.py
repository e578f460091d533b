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
    EXPIRED = "its recovery checkpoint has expired"
    LONG_OVER = "its recovery was over long ago, and the database keeps the receipt"


@dataclass(frozen=True, slots=True)
class Standing:
    """What the database says about a recovery.

    ``named`` = paths (files, or directories with all that is in them) that a row needs; ``released`` = files of spill
    sets that are not needed; ``kept`` = what stays even when the recovery is over, until that is long ago (``is_old``);
    ``lasting`` = what stays as long as the database knows the recovery, because nothing else has it;
    ``held`` = what is being read right now; ``expired`` = manifests of recovery checkpoints that are not kept any
    more; ``unclear`` = a manifest that could not be read, so that what it names is unknown.
    """

    epoch: int
    is_final: bool
    named: AbstractSet[str]
    released: AbstractSet[str]
    kept: AbstractSet[str]
    lasting: AbstractSet[str] = frozenset()
    unclear: str | None = None
    held: AbstractSet[str] = frozenset()
    expired: AbstractSet[str] = frozenset()
    is_old: bool = False


def judge(standing: Standing, epoch: int, path: str) -> Why | None:
    """Why a file of that attempt can go; ``None`` = it stays."""
    if standing.is_final:
        return _when_over(standing, path)
    if standing.unclear is not None:
        return None
    if path in standing.released and not _covers(standing.named, path):
        return Why.RELEASED
    if path in standing.expired and not _covers(standing.named, path):
        return Why.EXPIRED
    if epoch >= standing.epoch or _covers(standing.named, path):
        return None
    return Why.OLDER


def _when_over(standing: Standing, path: str) -> Why | None:
    if _covers(standing.held, path) or path in standing.lasting:
        return None
    if _covers(standing.kept, path):
        return Why.LONG_OVER if standing.is_old else None
    return Why.FINISHED


def _covers(names: AbstractSet[str], path: str) -> bool:
    """Whether the file, or a directory that it is in, is named; names are paths or addresses of objects."""
    while path and path not in names:
        path = path.rpartition("/")[0]
    return bool(path)
