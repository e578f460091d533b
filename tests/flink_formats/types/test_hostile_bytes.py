"""Damaged and malicious values: a clean error or a value, and never a look outside the record."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest

from cdr_core.flink.types import parse_type
from cdr_core.synthetic.encode import encode_value
from tests.flink_formats.types.batches import Batch
from tests.flink_formats.types.hostile import MUTATIONS, SEEDS, mutate, outcome


def placed(value: bytes, before: bytes, behind: bytes) -> Batch:
    data = np.frombuffer(before + value + behind, np.uint8)
    return data, np.array([len(before)], np.int64), np.array([len(before) + len(value)], np.int64)


@pytest.mark.parametrize("text", SEEDS, ids=lambda text: text[:20])
def test_mutated_values_give_a_clean_error_or_a_value(text: str) -> None:
    key, value = SEEDS[text]
    seed = encode_value(parse_type(text), value)
    dice = random.Random(20)
    clean = 0
    for number in range(MUTATIONS):
        mutated = mutate(seed, dice)
        replace = number % 2 == 0
        zeros = outcome(text, key, placed(mutated, bytes(64), bytes(64)), replace)
        # What lies around the record must make no difference.
        assert zeros == outcome(text, key, placed(mutated, b"\xff" * 3, b"\xff" * 9), replace)
        assert zeros == outcome(text, key, placed(mutated, b"\x01" * 8, b""), replace)
        assert all(part.startswith("FAULT 0 record 0 ") for part in zeros if part.startswith("FAULT"))
        clean += not zeros[0].startswith("FAULT")
    assert 0 < clean < MUTATIONS


GUARDED = """
import ctypes, mmap, random
import numpy as np
from tests.flink_formats.types.hostile import MUTATIONS, SEEDS, mutate, outcome
from cdr_core.synthetic.encode import encode_value
from cdr_core.flink.types import parse_type

page = mmap.PAGESIZE
area = mmap.mmap(-1, 6 * page)
view = np.frombuffer(area, np.uint8)
address = view.ctypes.data
libc = ctypes.CDLL(None, use_errno=True)
for guard in (0, 5):
    assert libc.mprotect(ctypes.c_void_p(address + guard * page), page, 0) == 0
readable = view[page : 5 * page]
for text, (key, value) in SEEDS.items():
    seed, dice = encode_value(parse_type(text), value), random.Random(7)
    for _ in range(MUTATIONS // 3):
        mutated = mutate(seed, dice)
        # All bytes there are belong to the record: one further in either direction is a segmentation fault.
        for data in (readable[: len(mutated)], readable[len(readable) - len(mutated) :]):
            data[:] = np.frombuffer(mutated, np.uint8)
            outcome(text, key, (data, np.array([0], np.int64), np.array([len(mutated)], np.int64)), True)
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages through Linux's mprotect")
def test_nothing_outside_the_data_is_read() -> None:
    run = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, timeout=280, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "done"), run.stderr[-2000:]
