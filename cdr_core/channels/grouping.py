"""Cutting a sequence of things into groups of bounded size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]


def group_ends(sizes: Longs, most: int, count: int) -> Longs:
    """Return where each group of neighbours ends: as soon as the next one would make it larger than ``most``, or after
    ``count`` of them. One that is larger is a group of its own.
    """
    total = np.cumsum(sizes)
    ends, begin = [], 0
    while begin < len(sizes):
        before = int(total[begin - 1]) if begin else 0
        end = int(np.searchsorted(total, before + most, side="right"))
        begin = min(max(end, begin + 1), begin + count, len(sizes))
        ends.append(begin)
    return np.array(ends, np.int64)
