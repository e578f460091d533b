"""Where the next page goes: to memory, to disk, or to disk behind what waits there.

The three paths keep one order because a page may only pass through memory while nothing older lies on disk. The
decision knows nothing of pages, files or consumers: spill asks it for files in tiers, drain for what it has fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]


class Route(StrEnum):
    """MEMORY = hand it over at once; DISK = the first page that has to wait; REPLAY = append it to the disk, then hand
    over from the disk's head while there is room.
    """

    MEMORY = "memory"
    DISK = "disk"
    REPLAY = "replay"

    @property
    def appends(self) -> bool:
        """Whether the page is written to disk."""
        return self is not Route.MEMORY


def route(*, disk_non_empty: bool, room: bool) -> Route:
    """The path of the next page. What lies on disk always wins: room in memory never lets a page overtake it."""
    if disk_non_empty:
        return Route.REPLAY
    return Route.MEMORY if room else Route.DISK


ROUTING = "routing"
"""In the columns of a cut: :class:`Routing` up to it."""


@dataclass(slots=True)
class Routing:
    """Bytes of elements, by the way they took. ``by_reference`` were delivered from the source in place; what reached
    the output was ``handed_over`` without having been on a disk of cdr, or ``replayed`` from one; ``spilled`` went to
    the scratch disk of a drain.
    """

    by_reference: int = 0
    handed_over: int = 0
    spilled: int = 0
    replayed: int = 0

    def to_column(self) -> Longs:
        return np.array([self.by_reference, self.handed_over, self.spilled, self.replayed], np.int64)

    @classmethod
    def from_column(cls, column: Longs | None) -> Routing:
        return cls() if column is None else cls(*column.tolist())
