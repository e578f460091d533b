"""Big-endian values one after the other, never beyond the end."""

from __future__ import annotations

import struct
from typing import Any

from cdr_core.errors import CorruptMetadata, Where

_I32, _I64 = struct.Struct(">i"), struct.Struct(">q")


class Cursor:
    """A position in bytes; every read moves it, and a read past the end is an error that names the offset."""

    def __init__(self, data: bytes, name: str) -> None:
        self._data, self._name = data, name
        self.at = 0
        self.spans: list[tuple[int, int, Any]] = []
        """State handles that were read, for the reader that asked to collect them."""

    def between(self, start: int, end: int) -> bytes:
        """Return bytes that were read already."""
        return self._data[start:end]

    @property
    def left(self) -> int:
        return len(self._data) - self.at

    def take(self, count: int) -> bytes:
        if count < 0 or count > self.left:
            raise self.corrupt(f"{count} bytes are announced where {self.left} are left")
        found = self._data[self.at : self.at + count]
        self.at += count
        return found

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read several numbers at once."""
        if layout.size > self.left:
            raise self.corrupt(f"{layout.size} bytes are announced where {self.left} are left")
        found = layout.unpack_from(self._data, self.at)
        self.at += layout.size
        return found

    def skip(self, expected: bytes) -> bool:
        """Skip these bytes if they come next; return whether they did."""
        if not self._data.startswith(expected, self.at):
            return False
        self.at += len(expected)
        return True

    def i8(self) -> int:
        return self.take(1)[0]

    def i32(self) -> int:
        return int(_I32.unpack(self.take(4))[0])

    def i64(self) -> int:
        return int(_I64.unpack(self.take(8))[0])

    def count(self, least_bytes: int = 1) -> int:
        """Read a number of things that each take at least so many bytes: bounds every loop by the file's size."""
        number = self.i32()
        if number < 0 or number * least_bytes > self.left:
            raise self.corrupt(f"{number} entries are announced where {self.left} bytes are left")
        return number

    def utf(self) -> str:
        """Read Java's modified UTF-8: NUL in two bytes, characters beyond U+FFFF as two surrogates of three bytes."""
        raw = self.take(int.from_bytes(self.take(2), "big"))
        try:
            halves = raw.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
            return halves.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        except UnicodeDecodeError:
            raise self.corrupt("a name is not text") from None

    def corrupt(self, what: str) -> CorruptMetadata:
        return CorruptMetadata(
            f"{self._name} cannot be read: {what}",
            where=Where(offset=self.at),
            hint="use a checkpoint that is complete",
        )
