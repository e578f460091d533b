"""Elements of an ambiguous channel, sorted where they lie in the read page.

The page is filled, the whole elements in it are sorted in place, and the head of the element that goes on in the next
filling is copied out before the page is filled again. Nothing else is copied.
"""

# mypy: disable-error-code="untyped-decorator, misc"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from cdr_core.kernels.byte_copy import copy_bytes
from cdr_core.kernels.frames import FULL, LENGTH_BYTES, OK, SMALLEST_FRAME, copy_range
from cdr_core.kernels.key_sort import DOUBT, sort_elements
from cdr_core.kernels.raw_memory import load_be32

AT, FILLED, HELD, COUNT, POSITION, SPANNING = 0, 1, 2, 3, 4, 5
"""Progress of reading a channel: the logical byte up to which elements were sorted; bytes in the page; bytes that were
copied out before, as the head of the next element; stretches; the next element's position; elements that crossed a
border between two fillings.
"""
PROGRESS_FIELDS = 6

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def sort_pages(
    source: Bytes,
    chunk_starts: Longs,
    logical_starts: Longs,
    first: int,
    last: int,
    end: int,
    page: Bytes,
    held: Bytes,
    place: Longs,
    lane_of: npt.NDArray[np.int32],
    sums: npt.NDArray[np.uint64],
    stretches: Longs,
    progress: Longs,
) -> int:
    """Read on through the page as far as this part of the channel reaches, which is logical [first, last).

    ``end`` is where the stretch of the channel ends. ``held`` is where heads are copied to. The rest is as for
    ``sort_elements``. Returns how it ended: OK at the end of the part, FULL where stretches need more room, DOUBT in
    front of an element that is for the general way.
    """
    most = page.shape[0] // SMALLEST_FRAME + 2
    while stretches.shape[0] - progress[COUNT] >= most:
        begin = progress[AT] + progress[HELD] + progress[FILLED]
        count = min(page.shape[0] - progress[FILLED], min(last, end) - begin)
        if count > 0:
            copy_range(
                source, chunk_starts, logical_starts, begin - first, begin - first + count, page, progress[FILLED]
            )
            progress[FILLED] += count
        if progress[FILLED] < page.shape[0] and begin + count < end:
            return OK  # the page is filled up from the next part
        outcome = _empty_page(page, held, end, place, lane_of, sums, stretches, progress)
        if outcome != OK or progress[AT] + progress[HELD] == end:
            return outcome
    return FULL


@njit(cache=True, nogil=True)
def _empty_page(
    page: Bytes,
    held: Bytes,
    end: int,
    place: Longs,
    lane_of: npt.NDArray[np.int32],
    sums: npt.NDArray[np.uint64],
    stretches: Longs,
    progress: Longs,
) -> int:
    """Sort what is whole in the page and what becomes whole by it; hold the head that is left."""
    size, at = progress[FILLED], np.int64(0)
    if progress[HELD] > 0:
        at, outcome = _complete(page, size, held, end, place, lane_of, sums, stretches, progress)
        if outcome != OK:
            return outcome
    if progress[HELD] == 0:
        base = progress[AT] - at
        at, progress[COUNT], progress[POSITION], outcome = sort_elements(
            page, at, size, base, end, place, lane_of, sums, stretches, progress[COUNT], progress[POSITION]
        )
        progress[AT] = base + at
        if outcome != OK:
            return outcome
        if size - at > held.shape[0]:
            return DOUBT
        if at < size:
            copy_bytes(held, 0, page, at, size - at)
            progress[HELD] = size - at
    progress[FILLED] = 0
    return OK


@njit(cache=True, nogil=True)
def _complete(
    page: Bytes,
    size: int,
    held: Bytes,
    end: int,
    place: Longs,
    lane_of: npt.NDArray[np.int32],
    sums: npt.NDArray[np.uint64],
    stretches: Longs,
    progress: Longs,
) -> tuple[int, int]:
    """Append to the held head what the page has of its element; sort it once it is whole. (Bytes taken, outcome)."""
    head, at = progress[HELD], np.int64(0)
    if head < LENGTH_BYTES:
        at = min(LENGTH_BYTES - head, size)
        copy_bytes(held, head, page, 0, at)
        head += at
        progress[HELD] = head
        if head < LENGTH_BYTES:
            return at, OK
    whole = LENGTH_BYTES + np.int64(np.int32(load_be32(held, 0)))
    if whole <= LENGTH_BYTES or whole > held.shape[0]:
        return at, DOUBT
    more = min(whole - head, size - at)
    copy_bytes(held, head, page, at, more)
    progress[HELD] = head + more
    if head + more < whole:
        return at + more, OK
    _, progress[COUNT], progress[POSITION], outcome = sort_elements(
        held, 0, whole, progress[AT], end, place, lane_of, sums, stretches, progress[COUNT], progress[POSITION]
    )
    if outcome == OK:
        progress[AT] += whole
        progress[HELD] = 0
        progress[SPANNING] += 1  # only now: one that is left to the general way is counted there
    return at + more, outcome
