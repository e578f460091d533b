"""The chunks of one channel in a channel-state stream: the position of each payload."""

# mypy: disable-error-code="untyped-decorator, misc"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cdr_core.kernels.raw_memory import load_be32

HEADER_BYTES = 4
"""The stream's version."""
LENGTH_BYTES = 4

Longs = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def read_extents(
    source: npt.NDArray[np.uint8], offsets: Longs, base: int, size: int, version: int, starts: Longs, lengths: Longs
) -> bool:
    """Store position and length of the payload of the chunk at each offset; return whether everything is valid.

    The stream begins at ``source[base]`` and has ``size`` bytes, which are there. The caller has to find out what is
    invalid: this kernel is for the many small channels without damage.
    """
    if base < 0 or size < HEADER_BYTES or base + size > source.shape[0]:
        return False
    if load_be32(source, base) != version:
        return False
    reached = np.int64(HEADER_BYTES)
    for i in range(offsets.shape[0]):
        offset = offsets[i]
        if offset < reached or offset > size - LENGTH_BYTES:
            return False
        length: Any = np.int64(np.int32(load_be32(source, base + offset)))
        if length < 0 or length > size - LENGTH_BYTES - offset:
            return False
        starts[i] = base + offset + LENGTH_BYTES
        lengths[i] = length
        reached = offset + LENGTH_BYTES + length
    return True
