"""Compares a type of a job spec with the serializer that Flink stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cdr_core.flink.state.serializers import Serializer
from cdr_core.flink.types import (
    Array,
    Kind,
    Nullable,
    RowData,
    Scalar,
    SqlKind,
    SqlType,
    Struct,
    StructKind,
    TypeDescription,
)

_SCALARS: Final[dict[str, Kind]] = {
    "BooleanSerializer": Kind.BOOLEAN,
    "ByteSerializer": Kind.BYTE,
    "ShortSerializer": Kind.SHORT,
    "IntSerializer": Kind.INT,
    "LongSerializer": Kind.LONG,
    "FloatSerializer": Kind.FLOAT,
    "DoubleSerializer": Kind.DOUBLE,
    "CharSerializer": Kind.CHAR,
    "StringSerializer": Kind.STRING,
    "BytePrimitiveArraySerializer": Kind.BYTES,
    "BigIntSerializer": Kind.BIGINT_BIG,
    "BigDecSerializer": Kind.DECIMAL_BIG,
    "InstantSerializer": Kind.INSTANT,
    "DateSerializer": Kind.DATE,
    "SqlDateSerializer": Kind.DATE,
    "SqlTimeSerializer": Kind.TIME,
    "SqlTimestampSerializer": Kind.TIMESTAMP,
    "LocalDateSerializer": Kind.LOCALDATE,
    "LocalTimeSerializer": Kind.LOCALTIME,
    "LocalDateTimeSerializer": Kind.LOCALDATETIME,
}
_ARRAYS: Final[dict[str, Kind]] = {
    "BooleanPrimitiveArraySerializer": Kind.BOOLEAN,
    "BytePrimitiveArraySerializer": Kind.BYTE,
    "ShortPrimitiveArraySerializer": Kind.SHORT,
    "IntPrimitiveArraySerializer": Kind.INT,
    "LongPrimitiveArraySerializer": Kind.LONG,
    "FloatPrimitiveArraySerializer": Kind.FLOAT,
    "DoublePrimitiveArraySerializer": Kind.DOUBLE,
    "CharPrimitiveArraySerializer": Kind.CHAR,
    "StringArraySerializer": Kind.STRING,
}
_STRUCTS: Final = {
    "TupleSerializer": StructKind.TUPLE,
    "RowSerializer": StructKind.ROW,
    "PojoSerializer": StructKind.POJO,
}
_COLUMNS: Final[dict[str, frozenset[SqlKind]]] = {
    "BooleanSerializer": frozenset({SqlKind.BOOLEAN}),
    "ByteSerializer": frozenset({SqlKind.TINYINT}),
    "ShortSerializer": frozenset({SqlKind.SMALLINT}),
    "IntSerializer": frozenset({SqlKind.INT, SqlKind.DATE, SqlKind.TIME, SqlKind.INTERVAL_MONTHS}),
    "LongSerializer": frozenset({SqlKind.BIGINT, SqlKind.INTERVAL_MILLIS}),
    "FloatSerializer": frozenset({SqlKind.FLOAT}),
    "DoubleSerializer": frozenset({SqlKind.DOUBLE}),
    "StringDataSerializer": frozenset({SqlKind.CHAR, SqlKind.VARCHAR}),
    "BytePrimitiveArraySerializer": frozenset({SqlKind.BINARY, SqlKind.VARBINARY}),
    "DecimalDataSerializer": frozenset({SqlKind.DECIMAL}),
    "TimestampDataSerializer": frozenset({SqlKind.TIMESTAMP, SqlKind.TIMESTAMP_LTZ}),
    "RowDataSerializer": frozenset({SqlKind.ROW}),
}
_ROW: Final = "RowDataSerializer"
_NULLABLE: Final = "NullableSerializer"


def key_agrees(key: TypeDescription, found: Serializer) -> bool | None:
    """Return whether this is the serializer of a key of this type; ``None`` where the type language cannot tell.

    A nullable field of the record proves nothing about the key, which may not be null.
    """
    if isinstance(key, Struct) and key.kind is StructKind.TUPLE:
        key = replace(key, types=tuple(map(_required, key.types)))
        found = replace(found, parts=tuple(map(_required_serializer, found.parts)))
    return agrees(_required(key), _required_serializer(found))


def agrees(description: TypeDescription, found: Serializer) -> bool | None:
    """Return whether the serializer writes this type; ``None`` where the type language cannot tell.

    A tuple of one field counts as the field: it has the same bytes and the same hash code.
    """
    description, found = _unwrapped(description), _unwrapped_serializer(found)
    if description == Scalar(Kind.OPAQUE) or not _is_known(found):
        return None
    if isinstance(description, Nullable):
        return found.name == _NULLABLE and agrees(description.element, _required_serializer(found))
    if found.name == _NULLABLE:
        return False
    if isinstance(description, RowData):
        return found.name == _ROW and _all(
            [_column_agrees(type_, part) for type_, part in zip(description.types, found.parts, strict=False)],
            same_length=len(description.types) == len(found.parts),
        )
    if isinstance(description, Struct):
        return _struct_agrees(description, found)
    if isinstance(description, Array):
        return isinstance(description.element, Scalar) and _ARRAYS.get(found.name) is description.element.kind
    return isinstance(description, Scalar) and _SCALARS.get(found.name) is description.kind


def type_text(found: Serializer) -> str:
    """Return the serializer in the words of a job spec; its class where there are none."""
    if found.name == _ROW:
        return f"ROWDATA<{', '.join(map(_column_text, found.parts))}>"
    if found.name in _STRUCTS:
        parts = [type_text(part) for part in found.parts]
        named = [f"{name} {part}" for name, part in zip(found.names, parts, strict=True)] if found.names else parts
        return f"{_STRUCTS[found.name]}<{', '.join(named)}>"
    if found.name in _ARRAYS and found.name not in _SCALARS:
        return f"ARRAY<{_ARRAYS[found.name]}>"
    if found.name == _NULLABLE and found.parts:
        return f"NULLABLE<{type_text(found.parts[0])}>"
    return str(_SCALARS.get(found.name, found.name))


def _struct_agrees(description: Struct, found: Serializer) -> bool | None:
    if _STRUCTS.get(found.name) is not description.kind:
        return False
    types = [description.types[i] for i in description.byte_order]
    if found.names and [description.names[i] for i in description.byte_order] != list(found.names):
        return False
    parts = [agrees(type_, part) for type_, part in zip(types, found.parts, strict=False)]
    # An OPAQUE last field stands for all the fields that follow.
    open_end = bool(types) and types[-1] == Scalar(Kind.OPAQUE) and len(types) <= len(found.parts)
    return _all(parts, same_length=open_end or len(types) == len(found.parts))


def _column_agrees(type_: SqlType, found: Serializer) -> bool | None:
    kinds = _COLUMNS.get(found.name)
    if kinds is None:
        return None
    if type_.kind not in kinds:
        return False
    if type_.kind is SqlKind.ROW:
        parts = [_column_agrees(child, part) for child, part in zip(type_.children, found.parts, strict=False)]
        return _all(parts, same_length=len(type_.children) == len(found.parts))
    wanted = (type_.precision, type_.scale)[: len(found.numbers)]
    return wanted == found.numbers


def _column_text(found: Serializer) -> str:
    usual = min(_COLUMNS.get(found.name, ()), key=list(SqlKind).index, default=found.name)
    return f"{usual}({', '.join(map(str, found.numbers))})" if found.numbers else str(usual)


def _all(parts: list[bool | None], *, same_length: bool) -> bool | None:
    if not same_length or False in parts:
        return False
    return None if None in parts else True


def _required(description: TypeDescription) -> TypeDescription:
    return description.element if isinstance(description, Nullable) else description


def _required_serializer(found: Serializer) -> Serializer:
    return found.parts[0] if found.name == _NULLABLE and found.parts else found


def _unwrapped(description: TypeDescription) -> TypeDescription:
    while isinstance(description, Struct) and description.kind is StructKind.TUPLE and len(description.types) == 1:
        description = description.types[0]
    return description


def _unwrapped_serializer(found: Serializer) -> Serializer:
    while found.name == "TupleSerializer" and len(found.parts) == 1:
        found = found.parts[0]
    return found


def _is_known(found: Serializer) -> bool:
    return found.name in {*_SCALARS, *_ARRAYS, *_STRUCTS, _ROW, _NULLABLE}
