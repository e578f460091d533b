"""The fingerprint of one record by the kernels' own code."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from cdr_core.kernels.fingerprint import hash_words
from cdr_core.kernels.raw_memory import address_of


@njit(nogil=True)
def record_hash(data: npt.NDArray[np.uint8], start: int, end: int) -> tuple[int, int]:
    """Return both hash words of ``data[start:end]``; the caller has checked the bounds."""
    words: tuple[int, int] = hash_words(address_of(data), start, end)
    return words
