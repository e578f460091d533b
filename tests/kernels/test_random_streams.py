"""Streams of kernels are those of NumPy, so that a seed gives the bytes that it always gave."""

# mypy: disable-error-code="type-var, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from numba import njit

from cdr_core.kernels.random_streams import STREAM_WORDS, entropy_words, next_below, next_float, seed_stream


@njit
def draw(stream: npt.NDArray[np.uint64], limits: npt.NDArray[np.int64], drawn: npt.NDArray[np.float64]) -> None:
    for i in range(len(limits)):
        drawn[i] = next_below(stream, limits[i]) if limits[i] else next_float(stream)


@pytest.mark.parametrize("entropy", [(0,), (7, 2), (7, 0, 999, 12), (2**32, 0, 1, 2), (2**70 + 5, 3, 2**31, 4, 5)])
def test_a_stream_draws_what_numpy_draws(entropy: tuple[int, ...]) -> None:
    numpys = np.random.default_rng(list(entropy))
    # Limits right above a power of two refuse nearly half of the words; 1 draws nothing, 0 stands for a fraction.
    limits = np.random.default_rng(1).choice([0, 1, 2, 3, 100, 32768, 2**31 + 1, 2**32 - 1], 5000)
    expected = [float(numpys.integers(0, limit)) if limit else numpys.random() for limit in limits.tolist()]
    stream, drawn = np.empty(STREAM_WORDS, np.uint64), np.empty(len(limits))
    seed_stream(stream, entropy_words(*entropy))
    draw(stream, limits, drawn)
    assert drawn.tolist() == expected
