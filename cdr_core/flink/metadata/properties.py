"""The checkpoint properties at the end of ``_metadata``: a Java object stream, kept as bytes and walked for wholeness.

The walker knows as much of Java's grammar as such a stream needs (objects, class descriptions, strings, enums,
references, null). It does not build the objects; it proves that one object begins and ends where the stream does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from cdr_core.flink.metadata.modified_utf8 import decode

LONGEST_PROPERTIES: Final = 64 * 1024
"""Bytes. Flink's fields streams have under 1 kB; a limit here bounds the walk."""

_START: Final = b"\xac\xed\x00\x05"
_FIRST_HANDLE: Final = 0x7E0000
_MAX_DEPTH: Final = 32

_NULL, _REFERENCE, _CLASS, _OBJECT, _STRING, _END_OF_BLOCK, _ENUM = 0x70, 0x71, 0x72, 0x73, 0x74, 0x78, 0x7E
_SERIALIZABLE, _ENUM_CLASS = 0x02, 0x10
_PRIMITIVE_SIZES: Final = {"B": 1, "Z": 1, "C": 2, "S": 2, "F": 4, "I": 4, "D": 8, "J": 8}


@dataclass(frozen=True, slots=True)
class StreamFault:
    """The reason why a stream is refused; ``at`` is the offset in it."""

    what: str
    at: int


@dataclass(frozen=True, slots=True)
class _Class:
    """Facts needed to step over the values of one class: bytes of its primitive fields, number of its others."""

    primitive_size: int
    object_fields: int


_Lineage = tuple[_Class, ...]
"""A class with its superclasses, topmost first; the order in which their values follow."""

_Handle = _Lineage | str | None
"""Possible target of a later reference: a class, a string, or (``None``) an object or an incomplete class."""


class _FaultError(Exception):
    def __init__(self, what: str, at: int) -> None:
        super().__init__(what)
        self.fault = StreamFault(what, at)


def walk_properties(stream: bytes) -> StreamFault | None:
    """Return ``None`` if the bytes are exactly one serialised Java object (or null), else what is wrong with them."""
    if not stream.startswith(_START):
        return StreamFault(f"it starts with {stream[:4].hex() or 'nothing'}", 0)
    if len(stream) > LONGEST_PROPERTIES:
        return StreamFault(f"it has {len(stream)} bytes, {LONGEST_PROPERTIES} is the most", 0)
    walker = _Walker(stream)
    try:
        walker.step_over_object(0)
        walker.require_end()
    except _FaultError as error:
        return error.fault
    return None


class _Walker:
    """A position in the stream and the handles assigned so far."""

    __slots__ = ("_handles", "_position", "_stream")

    def __init__(self, stream: bytes) -> None:
        self._stream = stream
        self._position = len(_START)
        self._handles: list[_Handle] = []

    def require_end(self) -> None:
        left = len(self._stream) - self._position
        if left:
            raise _FaultError(f"{left} bytes follow the object", self._position)

    def step_over_object(self, depth: int) -> None:
        """Step over null, a reference, a string, an enum constant or an object with everything inside it."""
        self._refuse_deep(depth)
        at = self._position
        tag = self._u8()
        if tag == _NULL:
            return
        if tag == _REFERENCE:
            self._referenced()
        elif tag == _STRING:
            self._handles.append(self._utf())
        elif tag == _ENUM:
            self._lineage(depth + 1)
            self._handles.append(None)
            self._string()
        elif tag == _OBJECT:
            lineage = self._lineage(depth + 1)
            self._handles.append(None)
            self._step_over_values(lineage, depth + 1)
        else:
            raise _FaultError(f"0x{tag:02x} is not the start of an object known here", at)

    def _step_over_values(self, lineage: _Lineage, depth: int) -> None:
        for described in lineage:
            self._take(described.primitive_size)
            for _ in range(described.object_fields):
                self.step_over_object(depth)

    def _lineage(self, depth: int) -> _Lineage:
        """Read a class description, by value or by reference; an object must have one."""
        lineage = self._optional_lineage(depth)
        if not lineage:
            raise _FaultError("an object has no class", self._position)
        return lineage

    def _optional_lineage(self, depth: int) -> _Lineage:
        self._refuse_deep(depth)
        at = self._position
        tag = self._u8()
        if tag == _NULL:
            return ()
        if tag == _REFERENCE:
            referenced = self._referenced()
            if not isinstance(referenced, tuple):
                raise _FaultError("a reference to a class means something else", at)
            return referenced
        if tag != _CLASS:
            raise _FaultError(f"0x{tag:02x} is not the start of a class description", at)
        return self._described(depth)

    def _described(self, depth: int) -> _Lineage:
        self._utf()
        self._take(8)
        handle = len(self._handles)
        self._handles.append(None)
        fields = self._fields()
        if self._u8() != _END_OF_BLOCK:
            raise _FaultError("a class description has annotations", self._position - 1)
        lineage = (*self._optional_lineage(depth + 1), fields)
        self._refuse_deep(len(lineage))
        # Only now: a class that names itself as its superclass would otherwise have no top.
        self._handles[handle] = lineage
        return lineage

    def _fields(self) -> _Class:
        at = self._position
        flags = self._u8()
        if flags & ~_ENUM_CLASS != _SERIALIZABLE:
            raise _FaultError(f"a class writes its values in its own way (flags 0x{flags:02x})", at)
        size, objects = 0, 0
        for _ in range(self._u16()):
            at = self._position
            kind = chr(self._u8())
            self._utf()
            if kind in _PRIMITIVE_SIZES:
                size += _PRIMITIVE_SIZES[kind]
            elif kind in "L[":
                objects += 1
                self._string()
            else:
                raise _FaultError(f"{kind!r} is not a field type", at)
        return _Class(size, objects)

    def _string(self) -> None:
        at = self._position
        tag = self._u8()
        if tag == _STRING:
            self._handles.append(self._utf())
        elif tag != _REFERENCE or not isinstance(self._referenced(), str):
            raise _FaultError("a string is something else", at)

    def _referenced(self) -> _Handle:
        at = self._position
        index: int = struct.unpack(">i", self._take(4))[0] - _FIRST_HANDLE
        if not 0 <= index < len(self._handles):
            raise _FaultError("a reference means nothing", at)
        return self._handles[index]

    def _u8(self) -> int:
        return self._take(1)[0]

    def _u16(self) -> int:
        return int.from_bytes(self._take(2), "big")

    def _utf(self) -> str:
        at = self._position
        try:
            return decode(self._take(self._u16()))
        except ValueError:
            raise _FaultError("a string is not modified UTF-8", at) from None

    def _take(self, length: int) -> bytes:
        at = self._position
        if length > len(self._stream) - at:
            raise _FaultError(f"it ends where {length} more bytes are needed", at)
        self._position = at + length
        return self._stream[at : at + length]

    def _refuse_deep(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise _FaultError(f"objects are nested more than {_MAX_DEPTH} deep", self._position)
