"""Python values for any type description, drawn by a seeded generator, in the shape that encoding takes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final

from cdr_core.flink.types import Array, Kind, Nullable, RowData, Scalar, SqlKind, SqlType, Struct, TypeDescription
from cdr_core.flink.types.sql import BINARIES, STRINGS, TIMESTAMPS

_NULL_ONE_IN: Final = 16
_MOST_ELEMENTS: Final = 4
_MOST_CHARACTERS: Final = 12
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_BEYOND_ASCII: Final = ("é", "ß", "–", "水", "😀")
"""One, two and three bytes a character in Flink's own encoding, and a surrogate pair."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Draws values. A field in ``key`` (a path with dots) gets the value that belongs to key number ``number``.

    Equal numbers give equal keys, and integers and texts of different numbers differ as far as the type reaches.
    """

    rng: random.Random
    key: Sequence[str] = ()
    number: int = 0

    def record(self, description: TypeDescription) -> Any:
        """Return a whole record: a mapping of its fields, or the value of a type without fields."""
        inner = description.element if isinstance(description, Nullable) else description
        if isinstance(inner, Struct):
            return self._struct(inner, "")
        if isinstance(inner, RowData):
            pairs = zip(inner.names, inner.types, strict=True)
            return {name: self._sql_field(type_, name) for name, type_ in pairs}
        return self._field(inner, "f0", optional=False)

    def _struct(self, description: Struct, path: str) -> dict[str, Any]:
        optional = description.kind != "TUPLE"
        return {
            name: self._field(type_, f"{path}.{name}" if path else name, optional)
            for name, type_ in zip(description.names, description.types, strict=True)
        }

    def _field(self, description: TypeDescription, path: str, optional: bool) -> Any:
        """Return a value for a path; null now and then where the surrounding type allows it, never in a key."""
        if path in self.key:
            return self._of_number(path)._value(description, path)
        inside_of_key = any(path.startswith(f"{key}.") for key in self.key)
        around_key = any(key.startswith(f"{path}.") for key in self.key)
        if optional and not inside_of_key and not around_key and self.rng.randrange(_NULL_ONE_IN) == 0:
            return None
        return self._value(description, path)

    def _of_number(self, path: str) -> Draw:
        """Return the same draws for every record with this key."""
        return Draw(random.Random(f"{path} {self.number}"), self.key, self.number)

    def _value(self, description: TypeDescription, path: str) -> Any:
        if isinstance(description, Nullable):
            return self._field(description.element, path, optional=True)
        if isinstance(description, Struct):
            return self._struct(description, path)
        if isinstance(description, Array):
            count = self.rng.randrange(_MOST_ELEMENTS)
            return [self._field(description.element, f"{path}[]", optional=False) for _ in range(count)]
        if isinstance(description, RowData):
            return {n: self._sql_field(t, "") for n, t in zip(description.names, description.types, strict=True)}
        assert isinstance(description, Scalar)
        if path in self.key:
            return self._key_scalar(description.kind)
        return _SCALARS[description.kind](self.rng)

    def _key_scalar(self, kind: Kind) -> Any:
        if kind in _BITS:
            return self.number % (1 << (_BITS[kind] - 1))
        if kind is Kind.BIGINT_BIG:
            return self.number
        return f"key-{self.number}" if kind is Kind.STRING else _SCALARS[kind](self.rng)

    def _sql_field(self, type_: SqlType, path: str) -> Any:
        if path in self.key:
            return self._of_number(path)._key_column(type_)
        return None if self.rng.randrange(_NULL_ONE_IN) == 0 else self._sql(type_)

    def _key_column(self, type_: SqlType) -> Any:
        if type_.kind in _SQL_BITS:
            return self.number % (1 << (_SQL_BITS[type_.kind] - 1))
        if type_.kind is SqlKind.VARCHAR:
            return f"key-{self.number}"[-type_.precision :]
        return self._sql(type_)

    def _sql(self, type_: SqlType) -> Any:
        """Return a value of a SQL type, not null."""
        rng = self.rng
        if type_.kind in STRINGS:
            return _text(rng, type_.precision, type_.kind is SqlKind.CHAR)
        if type_.kind in BINARIES:
            fixed = type_.kind is SqlKind.BINARY
            return rng.randbytes(type_.precision if fixed else rng.randrange(min(type_.precision, 16) + 1))
        if type_.kind is SqlKind.DECIMAL:
            return Decimal(rng.randrange(10**type_.precision)).scaleb(-type_.scale)
        if type_.kind in TIMESTAMPS:
            return _moment(rng) if type_.precision >= 3 else _moment(rng).partition(".")[0]
        if type_.kind in _SQL_BITS:
            return _whole(_SQL_BITS[type_.kind])(rng)
        if type_.kind in _NESTED:
            return _NESTED[type_.kind](self, type_)
        return _SQL_SCALARS[type_.kind](rng)


def _sql_array(draw: Draw, type_: SqlType) -> list[Any]:
    return [draw._sql_field(type_.children[0], "") for _ in range(draw.rng.randrange(_MOST_ELEMENTS))]


def _sql_map(draw: Draw, type_: SqlType) -> list[tuple[Any, Any]]:
    """Return a map of at most one entry: drawn keys may repeat, which a Java map cannot."""
    value = type_.children[1] if type_.kind is SqlKind.MAP else SqlType(SqlKind.INT)
    return [(draw._sql(type_.children[0]), draw._sql(value)) for _ in range(draw.rng.randrange(2))]


def _sql_row(draw: Draw, type_: SqlType) -> dict[str, Any]:
    return {name: draw._sql_field(child, "") for name, child in zip(type_.names, type_.children, strict=True)}


_NESTED: Final[Mapping[SqlKind, Callable[[Draw, SqlType], Any]]] = {
    SqlKind.ARRAY: _sql_array,
    SqlKind.MAP: _sql_map,
    SqlKind.MULTISET: _sql_map,
    SqlKind.ROW: _sql_row,
}


def _text(rng: random.Random, longest: int = _MOST_CHARACTERS, exactly: bool = False) -> str:
    count = longest if exactly else rng.randrange(min(longest, _MOST_CHARACTERS) + 1)
    text = "".join(rng.choices(_LETTERS, k=count))
    if count and rng.randrange(8) == 0:
        return text[:-1] + rng.choice(_BEYOND_ASCII)
    return text


def _day(rng: random.Random) -> date:
    return date(1970, 1, 1) + timedelta(days=rng.randrange(40_000))


def _time(rng: random.Random) -> str:
    return f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}.{rng.randrange(1000):03}"


def _moment(rng: random.Random) -> str:
    return f"{_day(rng).isoformat()}T{_time(rng)}"


def _whole(bits: int) -> Callable[[random.Random], int]:
    return lambda rng: rng.randrange(-(1 << (bits - 1)), 1 << (bits - 1))


_BITS: Final = {Kind.BYTE: 8, Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64}
_SQL_BITS: Final = {SqlKind.TINYINT: 8, SqlKind.SMALLINT: 16, SqlKind.INT: 32, SqlKind.BIGINT: 64}

_SCALARS: Final[Mapping[Kind, Callable[[random.Random], Any]]] = {
    Kind.BOOLEAN: lambda rng: rng.random() < 0.5,
    **{kind: _whole(bits) for kind, bits in _BITS.items()},
    Kind.FLOAT: lambda rng: float(rng.randrange(-(2**20), 2**20)) / 16,
    Kind.DOUBLE: lambda rng: rng.uniform(-1e9, 1e9),
    Kind.CHAR: lambda rng: rng.choice(_LETTERS),
    Kind.STRING: _text,
    Kind.BYTES: lambda rng: rng.randbytes(rng.randrange(16)),
    Kind.OPAQUE: lambda rng: rng.randbytes(rng.randrange(1, 16)),
    Kind.BIGINT_BIG: lambda rng: rng.randrange(-(10**30), 10**30),
    Kind.DECIMAL_BIG: lambda rng: Decimal(rng.randrange(-(10**24), 10**24)).scaleb(-6),
    Kind.INSTANT: lambda rng: f"{_moment(rng)}Z",
    Kind.DATE: _moment,
    Kind.TIME: _moment,
    Kind.TIMESTAMP: _moment,
    Kind.LOCALDATE: lambda rng: _day(rng).isoformat(),
    Kind.LOCALTIME: _time,
    Kind.LOCALDATETIME: _moment,
}

_SQL_SCALARS: Final[Mapping[SqlKind, Callable[[random.Random], Any]]] = {
    SqlKind.BOOLEAN: lambda rng: rng.random() < 0.5,
    SqlKind.FLOAT: lambda rng: float(rng.randrange(-(2**20), 2**20)) / 16,
    SqlKind.DOUBLE: lambda rng: rng.uniform(-1e9, 1e9),
    SqlKind.DATE: _day,
    SqlKind.TIME: _time,
    SqlKind.INTERVAL_MONTHS: lambda rng: rng.randrange(1200),
    SqlKind.INTERVAL_MILLIS: lambda rng: rng.randrange(10**9),
    SqlKind.RAW: lambda rng: rng.randbytes(8),
    SqlKind.VARIANT: lambda rng: rng.randbytes(8),
}
