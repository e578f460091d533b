"""Stretches: neighbouring elements with one destination, and the runs that they make.

Elements of a channel follow each other without a gap, so a stretch begins where the one before it ends: of each only
the lane, the logical end and the position behind its last element are noted. That is three numbers a record, written
without reading any; starts, counts, and what is to become of elements that are no records follow when stretches are put
in the order of their lanes.
"""

# mypy: disable-error-code="untyped-decorator, misc"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from cdr_core.kernels.frames import LENGTH_BYTES
from cdr_core.kernels.raw_memory import address_of, load_le64, store_64

LANE, END, POSITION = 0, 1, 2
"""The lane of a stretch of records; a stretch of one other element has the number of lanes plus its tag."""
STRETCH_FIELDS = 3
STRETCH_BYTES = 8 * STRETCH_FIELDS
_CURSOR_BYTES = 16

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def note_stretches(
    ends: Longs, tags: npt.NDArray[np.int8], lanes: Longs, base: int, position: int, width: int, stretches: Longs
) -> int:
    """Stretches of a window's elements, whose lanes are known (−1 = no record); how many. One an element has room."""
    count, last = 0, np.int64(-1)
    for i in range(ends.shape[0]):
        lane = lanes[i]
        if lane < 0:
            last, lane = np.int64(-1), width + np.int64(tags[i])
        if lane != last:
            count += 1
            last = lane
        stretches[count - 1, LANE] = lane
        stretches[count - 1, END] = base + ends[i]
        stretches[count - 1, POSITION] = position + i + 1
    return count


@njit(cache=True, nogil=True)
def count_runs(stretches: Longs, carried: Bytes, most: Longs) -> None:
    """Add to ``most``, by lane, as many runs as the stretches can make."""
    width = carried.shape[0]
    for i in range(stretches.shape[0]):
        lane = stretches[i, LANE]
        if lane < width:
            most[lane] += 1
        else:
            for each in range(width):
                most[each] += carried[each, lane - width]


@njit(cache=True, nogil=True)
def place_runs(
    stretches: Longs,
    start: int,
    position: int,
    carried: Bytes,
    sizes: Longs,
    counts: Longs,
    cursors: Longs,
    columns: Longs,
) -> None:
    """Runs of consecutive stretches, in the order of their lanes; the first begins at ``start``, ``position``.

    The rows of ``columns`` are start, end (logical bytes, length fields included), first position, elements. By lane,
    ``cursors`` has the next run's place and the latest's end (−1 = there is none): a stretch that begins there
    makes it longer. An element that is no record goes to every lane that carries its tag.

    ``sizes`` is added to by lane: records and their raw bytes. ``counts`` is added to by tag, of other elements: a row
    for each lane, one of those that at least one lane was given, one of those that none was.
    """
    width, rows = carried.shape[0], address_of(columns)
    stride, at_lane = 8 * columns.shape[1], address_of(cursors)
    for i in range(stretches.shape[0]):
        lane, end, upto = stretches[i, LANE], stretches[i, END], stretches[i, POSITION]
        elements = upto - position
        if lane < width:
            sizes[lane, 0] += elements
            sizes[lane, 1] += end - start - LENGTH_BYTES * elements
            _extend(at_lane + _CURSOR_BYTES * lane, rows, stride, start, end, position, elements)
        else:
            tag, placed = lane - width, False
            for each in range(width):
                if carried[each, tag]:
                    counts[each, tag] += 1
                    placed = True
                    _extend(at_lane + _CURSOR_BYTES * each, rows, stride, start, end, position, elements)
            counts[width if placed else width + 1, tag] += 1
        start, position = end, upto


@njit(forceinline=True)
def _extend(cursor: int, rows: int, stride: int, start: int, end: int, position: int, elements: int) -> None:
    """Append one stretch to the lane of this cursor; cursor and rows are addresses."""
    at = np.int64(load_le64(cursor, 0))
    if np.int64(load_le64(cursor, 8)) == start:
        latest = rows + 8 * (at - 1)
        store_64(latest, stride, uint64(end))
        store_64(latest, 3 * stride, load_le64(latest, 3 * stride) + uint64(elements))
    else:
        fresh = rows + 8 * at
        store_64(fresh, 0, uint64(start))
        store_64(fresh, stride, uint64(end))
        store_64(fresh, 2 * stride, uint64(position))
        store_64(fresh, 3 * stride, uint64(elements))
        store_64(cursor, 0, uint64(at + 1))
    store_64(cursor, 8, uint64(end))
