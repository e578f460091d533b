"""Columns of tables that others made: whether a recovery's rows fit, and under which types they are stored."""

from __future__ import annotations

import pyarrow as pa

_NARROWER = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


def plain(type_: pa.DataType, *, widen: bool = False) -> pa.DataType:
    """The same type as every library spells it: 32-bit offsets, the usual names of children, everything nullable.

    ``widen`` is for formats that know no integer below 32 bits.
    """
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(child.name, plain(child.type, widen=widen)) for child in type_])
    if pa.types.is_map(type_):
        return pa.map_(plain(type_.key_type, widen=widen), plain(type_.item_type, widen=widen))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(plain(type_.value_type, widen=widen))
    if widen and type_ in (pa.int8(), pa.int16()):
        return pa.int32()
    return _NARROWER.get(type_, type_)


def difference(expected: pa.Schema, found: pa.Schema, *, widen: bool = False) -> str | None:
    """What keeps rows of ``expected`` out of a table with the columns ``found``; ``None`` when they fit."""
    missing = [name for name in expected.names if name not in found.names]
    if missing:
        return f"has no column {missing[0]}"
    extra = [name for name in found.names if name not in expected.names]
    if extra:
        return f"has a column {extra[0]}, which a recovery does not fill"
    for field in expected:
        there, ours = plain(found.field(field.name).type, widen=widen), plain(field.type, widen=widen)
        if there != ours:
            return f"has column {field.name} of type {there} instead of {ours}"
        if field.nullable and not found.field(field.name).nullable:
            return f"has column {field.name} as not null"
    return None


def narrow(field: pa.Field) -> pa.Field:
    """The field with 32-bit offsets; names, nullability and metadata (a format's field ids) stay as they are."""
    return field.with_type(_narrow(field.type))


def _narrow(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct([narrow(child) for child in type_])
    if pa.types.is_map(type_):
        return pa.map_(narrow(type_.key_field), narrow(type_.item_field))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(narrow(type_.value_field))
    return _NARROWER.get(type_, type_)
