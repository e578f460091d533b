"""Damaged and malicious values: a clean error or a value, and never a look outside the record."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cdr_core.flink.decode import BadValue, decode_values
from cdr_core.flink.decode.render import json_fields
from cdr_core.flink.keys import key_groups
from cdr_core.flink.types import parse_type
from cdr_core.synthetic.encode import encode_value
from tests.flink_formats.types.batches import Batch

MUTATIONS = 400
"""For each type."""

SQL = (
    "a INT, s STRING, d DECIMAL(30, 2), t TIMESTAMP(9), y BYTES, l ARRAY<STRING>, m MAP<STRING, INT>, "
    "r ROW<x TIME, z STRING>"
)
SEEDS: dict[str, tuple[str, Any]] = {
    "TUPLE<LONG, INT, LONG, STRING>": ("f3", [1, 2, 3, "some text ä€😀"]),
    "ROW<a INT, b STRING, c DOUBLE, d BOOLEAN, e BYTES, f CHAR, g ARRAY<SHORT>>": (
        "b",
        {"a": 1, "b": "x", "e": b"yz", "g": [1, 2]},
    ),
    "POJO<n DECIMAL_BIG, i BIGINT_BIG, t LOCALDATETIME, u INSTANT>": (
        "n",
        {"n": "-12.50", "i": str(-(2**90)), "t": "2024-02-29T10:11:12.5", "u": "2024-02-29T10:11:12Z"},
    ),
    "ARRAY<ARRAY<NULLABLE<TUPLE<STRING, NULLABLE<INT>>>>>": ("", [[["a", 1], None], None, []]),
    f"ROWDATA<{SQL}>": (
        "s",
        {
            "a": 7,
            "s": "a longer string",
            "d": "123456789012345678901234.50",
            "t": "2024-02-29T10:11:12.123456789",
            "y": b"short",
            "l": ["x", None, "a longer string"],
            "m": [("key", 1), ("another key", None)],
            "r": {"x": "10:11:12", "z": "ä"},
        },
    ),
    f"TUPLE<NULLABLE<ROWDATA<{SQL}>>, TIMESTAMP, OPAQUE>": (
        "f1",
        [{"s": "x"}, "2024-02-29T10:11:12.123456789Z", b"rest"],
    ),
}
WORDS = [
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\x80",
    b"\0\0\0\1",
]


def mutate(value: bytes, dice: random.Random) -> bytes:
    """One to three changes: a byte, a word, a cut, a doubled piece."""
    changed = bytearray(value)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(changed) + 1)
        match dice.randrange(6):
            case 0:
                changed[at : at + 1] = bytes([dice.randrange(256)])
            case 1:
                changed[at : at + 4] = dice.choice(WORDS)
            case 2:
                del changed[at:]
            case 3:
                del changed[at : at + dice.randint(1, 8)]
            case 4:
                changed[at:at] = changed[at : at + dice.randint(1, 16)]
            case _:
                changed[at : at + 1] = bytes([changed[at] ^ 1 << dice.randrange(8)]) if at < len(changed) else b"\0"
    return bytes(changed)


def placed(value: bytes, before: bytes, behind: bytes) -> Batch:
    data = np.frombuffer(before + value + behind, np.uint8)
    return data, np.array([len(before)], np.int64), np.array([len(before) + len(value)], np.int64)


def outcome(text: str, key: str, batch: Batch, replace: bool) -> tuple[str, str]:
    """What decoding and hashing one value give, as text; anything but BadValue goes on up."""
    description = parse_type(text)

    def decoded() -> str:
        result = decode_values(description, *batch, replace_invalid_text=replace)
        result.values.validate(full=True)
        return f"{json_fields(result.values)} {result.row_kind.to_pylist()} {result.replaced}"

    def group() -> str:
        return str(key_groups(description, [key], *batch, 128).tolist()) if key else ""

    return _attempt(decoded), _attempt(group)


def _attempt(call: Callable[[], str]) -> str:
    try:
        return call()
    except BadValue as fault:
        return f"FAULT {fault.record} {fault.what}"


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
from tests.flink_formats.types.test_hostile_bytes import MUTATIONS, SEEDS, mutate, outcome
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
