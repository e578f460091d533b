"""Python values to binary rows, arrays and maps, as Flink's row serializer writes them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

from cdr_core.flink.types.sql import BINARIES, COMPACT_DECIMAL, COMPACT_TIMESTAMP, STRINGS, TIMESTAMPS, SqlKind, SqlType
from cdr_core.synthetic.encode.refusal import refuse
from cdr_core.synthetic.encode.times import parse_moment, parse_time

_FORMATS = {
    SqlKind.BOOLEAN: "<?",
    SqlKind.TINYINT: "<b",
    SqlKind.SMALLINT: "<h",
    SqlKind.INT: "<i",
    SqlKind.BIGINT: "<q",
    SqlKind.FLOAT: "<f",
    SqlKind.DOUBLE: "<d",
    SqlKind.INTERVAL_MONTHS: "<i",
    SqlKind.INTERVAL_MILLIS: "<q",
}
_INLINE = 7
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WIDE = Context(prec=80)


def encode_row(names: Sequence[str], types: Sequence[SqlType], value: Any, kind: int = 0) -> bytes:
    """Return the bytes of a row without the size in front; ``value`` maps names to values, absent means null."""
    if not isinstance(value, Mapping):
        refuse(value, "a row", "it is no mapping of names to values")
    writer = _Writer((len(types) + 63 + 8) // 64 * 8, 8, len(types), first_null_bit=8)
    writer.body[0] = kind
    for i, (name, type_) in enumerate(zip(names, types, strict=True)):
        writer.put(i, type_, value.get(name))
    return bytes(writer.body)


def encode_array(type_: SqlType, values: Sequence[Any]) -> bytes:
    """Return the bytes of an array."""
    count = len(values)
    writer = _Writer(4 + (count + 31) // 32 * 4, type_.width, count, first_null_bit=32)
    struct.pack_into("<i", writer.body, 0, count)
    for i, value in enumerate(values):
        writer.put(i, type_, value)
    return bytes(writer.body)


class _Writer:
    """A fixed part of header and slots, and a variable part that grows behind it in whole words."""

    def __init__(self, header: int, width: int, count: int, first_null_bit: int) -> None:
        self._header = header
        self._width = width
        self._first_null_bit = first_null_bit
        self.body = bytearray(_words(header + width * count))

    def put(self, index: int, type_: SqlType, value: Any) -> None:
        """Write one field or element."""
        if value is None:
            bit = self._first_null_bit + index
            self.body[bit >> 3] |= 1 << (bit & 7)
            return
        at = self._header + self._width * index
        slot = self._slot(type_, value)
        self.body[at : at + len(slot)] = slot

    def _append(self, data: bytes) -> int:
        """Put bytes into the variable part; return where they begin."""
        begin = len(self.body)
        self.body += data.ljust(_words(len(data)), b"\0")
        return begin

    def _slot(self, type_: SqlType, value: Any) -> bytes:
        if type_.kind in TIMESTAMPS and type_.precision > COMPACT_TIMESTAMP:
            millis, nanos = _timestamp(type_, value)
            return struct.pack("<II", nanos, self._append(struct.pack("<q", millis)))
        if type_.kind is SqlKind.DECIMAL and type_.precision > COMPACT_DECIMAL:
            unscaled = _unscaled(type_, value)
            data = unscaled.to_bytes(
                (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, "big", signed=True
            )
            return struct.pack("<II", len(data), self._append(data.ljust(16, b"\0")))
        fixed = _fixed(type_, value)
        if fixed is not None:
            return fixed
        data = _variable(type_, value)
        if len(data) <= _INLINE and type_.kind in STRINGS | BINARIES:
            return data.ljust(_INLINE, b"\0") + bytes([0x80 | len(data)])
        return struct.pack("<II", len(data), self._append(data))


def _words(count: int) -> int:
    return (count + 7) // 8 * 8


def _fixed(type_: SqlType, value: Any) -> bytes | None:
    """Return the slot of a type that always fits it, else None."""
    if type_.kind in _FORMATS:
        try:
            return struct.pack(_FORMATS[type_.kind], value)
        except struct.error as error:
            refuse(value, type_.text, str(error))
    if type_.kind is SqlKind.DATE:
        return struct.pack("<i", (value - date(1970, 1, 1)).days if isinstance(value, date) else value)
    if type_.kind is SqlKind.TIME:
        moment = parse_time(value, type_.text)
        return struct.pack("<i", moment.second_of_day * 1000 + moment.nanos // 1_000_000)
    if type_.kind in TIMESTAMPS:
        return struct.pack("<q", _timestamp(type_, value)[0])
    if type_.kind is SqlKind.DECIMAL:
        return struct.pack("<q", _unscaled(type_, value))
    return None


def _timestamp(type_: SqlType, value: Any) -> tuple[int, int]:
    """Return milliseconds and the nanos in them, from a datetime or ISO-8601 text."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        millis, micros = divmod((aware - _EPOCH) // timedelta(microseconds=1), 1000)
        return millis, micros * 1000
    moment = parse_moment(value, type_.text)
    return moment.epoch_second * 1000 + moment.nanos // 1_000_000, moment.nanos % 1_000_000


def _unscaled(type_: SqlType, value: Any) -> int:
    scaled = Decimal(value).scaleb(type_.scale, _WIDE)
    if scaled != scaled.to_integral_value(context=_WIDE) or scaled.copy_abs() >= 10**type_.precision:
        refuse(value, type_.text, "it has more digits")
    return int(scaled)


def _map(type_: SqlType, value: Any) -> bytes:
    pairs = list(value.items() if isinstance(value, Mapping) else value)
    value_type = type_.children[1] if type_.kind is SqlKind.MAP else SqlType(SqlKind.INT)
    keys = encode_array(type_.children[0], [key for key, _ in pairs])
    return struct.pack("<i", len(keys)) + keys + encode_array(value_type, [entry for _, entry in pairs])


_VARIABLE: dict[SqlKind, Callable[[SqlType, Any], bytes]] = {
    SqlKind.CHAR: lambda type_, value: str(value).encode(),
    SqlKind.VARCHAR: lambda type_, value: str(value).encode(),
    SqlKind.ARRAY: lambda type_, value: encode_array(type_.children[0], value),
    SqlKind.MAP: _map,
    SqlKind.MULTISET: _map,
    SqlKind.ROW: lambda type_, value: encode_row(type_.names, type_.children, value),
}


def _variable(type_: SqlType, value: Any) -> bytes:
    encode = _VARIABLE.get(type_.kind)
    return encode(type_, value) if encode else bytes(value)
