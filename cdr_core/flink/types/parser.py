"""Parses the text of a type description."""

from __future__ import annotations

from functools import lru_cache

from cdr_core.flink.types.model import (
    Array,
    Kind,
    Nullable,
    RowData,
    Scalar,
    Struct,
    StructKind,
    TypeDescription,
)
from cdr_core.flink.types.scanner import Scanner, Token
from cdr_core.flink.types.sqlparser import parse_sql_fields

MAX_TUPLE = 25
"""Flink has Tuple1 to Tuple25."""

_SCALARS = {kind.value: kind for kind in Kind}


@lru_cache(maxsize=256)
def parse_type(text: str) -> TypeDescription:
    """Read a description, or refuse it with the column that is wrong and what is expected there.

    Type names may be in any case; names of fields are taken as they are, in backquotes if they need it.
    """
    scanner = Scanner(text)
    result = _parse(scanner, last=True)
    if scanner.token.kind != "end":
        scanner.expected("the end")
    return result


def _parse(scanner: Scanner, last: bool) -> TypeDescription:
    """Parse one type. ``last``: nothing follows it in the record, so it may be OPAQUE."""
    scanner.enter()
    if scanner.token.kind != "word":
        scanner.expected("a type")
    token = scanner.advance()
    word = token.value.upper()
    if word in _SCALARS:
        result: TypeDescription = _scalar(scanner, token, _SCALARS[word], last)
    elif word == "TUPLE":
        result = _tuple(scanner, last)
    elif word in ("ROW", "POJO"):
        result = _named(scanner, StructKind(word), last)
    elif word == "ARRAY":
        scanner.need("<")
        result = Array(_parse(scanner, last=False))
        scanner.need(">")
    elif word == "NULLABLE":
        result = _nullable(scanner, last)
    elif word == "ROWDATA":
        scanner.need("<")
        result = RowData(*parse_sql_fields(scanner, ">"))
    else:
        scanner.refuse(f"{token.value!r} is no type", token.column, f"types are {', '.join(_KNOWN)}")
    scanner.leave()
    return result


def _scalar(scanner: Scanner, token: Token, kind: Kind, last: bool) -> Scalar:
    if kind is Kind.OPAQUE and not last:
        scanner.refuse(
            "OPAQUE takes the rest of the record, so it can only be the last field",
            token.column,
            "describe what follows it, or make the record OPAQUE",
        )
    return Scalar(kind)


def _nullable(scanner: Scanner, last: bool) -> Nullable:
    scanner.need("<")
    column = scanner.token.column
    element = _parse(scanner, last)
    if isinstance(element, Nullable):
        scanner.refuse("NULLABLE inside NULLABLE has no effect", column, "write it once")
    scanner.need(">")
    return Nullable(element)


def _tuple(scanner: Scanner, last: bool) -> Struct:
    scanner.need("<")
    types: list[TypeDescription] = []
    opaque = 0
    while True:
        column = scanner.token.column
        _refuse_after_opaque(scanner, opaque)
        if len(types) == MAX_TUPLE:
            scanner.refuse(f"Flink's tuples have at most {MAX_TUPLE} fields", column, "use ROW or POJO")
        types.append(_parse(scanner, last))
        opaque = column if takes_the_rest(types[-1]) else 0
        if not scanner.take(","):
            break
    if not scanner.take(">"):
        scanner.expected("',' or '>'")
    return Struct(StructKind.TUPLE, tuple(f"f{i}" for i in range(len(types))), tuple(types))


def _named(scanner: Scanner, kind: StructKind, last: bool) -> Struct:
    scanner.need("<")
    names: list[str] = []
    types: list[TypeDescription] = []
    columns: list[int] = []
    while True:
        names.append(scanner.new_name(names))
        columns.append(scanner.token.column)
        types.append(_parse(scanner, last))
        if not scanner.take(","):
            break
    if not scanner.take(">"):
        scanner.expected("',' or '>'")
    struct = Struct(kind, tuple(names), tuple(types))
    for position in struct.byte_order[:-1]:
        _refuse_after_opaque(scanner, columns[position] if takes_the_rest(types[position]) else 0)
    return struct


def _refuse_after_opaque(scanner: Scanner, column: int) -> None:
    if column:
        scanner.refuse(
            "OPAQUE takes the rest of the record, but another field follows it in the bytes",
            column,
            "a POJO's fields follow each other by name; describe what follows, or make the record OPAQUE",
        )


def takes_the_rest(description: TypeDescription) -> bool:
    """Return whether the description ends in OPAQUE, so that nothing can follow it."""
    if isinstance(description, Scalar):
        return description.kind is Kind.OPAQUE
    if isinstance(description, Nullable):
        return takes_the_rest(description.element)
    return isinstance(description, Struct) and takes_the_rest(description.types[description.byte_order[-1]])


_KNOWN = (*_SCALARS, *(f"{kind}<…>" for kind in StructKind), "ARRAY<…>", "NULLABLE<…>", "ROWDATA<…>")
