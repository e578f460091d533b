"""The bytes of an object that hold channel state, cut into cells: S3 objects are fetched by whole cells, each once.

A handle lists where chunks begin, not where they end: a chunk reaches at most to the next one that any handle of the
checkpoint names, or to the end of its stream. So cells are cut where chunks begin, no chunk lies in two cells, and the
metadata alone decides the requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]

CELL: Final = 1024 * 1024
"""Bytes of a cell, about; more only where a single chunk is longer."""
EXACT: Final = 1
"""As the bytes of a cell: no chunk is joined with its neighbour."""
LONGEST_REQUEST: Final = 16 * 1024 * 1024
"""Bytes of one request for several cells: hides its latency, and is cheap to repeat."""
LONGEST_GAP: Final = 1024 * 1024
"""Unwanted bytes that are fetched along, because a second request would cost more."""


class Extent(NamedTuple):
    """A channel-state stream in an object, [begin, end), and the places of some chunks of it."""

    begin: int
    end: int
    chunks: Longs


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Cell i is [starts[i], ends[i]) of the object; they ascend and do not overlap."""

    starts: Longs
    ends: Longs

    def holding(self, positions: Longs) -> Longs:
        """Return the numbers of the cells in which these positions lie, ascending, each once."""
        numbers = np.searchsorted(self.starts, np.unique(positions), side="right") - 1
        return np.unique(numbers[numbers >= 0])


def cells_of(extents: Iterable[Extent], cell: int = CELL) -> Cells:
    """Return the cells of one object. Positions outside of their stream are left out: opening that
    channel refuses it.

    The first bytes of a stream are its header, so its begin counts as a chunk. With ``cell`` = ``EXACT`` every chunk is
    a cell, so that what is fetched for one channel holds nothing of another.
    """
    parts = list(extents)
    positions = np.concatenate([np.zeros(0, np.int64), *(np.append(e.begin, e.chunks) for e in parts)])
    limits = np.repeat([e.end for e in parts], [len(e.chunks) + 1 for e in parts]).astype(np.int64)
    inside = (positions >= 0) & (positions < limits)
    order = np.lexsort((-limits[inside], positions[inside]))
    positions, limits = positions[inside][order], limits[inside][order]
    first = np.append(True, positions[1:] != positions[:-1]) if len(positions) else np.zeros(0, bool)
    positions, limits = positions[first], limits[first]
    uppers = np.minimum(np.append(positions[1:], limits[-1:]), limits)
    if cell == EXACT:
        return Cells(positions, uppers)
    bounds = list(_joined(positions, uppers, cell))
    starts = np.array([begin for begin, _ in bounds], dtype=np.int64)
    return Cells(starts, np.array([end for _, end in bounds], dtype=np.int64))


def _joined(positions: Longs, uppers: Longs, cell: int) -> Iterator[tuple[int, int]]:
    """Yield neighbours joined until they make a cell; nothing is joined over bytes that belong to no stream."""
    breaks = np.append(np.flatnonzero(positions[1:] > uppers[:-1]), len(positions) - 1)
    at = 0
    while at < len(positions):
        full = int(np.searchsorted(uppers, positions[at] + cell))
        last = min(full, int(breaks[np.searchsorted(breaks, at)]))
        yield int(positions[at]), int(uppers[last])
        at = last + 1


def requests(
    cells: Cells, wanted: Longs, present: npt.NDArray[np.bool_], gap: int = LONGEST_GAP
) -> list[tuple[int, int]]:
    """Return runs of cells (first, last) to request, each by one request, so that all wanted ones are present.

    A gap up to ``gap`` is fetched along, a cell that is present never again.
    """
    runs: list[tuple[int, int]] = []
    for number in wanted[~present[wanted]].tolist():
        if runs and _fits(cells, present, runs[-1], number, gap):
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


def _fits(cells: Cells, present: npt.NDArray[np.bool_], run: tuple[int, int], number: int, gap: int) -> bool:
    first, last = run
    return bool(
        cells.starts[number] - cells.ends[last] <= gap
        and cells.ends[number] - cells.starts[first] <= LONGEST_REQUEST
        and not present[last + 1 : number].any()
    )
