"""Writes ``_metadata`` primitives: the counterpart of the cursor."""

from __future__ import annotations

import io
import struct
from typing import Final

from cdr_core.errors import Refused
from cdr_core.flink.metadata.modified_utf8 import encode
from cdr_core.flink.metadata.offsets import Offsets

LONGEST_UTF: Final = 0xFFFF
"""Bytes; the length field is a u16."""


class Sink:
    """Bytes that grow. Refuses numbers and strings that their fields cannot hold."""

    __slots__ = ("_out",)

    def __init__(self) -> None:
        self._out = io.BytesIO()

    def i8(self, value: int) -> None:
        self._integer(">b", value)

    def i32(self, value: int) -> None:
        self._integer(">i", value)

    def i64(self, value: int) -> None:
        self._integer(">q", value)

    def boolean(self, value: bool) -> None:
        self.i8(1 if value else 0)

    def raw(self, data: bytes) -> None:
        self._out.write(data)

    def blob(self, data: bytes) -> None:
        """Write an i32 length and the bytes."""
        self.i32(len(data))
        self.raw(data)

    def utf(self, text: str) -> None:
        """Write a string as Java's ``writeUTF`` does."""
        data = encode(text)
        if len(data) > LONGEST_UTF:
            raise Refused(
                f"a string of {len(data)} bytes does not fit into _metadata", hint=f"{LONGEST_UTF} is the most"
            )
        self._integer(">H", len(data))
        self.raw(data)

    def offsets(self, offsets: Offsets) -> None:
        """Write an i32 number and the offsets."""
        self.i32(len(offsets))
        self.raw(offsets.raw)

    def getvalue(self) -> bytes:
        """Return the bytes written so far."""
        return self._out.getvalue()

    def _integer(self, layout: str, value: int) -> None:
        try:
            self._out.write(struct.pack(layout, value))
        except struct.error:
            raise Refused(f"{value} does not fit its {struct.calcsize(layout)}-byte field of _metadata") from None
