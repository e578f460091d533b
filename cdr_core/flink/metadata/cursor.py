"""A bounded reader of ``_metadata`` primitives: it checks every read against the bytes left; every failure
is an error.
"""

from __future__ import annotations

import struct
import sys
from typing import Final

import numpy as np
import numpy.typing as npt

from cdr_core.errors import CorruptMetadata, Where
from cdr_core.flink.metadata.modified_utf8 import decode
from cdr_core.flink.metadata.offsets import Offsets

MEMORY_ABOVE_INPUT: Final = 64 * 1024 * 1024
"""Bytes that parsed values may take beyond the size of their input: tiny handles take more in memory than in a file."""

MAX_DEPTH: Final = 16
"""Handles inside handles. Flink nests two or three deep; more is an attack on the stack."""

_SLOT: Final = 8
_INT: Final = 32
_HINT: Final = "the file is damaged or not a checkpoint's _metadata, use another copy or another checkpoint"

_I8: Final = struct.Struct(">b")
_U16: Final = struct.Struct(">H")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")


class Cursor:
    """A position in the bytes of one file, and its place in the checkpoint.

    Promises: nothing is read beyond the end, no count is trusted before the bytes for it are known to be there, and the
    returned values take at most the input's size plus :data:`MEMORY_ABOVE_INPUT`. Refuses everything else with
    :class:`~cdr_core.errors.CorruptMetadata` that names the byte offset.
    """

    __slots__ = ("_end", "_view", "checkpoint", "operator", "position", "room", "subtask")

    def __init__(self, data: bytes | memoryview, checkpoint: str | None = None) -> None:
        self._view = memoryview(data).cast("B")
        self._end = len(self._view)
        self.position = 0
        self.room = self._end + MEMORY_ABOVE_INPUT
        self.checkpoint = checkpoint
        self.operator: str | None = None
        self.subtask: int | None = None

    @property
    def size(self) -> int:
        """Return the number of bytes of the whole file."""
        return self._end

    @property
    def remaining(self) -> int:
        """Return the number of bytes not read yet."""
        return self._end - self.position

    def corrupt(self, what: str, *, at: int | None = None, hint: str = _HINT) -> CorruptMetadata:
        """Return the error to raise; ``at`` is the offset of the fault if it is not here."""
        where = Where(
            checkpoint=self.checkpoint,
            operator=self.operator,
            subtask=self.subtask,
            offset=self.position if at is None else at,
        )
        return CorruptMetadata(what, where=where, hint=hint)

    def charge(self, size: int) -> None:
        """Account for memory that a value will take."""
        self.room -= size
        if self.room < 0:
            raise self.corrupt("_metadata describes more values than a file of its size may hold in memory")

    def i8(self) -> int:
        return self._integer(_I8)

    def i32(self) -> int:
        self.room -= _INT  # enough to record it: code that reads many numbers also reads something that is charged
        return self._integer(_I32)

    def i64(self) -> int:
        self.room -= _INT
        return self._integer(_I64)

    def numbers(self, layout: struct.Struct) -> tuple[int, ...]:
        """Read several integers at once; ``layout`` is big-endian."""
        values = layout.unpack_from(self._view, self._advance(layout.size))
        self.room -= _INT * len(values)
        return values

    def natural(self, what: str) -> int:
        """Read an i32 that may not be negative."""
        at = self.position
        value = self.i32()
        if value < 0:
            raise self.corrupt(f"{what} is {value}", at=at)
        return value

    def boolean(self) -> bool:
        """Read one byte, 0 or 1; another value could not be written back the same."""
        value = self.i8()
        if value not in (0, 1):
            raise self.corrupt(f"a boolean is {value}", at=self.position - 1)
        return value == 1

    def count(self, what: str, each: int, *, held: int = 0) -> int:
        """Read a number of things that take at least ``each`` bytes in the file and ``held`` in memory."""
        at = self.position
        value = self.i32()
        if value < 0:
            raise self.corrupt(f"the number of {what} is {value}", at=at)
        if value * each > self.remaining:
            raise self.corrupt(f"{value} {what} are announced where only {self.remaining} bytes follow", at=at)
        self.charge(value * (held + _SLOT))
        return value

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """Return the bytes of the whole file, for a kernel."""
        return np.frombuffer(self._view, np.uint8)

    def leap(self, end: int) -> bool:
        """Go to the end that a kernel found; False where it found none."""
        self.position = end if end >= 0 else self.position
        return end >= 0

    def skip(self, length: int) -> None:
        """Step over bytes of any content."""
        self._advance(length)

    def raw(self, length: int) -> bytes:
        """Read ``length`` bytes, as a copy that does not keep the file in memory."""
        at = self._advance(length)
        self.charge(length)
        return bytes(self._view[at : at + length])

    def blob(self, what: str) -> bytes:
        """Read an i32 length and that many bytes."""
        return self.raw(self.count(f"bytes of {what}", 1, held=-_SLOT))

    def utf(self) -> str:
        """Read a Java ``writeUTF`` string; an encoding that Java's writer would not choose is refused."""
        at = self.position
        length = self._integer(_U16)
        start = self._advance(length)
        try:
            text = decode(bytes(self._view[start : start + length]))
        except ValueError:
            raise self.corrupt("a string is not canonical modified UTF-8", at=at) from None
        self.charge(sys.getsizeof(text))
        return text

    def offsets(self, what: str) -> Offsets:
        """Read an i32 number and that many i64."""
        return Offsets(self.raw(8 * self.count(what, 8, held=-_SLOT)))

    def deeper(self, depth: int) -> int:
        """Return the depth of a handle inside one at ``depth``; refuse too many levels."""
        if depth >= MAX_DEPTH:
            raise self.corrupt(f"handles are nested more than {MAX_DEPTH} deep")
        return depth + 1

    def rest(self) -> bytes:
        """Read everything to the end."""
        return self.raw(self.remaining)

    def _integer(self, layout: struct.Struct) -> int:
        value: int = layout.unpack_from(self._view, self._advance(layout.size))[0]
        return value

    def _advance(self, length: int) -> int:
        """Skip ``length`` bytes; return the offset they start at."""
        at = self.position
        if length > self._end - at:
            raise self.corrupt(f"_metadata ends where {length} more bytes are needed, {self._end - at} are left")
        self.position = at + length
        return at
