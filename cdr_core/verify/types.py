"""Type descriptions of the job spec, parsed and read value by value, for the common types only.

Unsupported types are reported, never guessed: a record type knows which of its fields it cannot read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cdr_core.errors import CorruptChannelState, SpecRefused
from cdr_core.verify.binary_row import read_row

Reader = Callable[[bytes, int], tuple[Any, int]]
"""Returns the value at an offset, and the offset behind it."""

_TOKEN = re.compile(r"\s*(?:([A-Za-z_$][A-Za-z0-9_$]*)|`((?:[^`]|``)+)`|(\d+)|'((?:[^']|'')*)'|([<>(),]))")
_STRUCTS = frozenset({"TUPLE", "ROW", "POJO"})
_ROW_KINDS = ("+I", "-U", "+U", "-D")


@dataclass(frozen=True, slots=True)
class Field:
    """A field by name; ``type`` is the word of its type, ``read`` is ``None`` where it cannot be read here."""

    name: str
    type: str
    read: Reader | None


@dataclass(frozen=True)
class RecordType:
    """A record's type: TUPLE, ROW, POJO and ROWDATA have named fields, anything else is one field ``f0``."""

    kind: str
    fields: tuple[Field, ...]

    @cached_property
    def readable(self) -> tuple[Field, ...]:
        """Return the readable fields: all before the first unsupported one; in a ROWDATA each supported one."""
        if self.kind == "ROWDATA":
            return tuple(field for field in self.fields if field.type in _SQL)
        wanted = sorted(self.fields, key=lambda f: f.name) if self.kind == "POJO" else self.fields
        stop = next((i for i, field in enumerate(wanted) if field.read is None), len(wanted))
        return tuple(wanted[:stop])

    @cached_property
    def unreadable(self) -> tuple[str, ...]:
        readable = {field.name for field in self.readable}
        return tuple(field.name for field in self.fields if field.name not in readable)

    def read(self, value: bytes) -> tuple[dict[str, Any], str | None]:
        """Return the readable fields of a record, and its row kind (of ROW and ROWDATA only).

        Bytes that are no such record are ``Corrupt``.
        """
        try:
            fields, kind, end = self._read(value)
        except (IndexError, ValueError, struct.error, OverflowError):
            raise CorruptChannelState(f"a record of {len(value)} bytes is no {self.kind}") from None
        if end != len(value) and not self.unreadable:
            raise CorruptChannelState(f"a record of {len(value)} bytes has {len(value) - end} bytes too many")
        return fields, kind

    def _read(self, value: bytes) -> tuple[dict[str, Any], str | None, int]:
        if self.kind == "ROWDATA":
            row, kind = read_row(value, [field.type for field in self.fields])
            cells = {field.name: cell for field, cell in zip(self.fields, row, strict=True)}
            return (
                {field.name: cells[field.name] for field in self.readable},
                _ROW_KINDS[kind],
                4 + int.from_bytes(value[:4], "big"),
            )
        if self.kind == "ROW":
            return _read_row_fields(self.fields, self.readable, value)
        fields: dict[str, Any] = {}
        at = 0
        if self.kind == "POJO":
            at = _pojo_flags(value)
        for field in self.readable:
            if self.kind == "POJO":
                at += 1
                if value[at - 1]:
                    fields[field.name] = None
                    continue
            assert field.read is not None, "readable fields have a reader"
            fields[field.name], at = field.read(value, at)
        return fields, None, at


def _read_row_fields(
    fields: tuple[Field, ...], readable: tuple[Field, ...], value: bytes
) -> tuple[dict[str, Any], str, int]:
    """Read a mask (two bits of the kind, low bit first, then a bit per null field), then the fields that
    are not null.
    """
    at = (2 + len(fields) + 7) // 8
    bits = [value[i // 8] >> (7 - i % 8) & 1 for i in range(2 + len(fields))]
    result: dict[str, Any] = {}
    for number, field in enumerate(readable):
        if bits[2 + number]:
            result[field.name] = None
            continue
        assert field.read is not None, "readable fields have a reader"
        result[field.name], at = field.read(value, at)
    return result, _ROW_KINDS[bits[0] + 2 * bits[1]], at


def _pojo_flags(value: bytes) -> int:
    if value[0] != 2:
        raise ValueError("null or a subclass, whose bytes only its class knows")
    return 1


def _fixed(layout: str) -> Reader:
    packed = struct.Struct(layout)
    return lambda data, at: (packed.unpack_from(data, at)[0], at + packed.size)


def _char(data: bytes, at: int) -> tuple[str, int]:
    return _text([int.from_bytes(data[at : at + 2], "big")]), at + 2


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
        if shift > 28:
            raise ValueError("a number of more than five bytes")


def _string(data: bytes, at: int) -> tuple[str | None, int]:
    """Read length + 1, then each UTF-16 unit, all as variable-length numbers; zero is null."""
    length, at = _varint(data, at)
    if length == 0:
        return None, at
    plain = data[at : at + length - 1]
    if len(plain) == length - 1 and plain.isascii():
        return plain.decode("ascii"), at + length - 1
    units = []
    for _ in range(length - 1):
        unit, at = _varint(data, at)
        units.append(unit)
    return _text(units), at


def _text(units: list[int]) -> str:
    """Decode UTF-16 units; an unpaired surrogate stays as it is, because it counts in a hash."""
    return struct.pack(f"<{len(units)}H", *units).decode("utf-16-le", "surrogatepass")


def as_stored(value: Any) -> Any:
    """Return a value as a table can hold it: an unpaired surrogate becomes the replacement character."""
    if isinstance(value, str) and not value.isascii():
        return "".join("\ufffd" if 0xD800 <= ord(sign) < 0xE000 else sign for sign in value)
    return value


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length = int.from_bytes(data[at : at + 4], "big", signed=True)
    if length < 0 or at + 4 + length > len(data):
        raise ValueError("an array that does not fit")
    return data[at + 4 : at + 4 + length], at + 4 + length


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise ValueError("neither true nor false")
    return data[at] == 1, at + 1


SCALARS: dict[str, Reader] = {
    "BOOLEAN": _boolean,
    "BYTE": _fixed(">b"),
    "SHORT": _fixed(">h"),
    "INT": _fixed(">i"),
    "LONG": _fixed(">q"),
    "FLOAT": _fixed(">f"),
    "DOUBLE": _fixed(">d"),
    "CHAR": _char,
    "STRING": _string,
    "BYTES": _bytes,
    "OPAQUE": lambda data, at: (data[at:], len(data)),
}
_SQL = frozenset(
    {"BOOLEAN", "TINYINT", "SMALLINT", "INT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "STRING", "VARCHAR", "BYTES"}
    | {"CHAR", "BINARY", "VARBINARY"}
)


def parse_type(text: str) -> RecordType:
    """Parse the type of a record; unknown words make fields that cannot be read."""
    tokens, at = [], 0
    while match := _TOKEN.match(text, at):
        at = match.end()
        tokens.append(next(group for group in match.groups() if group is not None).replace("``", "`"))
    if text[at:].strip() or not tokens:
        raise SpecRefused(f"the record type {text!r} cannot be read", hint="correct it in the job spec")
    kind = tokens[0].upper()
    if kind not in _STRUCTS | {"ROWDATA"}:
        reader = SCALARS.get(kind) if len(tokens) == 1 else None
        return RecordType(kind, (Field("f0", kind, reader),))
    parts = _split(tokens[1:], text)
    named = kind != "TUPLE"
    fields = tuple(
        Field(part[0] if named else f"f{number}", *_field_type(part[1:] if named else part))
        for number, part in enumerate(parts)
    )
    return RecordType(kind, fields)


def _field_type(words: list[str]) -> tuple[str, Reader | None]:
    kind = words[0].upper() if words else "?"
    plain = len(words) == 1
    return kind, SCALARS.get(kind) if plain else None


def _split(tokens: list[str], text: str) -> list[list[str]]:
    """Return the parts between < and >, at their commas; commas inside deeper brackets belong to their part."""
    if len(tokens) < 3 or tokens[0] not in "<(" or tokens[-1] not in ">)":
        raise SpecRefused(f"the record type {text!r} cannot be read", hint="correct it in the job spec")
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens[1:-1]:
        depth += (token in "<(") - (token in ">)")
        if token == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    if depth or not all(parts):
        raise SpecRefused(f"the record type {text!r} cannot be read", hint="correct it in the job spec")
    return parts
