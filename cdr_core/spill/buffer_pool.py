"""Memory for what is read from disk, used again when it is not in use any more.

Fresh memory is cleared by the system, page by page, before it can be filled: for a segment that takes as long as
reading it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

KEPT, LARGEST_KEPT = 4, 4 << 20
"""How many wait to be used again at most, and of how many bytes; one for a huge record is not kept."""


class Buffers:
    """Gives out arrays of any size; who holds one, or a part of one, holds its memory. For any thread."""

    def __init__(self) -> None:
        self._free: list[Bytes] = []

    def filled(self, size: int, fill: Callable[[memoryview], None]) -> Bytes:
        """A read-only array of ``size`` bytes that ``fill`` has filled."""
        memory = self._take(size)
        fill(memory.data[:size])
        # Parts of this array refer to it and not to the memory below it, because that is no array to them.
        array = np.frombuffer(memory.data, np.uint8, size)
        array.flags.writeable = False
        weakref.finalize(array, self._give_back, memory).atexit = False
        return array

    def _take(self, size: int) -> Bytes:
        try:
            memory = self._free.pop()
        except IndexError:
            return np.empty(size, np.uint8)
        return memory if len(memory) >= size else np.empty(size, np.uint8)

    def _give_back(self, memory: Bytes) -> None:
        if len(self._free) < KEPT and len(memory) <= LARGEST_KEPT:
            self._free.append(memory)
