"""Serializer snapshots in the head of keyed state: Flink's own record of the types of keys and states.

A head is a version (6), whether state is compressed, the snapshot of the key's serializer, and for each state its name,
options and serializers. A snapshot is a class name, a version and a body whose length only its class knows. The reader
knows the classes that the type language of job specs can describe; at any other class it stops and reports the rest as
unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cdr_core.flink.metadata.modified_utf8 import decode

_FLINK: Final = "org.apache.flink."
_HEAD_VERSION: Final = 6
_PROXY_VERSION: Final = 2
_COMPOSITE: Final = 911108
_NESTED: Final = struct.pack(">ii", 1333245, 1)
"""Begins the list of nested snapshots. Class names and Java-serialised types, which precede it, never contain it."""
_OPTIONAL_MAP: Final = 0x4F2C69A3D70
_DEEPEST: Final = 32
_MOST: Final = 4096
"""Limits of nesting and of entries in a list; no job comes near them."""

_WITHOUT_BODY: Final = frozenset(
    f"{name}Serializer"
    for name in (
        *("Boolean", "Byte", "Short", "Int", "Long", "Float", "Double", "Char", "String", "BigInt", "BigDec"),
        *("Instant", "Date", "SqlDate", "SqlTime", "SqlTimestamp", "LocalDate", "LocalTime", "LocalDateTime"),
        *("BooleanPrimitiveArray", "BytePrimitiveArray", "ShortPrimitiveArray", "IntPrimitiveArray"),
        *("LongPrimitiveArray", "FloatPrimitiveArray", "DoublePrimitiveArray", "CharPrimitiveArray", "StringArray"),
        *("StringData", "VoidNamespace", "Void", "TimeWindow", "GlobalWindow"),
    )
)
_NUMBERS: Final = {"DecimalDataSerializer": 2, "TimestampDataSerializer": 1}
"""Snapshots whose body is so many numbers."""


@dataclass(frozen=True, slots=True)
class Serializer:
    """One serializer: the simple name of Flink's class, the full name of any other; and those inside of it.

    ``names`` are the fields of a POJO, in the order of ``parts``; ``numbers`` the precision and scale of a SQL type.
    """

    name: str
    parts: tuple[Serializer, ...] = ()
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StateEntry:
    """A state that the head lists: ``kind`` as in VALUE, LIST, MAP, REDUCING, AGGREGATING; empty for timers."""

    name: str
    kind: str
    value: Serializer | None


@dataclass(frozen=True, slots=True)
class KeyedHead:
    """The part that could be read: ``key`` is ``None`` where its class is not known; ``states`` end before the first
    such.
    """

    key: Serializer | None
    states: tuple[StateEntry, ...]


class _Unknown(Exception):
    """A class whose body cannot be skipped, or bytes that are no head."""


def read_head(data: bytes) -> KeyedHead:
    """Read as much of a head as is understood; bytes that are no head at all give an empty one."""
    reader = _Reader(data)
    try:
        if reader.number(">i") != _HEAD_VERSION:
            return KeyedHead(None, ())
        reader.skip(1)
        key = reader.proxied()
    except _Unknown:
        return KeyedHead(None, ())
    return KeyedHead(key, tuple(_known_states(reader)))


def _known_states(reader: _Reader) -> Iterator[StateEntry]:
    with suppress(_Unknown):
        for _ in range(reader.number(">h")):
            yield reader.state()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, layout: str) -> int:
        size = struct.calcsize(layout)
        value: int = struct.unpack(layout, self.take(size))[0]
        return value

    def take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise _Unknown
        self._at += size
        return self._data[self._at - size : self._at]

    def skip(self, size: int) -> None:
        self.take(size)

    def utf(self) -> str:
        try:
            return decode(self.take(self.number(">H")))
        except ValueError:
            raise _Unknown from None

    def count(self) -> int:
        found = self.number(">i")
        if not 0 <= found <= _MOST:
            raise _Unknown
        return found

    def state(self) -> StateEntry:
        name = self.utf()
        self.skip(4)
        options = {self.utf(): self.utf() for _ in range(self.count())}
        found = {self.utf(): self.proxied() for _ in range(self.count())}
        return StateEntry(name, options.get("KEYED_STATE_TYPE", ""), found.get("VALUE_SERIALIZER"))

    def proxied(self) -> Serializer:
        if self.number(">i") != _PROXY_VERSION:
            raise _Unknown
        return self.snapshot(0)

    def snapshot(self, depth: int) -> Serializer:
        """Read a versioned snapshot: class name, version, body."""
        if depth > _DEEPEST:
            raise _Unknown
        name, version = _simple_name(self.utf()), self.number(">i")
        if name in _WITHOUT_BODY:
            if version == 2:  # before Flink 1.8 the class was named once more
                self.utf()
            return Serializer(name)
        if name in _NUMBERS:
            return Serializer(name, numbers=tuple(self.number(">i") for _ in range(_NUMBERS[name])))
        if name == "RowDataSerializer":
            self.count()
            return Serializer(name, self.nested(depth))
        if name == "PojoSerializer":
            return self.pojo(depth)
        if self._data[self._at : self._at + 4] != struct.pack(">i", _COMPOSITE):
            raise _Unknown
        return Serializer(name, self.nested(depth))

    def nested(self, depth: int) -> tuple[Serializer, ...]:
        """Return the snapshots behind a body that is skipped."""
        start = self._data.find(_NESTED, self._at)
        if start < 0:
            raise _Unknown
        self._at = start + len(_NESTED)
        return tuple(self.snapshot(depth + 1) for _ in range(self.count()))

    def pojo(self, depth: int) -> Serializer:
        self.utf()
        fields = self.optional_map()
        for _ in range(2):  # registered and other subclasses
            self.optional_map()
        parts = tuple(_Reader(frame).snapshot(depth + 1) for frame in fields.values())
        return Serializer("PojoSerializer", parts, tuple(fields))

    def optional_map(self) -> dict[str, bytes]:
        """Read entries whose keys and values are framed; those without a value are unknown to the job that
        wrote them.
        """
        if self.number(">q") != _OPTIONAL_MAP:
            raise _Unknown
        found: dict[str, bytes] = {}
        for _ in range(self.count()):
            name = self.utf()
            self.framed()
            found[name] = self.framed()
        return found

    def framed(self) -> bytes:
        return self.take(self.number(">i")) if self.number(">b") else b""


def _simple_name(class_name: str) -> str:
    """Return the serializer's class of a snapshot's: it is the one around it, or has the same name without Snapshot.

    A class that is not Flink's keeps its full name, so that no other class is taken for one of Flink's.
    """
    if not class_name.startswith(_FLINK):
        return class_name
    around, _, last = class_name.rpartition(".")[2].rpartition("$")
    around = around.rpartition("$")[2]
    return around if around not in ("", "Serializer") else last.removesuffix("Snapshot")
