"""Values with changed bytes, and what becomes of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from cdr_core.flink.decode import BadValue, decode_values
from cdr_core.flink.decode.render import json_fields
from cdr_core.flink.keys import key_groups
from cdr_core.flink.types import parse_type
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
