"""The selection of frames by lane in its plainest form, against which the passes of the pipeline are held."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit


@njit(nogil=True)
def select_runs(
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    tags: npt.NDArray[np.int8],
    lanes: npt.NDArray[np.int64],
    carried: npt.NDArray[np.uint8],
    base: int,
    first_position: int,
    counts: npt.NDArray[np.int64],
    run_lane: npt.NDArray[np.int64],
    run_start: npt.NDArray[np.int64],
    run_end: npt.NDArray[np.int64],
    run_position: npt.NDArray[np.int64],
    run_count: npt.NDArray[np.int64],
) -> int:
    """Merge neighbouring frames of one lane into runs of the logical byte range [start, end), length fields included.

    A record goes to its lane. An element of another kind (lane −1) goes to every lane that carries its tag. ``base`` is
    the logical offset of ``data[0]``; positions count elements of the virtual channel. Returns how many runs there are:
    at most one a record, and one a lane and other element, which the caller has made room for.

    ``counts`` is added to, by tag: a row for each lane, of the other elements it was given; one of those that at least
    one lane was given, one of those that none was.
    """
    width = carried.shape[0]
    latest = np.full(width, -1, np.int64)
    runs = 0
    for i in range(starts.shape[0]):
        first, last = lanes[i], lanes[i]
        tag = tags[i]
        if lanes[i] < 0:
            first, last = 0, width - 1
        placed = False
        for lane in range(first, last + 1):
            if lanes[i] < 0:
                if carried[lane, tag] == 0:
                    continue
                counts[lane, tag] += 1
                placed = True
            run = latest[lane]
            if run >= 0 and run_end[run] == base + starts[i] - 4:
                run_end[run] = base + ends[i]
                run_count[run] += 1
                continue
            run_lane[runs] = lane
            run_start[runs] = base + starts[i] - 4
            run_end[runs] = base + ends[i]
            run_position[runs] = first_position + i
            run_count[runs] = 1
            latest[lane] = runs
            runs += 1
        if lanes[i] < 0:
            counts[width if placed else width + 1, tag] += 1
    return runs
