"""Sorts elements of an ambiguous channel by owner, where the key of every record lies at a known place.

The bytes pass through the one read page of the task and are examined in it. Memory: the page, 1 MiB for a record that
spans fillings of it, 24 bytes a stretch of elements that belong together; both of the latter are kept from one split to
the next.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdr_core.flink.read_page import ReadPage
from cdr_core.flink.virtual_channel import ChannelBytes
from cdr_core.kernels import element_runs, frames, key_sort_pages

Longs = npt.NDArray[np.int64]

HELD = 1024 * 1024
"""Bytes of the longest frame that is assembled here; a larger limit gains little."""


class Sorter:
    """Sorts split after split. Its memory is made when it is first used: most channels pass through."""

    def __init__(self, page: ReadPage) -> None:
        self._page = page
        self._held = np.empty(0, np.uint8)
        self._stretches = np.empty((0, element_runs.STRETCH_FIELDS), np.int64)

    def sort(
        self,
        channel: ChannelBytes,
        begin: int,
        end: int,
        position: int,
        place: Longs,
        lane_of: npt.NDArray[np.int32],
        sums: npt.NDArray[np.uint64],
    ) -> tuple[Longs, int, int]:
        """Return the stretches of the elements of the logical range [begin, end), the first of which is at
        ``position``.

        Also return offset and position of the first doubtful element, which the general reader has to handle; the end
        if there is none. The stretches are valid until the next call. ``sums`` are added to.
        """
        if not len(self._held):
            self._held = np.empty(HELD, np.uint8)
        progress = np.zeros(key_sort_pages.PROGRESS_FIELDS, np.int64)
        progress[key_sort_pages.AT], progress[key_sort_pages.POSITION] = begin, position
        memory, at = self._page.take(), begin
        try:
            while at < end:
                part, logical, first, last = channel.part_at(at)
                outcome = key_sort_pages.sort_pages(
                    part.source, part.chunk_starts, logical, first, last, end, memory, self._held, place, lane_of,
                    sums, self._stretches, progress,
                )  # fmt: skip
                if outcome == frames.FULL:
                    self._grow()
                elif outcome != frames.OK:
                    break
                at = int(progress[[key_sort_pages.AT, key_sort_pages.HELD, key_sort_pages.FILLED]].sum())
        finally:
            # The rest of the page was not examined; the general reader reads it again.
            self._page.give_back(int(progress[key_sort_pages.AT]) - begin)
        self._page.spanning += int(progress[key_sort_pages.SPANNING])
        found = self._stretches[: progress[key_sort_pages.COUNT]]
        return found, int(progress[key_sort_pages.AT]), int(progress[key_sort_pages.POSITION])

    def _grow(self) -> None:
        least = self._page.size // frames.SMALLEST_FRAME + 2
        grown = np.empty((2 * len(self._stretches) + least, element_runs.STRETCH_FIELDS), np.int64)
        grown[: len(self._stretches)] = self._stretches
        self._stretches = grown
