"""Taking a page of a virtual channel apart: its bytes leave the page and are framed, in one pass."""

# mypy: disable-error-code="untyped-decorator, misc"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from cdr_core.kernels.byte_copy import copy_bytes
from cdr_core.kernels.frames import OK, copy_range, scan_frames


@njit(cache=True, nogil=True)
def take_out(
    page: npt.NDArray[np.uint8],
    begin: int,
    end: int,
    batch: npt.NDArray[np.uint8],
    framed: int,
    filled: int,
    limit: int,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    tags: npt.NDArray[np.int8],
    count: int,
) -> tuple[int, int, int]:
    """Append ``page[begin:end]`` to ``batch[:filled]`` and frame what is whole by now; the caller has made room.

    ``batch[:framed]`` holds the ``count`` elements found so far; the rest is the head of the next one. ``limit`` is
    how many bytes the channel has from ``batch[0]``: a frame beyond it is cut short. Returns the new (elements, bytes
    framed, how the scan ended, as in `scan_frames`).
    """
    size = filled + end - begin
    copy_bytes(batch, filled, page, begin, end - begin)
    found, used, outcome = scan_frames(
        batch[framed:], size - framed, starts[count:], ends[count:], tags[count:], limit - framed
    )
    for i in range(count, count + found):
        starts[i] += framed
        ends[i] += framed
    return count + found, framed + used, outcome


@njit(cache=True, nogil=True)
def take_pages(
    source: npt.NDArray[np.uint8],
    chunk_starts: npt.NDArray[np.int64],
    logical_starts: npt.NDArray[np.int64],
    begin: int,
    fillings: int,
    page: npt.NDArray[np.uint8],
    batch: npt.NDArray[np.uint8],
    framed: int,
    filled: int,
    limit: int,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    tags: npt.NDArray[np.int8],
    count: int,
    spanning_from: int,
) -> tuple[int, int, int, int, int, int]:
    """Fill the page so many times from chunks of one source, logical ``begin`` on, and take each filling out.

    One call instead of two a page, which for pages of 32 KiB cost more than what they do. ``spanning_from`` is where
    in the batch the record begins that was last counted as spanning. Returns (elements, bytes framed, bytes filled, how
    the scan ended, records that began to span, ``spanning_from``).
    """
    size = page.shape[0]
    spanning, outcome = 0, OK
    for _ in range(fillings):
        copy_range(source, chunk_starts, logical_starts, begin, begin + size, page, 0)
        count, framed, outcome = take_out(page, 0, size, batch, framed, filled, limit, starts, ends, tags, count)
        begin += size
        filled += size
        if outcome != OK:
            break
        if framed < filled and framed != spanning_from:
            spanning += 1
            spanning_from = framed
    return count, framed, filled, outcome, spanning, spanning_from
