"""Records of every kind of key."""

from __future__ import annotations

import struct
from typing import Any

from cdr_core.flink.types import parse_type
from cdr_core.synthetic.encode import encode_value

TYPES: dict[str, tuple[str, Any]] = {
    "LONG": ("TUPLE<LONG, STRING>", lambda key, rest: (key, rest)),
    "INT": ("TUPLE<LONG, INT, STRING>", lambda key, rest: (7, key, rest)),
    "STRING": ("TUPLE<INT, STRING, STRING>", lambda key, rest: (7, key, rest)),
    "BIGINT": ("ROWDATA<a INT, k BIGINT, s STRING>", lambda key, rest: {"a": 7, "k": key, "s": rest}),
    "SMALLINT": ("ROWDATA<k SMALLINT, s STRING>", lambda key, rest: {"k": key, "s": rest}),
}


NAMES = {"LONG": "f0", "INT": "f1", "STRING": "f1", "BIGINT": "k", "SMALLINT": "k"}


def record(kind: str, key: Any, rest: str = "rest", time: int | None = None) -> bytes:
    text, fields = TYPES[kind]
    tag = b"\x01" if time is None else b"\x00" + struct.pack(">q", time)
    return tag + encode_value(parse_type(text), fields(key, rest))
