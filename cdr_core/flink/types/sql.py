"""Flink SQL types: the columns of a ``ROWDATA<…>``, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from cdr_core.flink.types.names import quote

MAX_LENGTH = 2**31 - 1
"""STRING and BYTES are VARCHAR and VARBINARY of this length."""
COMPACT_DECIMAL = 18
"""Up to this precision a decimal is one long in its slot; above, bytes in the variable part."""
COMPACT_TIMESTAMP = 3
"""Up to this precision a timestamp is its milliseconds in its slot; above, eight bytes in the variable part as well."""
ARROW_TIMESTAMP = 6
"""Up to this precision Arrow's microseconds hold every value; above, the column is ISO-8601 text."""


class SqlKind(StrEnum):
    """A logical type's root; aliases (INTEGER, NUMERIC, TIMESTAMP WITH LOCAL TIME ZONE …) are resolved when parsed."""

    BOOLEAN = "BOOLEAN"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INT = "INT"
    BIGINT = "BIGINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    CHAR = "CHAR"
    VARCHAR = "VARCHAR"
    BINARY = "BINARY"
    VARBINARY = "VARBINARY"
    DECIMAL = "DECIMAL"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    TIMESTAMP_LTZ = "TIMESTAMP_LTZ"
    INTERVAL_MONTHS = "INTERVAL YEAR TO MONTH"
    INTERVAL_MILLIS = "INTERVAL DAY TO SECOND"
    ARRAY = "ARRAY"
    MAP = "MAP"
    MULTISET = "MULTISET"
    ROW = "ROW"
    RAW = "RAW"
    VARIANT = "VARIANT"


STRINGS = frozenset({SqlKind.CHAR, SqlKind.VARCHAR})
BINARIES = frozenset({SqlKind.BINARY, SqlKind.VARBINARY})
TIMESTAMPS = frozenset({SqlKind.TIMESTAMP, SqlKind.TIMESTAMP_LTZ})
NESTED = frozenset({SqlKind.ARRAY, SqlKind.MAP, SqlKind.MULTISET, SqlKind.ROW, SqlKind.RAW, SqlKind.VARIANT})
"""Always in the variable part, even if short."""

_WIDTHS = {
    SqlKind.BOOLEAN: 1,
    SqlKind.TINYINT: 1,
    SqlKind.SMALLINT: 2,
    SqlKind.INT: 4,
    SqlKind.FLOAT: 4,
    SqlKind.DATE: 4,
    SqlKind.TIME: 4,
    SqlKind.INTERVAL_MONTHS: 4,
}

_ARROW: dict[SqlKind, pa.DataType] = {
    SqlKind.BOOLEAN: pa.bool_(),
    SqlKind.TINYINT: pa.int8(),
    SqlKind.SMALLINT: pa.int16(),
    SqlKind.INT: pa.int32(),
    SqlKind.BIGINT: pa.int64(),
    SqlKind.FLOAT: pa.float32(),
    SqlKind.DOUBLE: pa.float64(),
    SqlKind.CHAR: pa.string(),
    SqlKind.VARCHAR: pa.string(),
    SqlKind.BINARY: pa.binary(),
    SqlKind.VARBINARY: pa.binary(),
    SqlKind.DATE: pa.date32(),
    SqlKind.TIME: pa.string(),
    SqlKind.INTERVAL_MONTHS: pa.int32(),
    SqlKind.INTERVAL_MILLIS: pa.int64(),
    SqlKind.RAW: pa.binary(),
    SqlKind.VARIANT: pa.binary(),
}


@dataclass(frozen=True, slots=True)
class SqlType:
    """One logical type.

    ``precision`` is the length of characters and bytes, the digits of DECIMAL, the fraction digits of times;
    ``children`` are an ARRAY's or MULTISET's element, a MAP's key and value, a ROW's fields (``names`` beside them).
    Whether a column may be null is not kept: Flink writes both alike.
    """

    kind: SqlKind
    precision: int = 0
    scale: int = 0
    children: tuple[SqlType, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The type as Flink SQL writes it."""
        if self.kind is SqlKind.ROW:
            return f"ROW<{fields_text(self.names, self.children)}>"
        if self.children:
            return f"{self.kind}<{', '.join(child.text for child in self.children)}>"
        if self.kind is SqlKind.DECIMAL:
            return f"DECIMAL({self.precision}, {self.scale})"
        if self.precision == MAX_LENGTH:
            return "STRING" if self.kind is SqlKind.VARCHAR else "BYTES"
        if self.kind in STRINGS | BINARIES | TIMESTAMPS | {SqlKind.TIME}:
            return f"{self.kind}({self.precision})"
        return str(self.kind)

    @property
    def width(self) -> int:
        """Return the number of bytes of an array's element, and how much of its eight a row's slot uses."""
        return _WIDTHS.get(self.kind, 8)

    @property
    def arrow_type(self) -> pa.DataType:
        """Return the Arrow type that holds every value of this one.

        Where none does (TIME for the tables we write to, timestamps finer than microseconds), it is ISO-8601 text;
        intervals are their months or milliseconds; RAW and VARIANT stay bytes.
        """
        if self.kind is SqlKind.DECIMAL:
            return pa.decimal128(self.precision, self.scale)
        if self.kind in TIMESTAMPS:
            if self.precision > ARROW_TIMESTAMP:
                return pa.string()
            return pa.timestamp("us", tz="UTC" if self.kind is SqlKind.TIMESTAMP_LTZ else None)
        if self.kind is SqlKind.ARRAY:
            return pa.list_(self.children[0].arrow_type)
        if self.kind is SqlKind.MAP:
            return pa.map_(self.children[0].arrow_type, self.children[1].arrow_type)
        if self.kind is SqlKind.MULTISET:
            return pa.map_(self.children[0].arrow_type, pa.int32())
        if self.kind is SqlKind.ROW:
            return struct_type(self.names, self.children)
        return _ARROW[self.kind]


def fields_text(names: tuple[str, ...], types: tuple[SqlType, ...]) -> str:
    """Return ``name TYPE, name TYPE``, names quoted where they need it."""
    return ", ".join(f"{quote(name)} {type_.text}" for name, type_ in zip(names, types, strict=True))


def struct_type(names: tuple[str, ...], types: tuple[SqlType, ...]) -> pa.StructType:
    """Return the Arrow struct of such fields, in their order."""
    return pa.struct([pa.field(name, type_.arrow_type) for name, type_ in zip(names, types, strict=True)])
