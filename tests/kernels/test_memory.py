"""Loads, stores and addresses inside kernels."""

# mypy: disable-error-code="untyped-decorator, misc, type-var, call-arg, index"

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError

from cdr_core.kernels.raw_memory import address_of, load_be32, load_byte, load_le64, store_64


@njit
def _first_words(data: object) -> tuple[int, int, int, int]:
    memory = address_of(data)
    return load_byte(memory, 1), load_be32(memory, 0), load_le64(memory, 1), load_be32(data, 0)


@njit
def _put(words: object, word: int) -> None:
    store_64(address_of(words), 8, np.uint64(word))


def test_an_address_leads_to_the_same_bytes_as_the_array() -> None:
    data = np.arange(1, 17, dtype=np.uint8)
    plain = data.tobytes()
    assert _first_words(data) == (
        2,
        int.from_bytes(plain[:4], "big"),
        int.from_bytes(plain[1:9], "little"),
        int.from_bytes(plain[:4], "big"),
    )
    assert _first_words(data[4:])[0] == 6, "a part of an array begins where it begins"


def test_a_word_is_stored_where_it_belongs_and_nowhere_else() -> None:
    words = np.zeros(3, np.uint64)
    _put(words, 7)
    assert words.tolist() == [0, 7, 0]


def test_memory_with_gaps_has_no_address() -> None:
    """Whoever has an address counts on one element right behind the other."""
    with pytest.raises(TypingError):
        _first_words(np.arange(16, dtype=np.uint8)[::2])
