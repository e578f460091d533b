"""Where the next page goes: to memory, to disk, or to disk behind what waits there.

The three paths keep one order because a page may only pass through memory while nothing older lies on disk. The
decision knows nothing of pages, files or consumers: spill asks it for files in tiers, drain for what it has fetched.
"""

from __future__ import annotations

from enum import StrEnum


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
