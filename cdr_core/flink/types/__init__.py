"""The type descriptions of a job spec: parsing, canonical text, Arrow types."""

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
