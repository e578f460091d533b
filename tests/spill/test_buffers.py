"""Memory for segments is used again, but never while somebody looks at what is in it."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest

from cdr_core.spill.buffer_pool import LARGEST_KEPT, Buffers


def filled(buffers: Buffers, size: int, value: int) -> np.ndarray:
    def fill(target: memoryview) -> None:
        target[:] = bytes([value]) * size

    return buffers.filled(size, fill)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_used_again_when_nobody_looks_at_it() -> None:
    buffers = Buffers()
    first = filled(buffers, 100_000, 1)
    place = address(first)
    del first
    assert address(filled(buffers, 90_000, 2)) == place


@pytest.mark.parametrize("part", [slice(12, None), slice(50, 60)])
def test_who_holds_a_part_holds_its_memory(part: slice) -> None:
    buffers = Buffers()
    held = filled(buffers, 1000, 1)[part][1:]
    gc.collect()
    for value in range(2, 9):
        filled(buffers, 1000, value)
    assert set(held.tolist()) == {1}


def test_whatever_is_held_and_let_go_stays_what_it_was() -> None:
    buffers, draw = Buffers(), random.Random(4)
    held: list[tuple[int, np.ndarray]] = []
    for number in range(500):
        value = number % 251
        held.append((value, filled(buffers, draw.randrange(1, 5000), value)[draw.randrange(3) :]))
        if len(held) > draw.randrange(1, 30):
            del held[draw.randrange(len(held))]
        assert all((array == value).all() for value, array in held)


def test_what_was_filled_cannot_be_changed_and_a_huge_buffer_is_not_kept() -> None:
    buffers = Buffers()
    with pytest.raises(ValueError, match="read-only"):
        filled(buffers, 10, 1)[0] = 2
    filled(buffers, LARGEST_KEPT + 1, 1)
    assert all(len(memory) <= LARGEST_KEPT for memory in buffers._free)
