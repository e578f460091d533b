"""The type descriptions of a job spec: parsing, canonical text, Arrow types.

What a name stands for, where Flink has more than one way:

* ``ARRAY<LONG>`` is ``long[]`` and ``ARRAY<STRING>`` is ``String[]``; ``ARRAY<NULLABLE<LONG>>`` is ``Long[]``. Arrays
  of anything else are object arrays, whose elements may be null without saying so.
* ``NULLABLE<…>`` is Flink's NullableSerializer without padding. ROW and POJO fields may be null anyway.
* ``DATE`` is java.util.Date or java.sql.Date; ``TIME`` and ``TIMESTAMP`` are java.sql's.
* ``OPAQUE`` is the rest of the record, for what only the JVM can read: ``TUPLE<LONG, OPAQUE>`` still has a key.
* ``POJO<…>`` is exactly that class; a value of a subclass is a fault. Its fields may be listed in any order.

What becomes of a value: primitives, strings and bytes are what Arrow has for them. Big numbers, and dates and times of
Java, are text as Java prints it, because no type that tables know holds them all. SQL's decimals, dates and timestamps
up to microseconds are Arrow's; SQL's TIME and finer timestamps are text; intervals are their months or milliseconds.
"""

from __future__ import annotations

from cdr_core.flink.types.model import (
    PRIMITIVES,
    Array,
    Kind,
    Nullable,
    RowData,
    Scalar,
    Struct,
    StructKind,
    TypeDescription,
)
from cdr_core.flink.types.parser import parse_type
from cdr_core.flink.types.sql import SqlKind, SqlType

__all__ = [
    "PRIMITIVES",
    "Array",
    "Kind",
    "Nullable",
    "RowData",
    "Scalar",
    "SqlKind",
    "SqlType",
    "Struct",
    "StructKind",
    "TypeDescription",
    "parse_type",
]
