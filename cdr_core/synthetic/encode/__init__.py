"""Python values to the bytes Flink's serializers write: the inverse of decoding, for generated data and tests."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from cdr_core.flink.decode import ROW_KINDS
from cdr_core.flink.types import Array, Kind, Nullable, RowData, Scalar, Struct, StructKind, TypeDescription
from cdr_core.synthetic.encode.refusal import refuse
from cdr_core.synthetic.encode.rows import encode_row
from cdr_core.synthetic.encode.times import parse_date, parse_moment, parse_time

__all__ = ["encode_value"]

_FORMATS = {
    Kind.BOOLEAN: ">?",
    Kind.BYTE: ">b",
    Kind.SHORT: ">h",
    Kind.INT: ">i",
    Kind.LONG: ">q",
    Kind.FLOAT: ">f",
    Kind.DOUBLE: ">d",
}

_NULLS = {
    Kind.STRING: b"\0",
    Kind.BIGINT_BIG: struct.pack(">i", 0),
    Kind.DECIMAL_BIG: struct.pack(">i", 0),
    Kind.INSTANT: struct.pack(">qi", -(2**63), -(2**31)),
    Kind.DATE: struct.pack(">q", -(2**63)),
    Kind.TIME: struct.pack(">q", -(2**63)),
    Kind.TIMESTAMP: struct.pack(">qi", -(2**63), 0),
    Kind.LOCALDATE: struct.pack(">ih", -(2**31), -(2**15)),
    Kind.LOCALTIME: struct.pack(">bhi", -(2**7), -(2**15), -(2**31)),
    Kind.LOCALDATETIME: struct.pack(">ihbhi", -(2**31), -(2**15), -(2**7), -(2**15), -(2**31)),
}
"""Encodings of null by type."""

_CONSTANTS = {0: 1, 1: 2, 10: 3}
"""BigIntegers that Java keeps as constants have a short form."""


def encode_value(description: TypeDescription, value: Any, *, row_kind: str = "+I") -> bytes:
    """Return the bytes of one value, as they stand behind an element's tag and timestamp.

    ``value`` has the shape that decoding gives: a mapping of field names (for a TUPLE a sequence will do, for a type
    without fields the value itself), text for dates, times and big numbers (also int and Decimal for the latter), None
    for null. Refuses what the type cannot hold, also a null where Flink has no way to write one.
    """
    if not isinstance(description, Struct | RowData | Nullable) and isinstance(value, Mapping):
        value = value.get("f0")
    elif isinstance(description, Nullable) and not isinstance(description.element, Struct | RowData):
        value = value.get("f0") if isinstance(value, Mapping) else value
    return _encode(description, value, ROW_KINDS.index(row_kind))


def _encode(description: TypeDescription, value: Any, kind: int = 0) -> bytes:
    if isinstance(description, Nullable):
        return b"\1" if value is None else b"\0" + _encode(description.element, value, kind)
    if isinstance(description, Scalar):
        return _scalar(description.kind, value)
    if isinstance(description, Struct) and description.kind is StructKind.POJO and value is None:
        return b"\1"
    if value is None:
        refuse(value, description.text, "Flink has no null of it; NULLABLE would")
    if isinstance(description, Struct):
        return _STRUCTS[description.kind](description, _fields(description, value), kind)
    if isinstance(description, Array):
        return struct.pack(">i", len(value)) + b"".join(_element(description, entry) for entry in value)
    assert isinstance(description, RowData)
    row = encode_row(description.names, description.types, value, kind)
    return struct.pack(">i", len(row)) + row


def _fields(description: Struct, value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [value.get(name) for name in description.names]
    if not isinstance(value, Sequence) or len(value) != len(description.types):
        refuse(value, description.text, f"it does not have {len(description.types)} fields")
    return list(value)


def _tuple(description: Struct, values: list[Any], kind: int) -> bytes:
    return b"".join(_encode(type_, value) for type_, value in zip(description.types, values, strict=True))


def _row(description: Struct, values: list[Any], kind: int) -> bytes:
    bits = f"{kind & 1}{kind >> 1}" + "".join("1" if value is None else "0" for value in values)
    width = (len(bits) + 7) // 8
    body = b"".join(_encode(t, v) for t, v in zip(description.types, values, strict=True) if v is not None)
    return int(bits.ljust(width * 8, "0"), 2).to_bytes(width, "big") + body


def _pojo(description: Struct, values: list[Any], kind: int) -> bytes:
    body = b"\2"
    for i in description.byte_order:
        body += b"\1" if values[i] is None else b"\0" + _encode(description.types[i], values[i])
    return body


_STRUCTS: dict[StructKind, Callable[[Struct, list[Any], int], bytes]] = {
    StructKind.TUPLE: _tuple,
    StructKind.ROW: _row,
    StructKind.POJO: _pojo,
}


def _element(description: Array, value: Any) -> bytes:
    if not description.boxed:
        return _encode(description.element, value)
    return b"\0" if value is None else b"\1" + _encode(description.content, value)


def _scalar(kind: Kind, value: Any) -> bytes:
    if value is None:
        if kind not in _NULLS:
            refuse(value, kind, "Flink has no null of it; NULLABLE would")
        return _NULLS[kind]
    if kind in _FORMATS:
        try:
            return struct.pack(_FORMATS[kind], value)
        except (struct.error, OverflowError) as error:
            refuse(value, kind, str(error))
    return _OBJECTS[kind](value)


def _character(value: Any) -> bytes:
    units = str(value).encode("utf-16-be", "surrogatepass")
    return units if len(units) == 2 else refuse(value, Kind.CHAR, "it is not one UTF-16 code unit")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _string(value: Any) -> bytes:
    units = str(value).encode("utf-16-be", "surrogatepass")
    codes = struct.unpack(f">{len(units) // 2}H", units)
    if all(code < 0x80 for code in codes):
        return _varint(len(codes) + 1) + bytes(codes)
    return _varint(len(codes) + 1) + b"".join(_varint(code) for code in codes)


def _bytes(value: Any) -> bytes:
    return struct.pack(">i", len(value)) + bytes(value)


def _big_integer(value: Any) -> bytes:
    number = int(Decimal(value))  # Python refuses to read an int of more than 4300 digits
    if number in _CONSTANTS:
        return struct.pack(">i", _CONSTANTS[number])
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return struct.pack(">i", size + 4) + number.to_bytes(size, "big", signed=True)


def _big_decimal(value: Any) -> bytes:
    sign, digits, exponent = Decimal(value).as_tuple()
    if not isinstance(exponent, int):
        refuse(value, Kind.DECIMAL_BIG, "it is not finite")
    return _big_integer(Decimal((sign, digits, 0))) + struct.pack(">i", -exponent)


def _instant(value: Any) -> bytes:
    moment = parse_moment(value, Kind.INSTANT)
    return struct.pack(">qi", moment.epoch_second, moment.nanos)


def _millis(value: Any) -> bytes:
    moment = parse_moment(value, Kind.DATE)
    return struct.pack(">q", moment.epoch_second * 1000 + moment.nanos // 1_000_000)


def _timestamp(value: Any) -> bytes:
    return _millis(value) + struct.pack(">i", parse_moment(value, Kind.TIMESTAMP).nanos)


def _local_date(value: Any) -> bytes:
    moment = parse_date(value, Kind.LOCALDATE)
    return struct.pack(">ibb", moment.year, moment.month, moment.day)


def _local_time(value: Any) -> bytes:
    moment = parse_time(value, Kind.LOCALTIME)
    return struct.pack(">bbbi", moment.hour, moment.minute, moment.second, moment.nanos)


def _local_date_time(value: Any) -> bytes:
    day, _, time = str(value).partition("T")
    return _local_date(day) + _local_time(time)


_OBJECTS: dict[Kind, Callable[[Any], bytes]] = {
    Kind.CHAR: _character,
    Kind.STRING: _string,
    Kind.BYTES: _bytes,
    Kind.OPAQUE: bytes,
    Kind.BIGINT_BIG: _big_integer,
    Kind.DECIMAL_BIG: _big_decimal,
    Kind.INSTANT: _instant,
    Kind.DATE: _millis,
    Kind.TIME: _millis,
    Kind.TIMESTAMP: _timestamp,
    Kind.LOCALDATE: _local_date,
    Kind.LOCALTIME: _local_time,
    Kind.LOCALDATETIME: _local_date_time,
}
