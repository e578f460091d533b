"""Flink SQL types as Flink prints and accepts them."""

from __future__ import annotations

from collections.abc import Callable

from cdr_core.flink.types.scanner import Scanner
from cdr_core.flink.types.sql import MAX_LENGTH, SqlKind, SqlType

_ALIASES = {"INTEGER": "INT", "DEC": "DECIMAL", "NUMERIC": "DECIMAL"}
_PLAIN = {
    kind.value: kind
    for kind in (
        SqlKind.BOOLEAN,
        SqlKind.TINYINT,
        SqlKind.SMALLINT,
        SqlKind.INT,
        SqlKind.BIGINT,
        SqlKind.FLOAT,
        SqlKind.DATE,
        SqlKind.VARIANT,
    )
}
_LENGTHS = {kind.value: kind for kind in (SqlKind.CHAR, SqlKind.VARCHAR, SqlKind.BINARY, SqlKind.VARBINARY)}
_MONTH_UNITS = ("YEAR", "MONTH")
_MILLI_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND")


def parse_sql_fields(scanner: Scanner, close: str) -> tuple[tuple[str, ...], tuple[SqlType, ...]]:
    """Parse ``name TYPE, …`` up to and with the closing sign; at least one, no name twice."""
    names: list[str] = []
    types: list[SqlType] = []
    while True:
        names.append(scanner.new_name(names))
        types.append(parse_sql(scanner))
        if scanner.token.kind == "literal":  # a column's comment
            scanner.advance()
        if not scanner.take(","):
            break
    if not scanner.take(close):
        scanner.expected(f"',' or {close!r}")
    return tuple(names), tuple(types)


def parse_sql(scanner: Scanner) -> SqlType:
    """Parse one type with an optional NOT NULL or NULL behind it, which changes nothing in the bytes."""
    scanner.enter()
    if scanner.token.kind != "word":
        scanner.expected("a Flink SQL type")
    token = scanner.token
    word = _ALIASES.get(token.value.upper(), token.value.upper())
    if word in _PLAIN:
        scanner.advance()
        result = SqlType(_PLAIN[word])
    elif word in _LENGTHS:
        scanner.advance()
        result = SqlType(_LENGTHS[word], precision=_optional(scanner, 1, 1, MAX_LENGTH, "a length"))
    elif word in _SPECIAL:
        scanner.advance()
        result = _SPECIAL[word](scanner)
    else:
        scanner.expected("a Flink SQL type")
    if scanner.take_word("NOT") and not scanner.take_word("NULL"):
        scanner.expected("NULL after NOT")
    scanner.take_word("NULL")
    scanner.leave()
    return result


def _optional(scanner: Scanner, default: int, least: int, most: int, what: str) -> int:
    if not scanner.take("("):
        return default
    number = scanner.number(least, most, what)
    scanner.need(")")
    return number


def _string(scanner: Scanner) -> SqlType:
    return SqlType(SqlKind.VARCHAR, precision=MAX_LENGTH)


def _bytes(scanner: Scanner) -> SqlType:
    return SqlType(SqlKind.VARBINARY, precision=MAX_LENGTH)


def _double(scanner: Scanner) -> SqlType:
    scanner.take_word("PRECISION")
    return SqlType(SqlKind.DOUBLE)


def _decimal(scanner: Scanner) -> SqlType:
    precision, scale = 10, 0
    if scanner.take("("):
        precision = scanner.number(1, 38, "the digits of a DECIMAL")
        if scanner.take(","):
            scale = scanner.number(0, precision, "the scale of a DECIMAL")
        scanner.need(")")
    return SqlType(SqlKind.DECIMAL, precision=precision, scale=scale)


def _time(scanner: Scanner) -> SqlType:
    precision = _optional(scanner, 0, 0, 9, "a precision")
    _without_zone(scanner)
    return SqlType(SqlKind.TIME, precision=precision)


def _without_zone(scanner: Scanner) -> bool:
    """Step over WITHOUT TIME ZONE or WITH LOCAL TIME ZONE; true for the latter."""
    if scanner.take_word("WITHOUT"):
        local = False
    elif scanner.take_word("WITH"):
        if not scanner.take_word("LOCAL"):
            scanner.expected("LOCAL: a zone per value has no binary form in Flink")
        local = True
    else:
        return False
    for word in ("TIME", "ZONE"):
        if not scanner.take_word(word):
            scanner.expected(word)
    return local


def _timestamp(scanner: Scanner) -> SqlType:
    precision = _optional(scanner, 6, 0, 9, "a precision")
    kind = SqlKind.TIMESTAMP_LTZ if _without_zone(scanner) else SqlKind.TIMESTAMP
    return SqlType(kind, precision=precision)


def _timestamp_ltz(scanner: Scanner) -> SqlType:
    return SqlType(SqlKind.TIMESTAMP_LTZ, precision=_optional(scanner, 6, 0, 9, "a precision"))


def _interval(scanner: Scanner) -> SqlType:
    """Parse any interval: months or milliseconds, whatever the units' digits."""
    units = []
    while True:
        word = scanner.token.value.upper() if scanner.token.kind == "word" else ""
        if word not in _MONTH_UNITS + _MILLI_UNITS:
            scanner.expected("YEAR, MONTH, DAY, HOUR, MINUTE or SECOND")
        scanner.advance()
        _optional(scanner, 0, 0, 9, "a precision")
        units.append(word)
        if not scanner.take_word("TO"):
            break
    months = [unit in _MONTH_UNITS for unit in units]
    if len(units) > 2 or any(months) != all(months):
        scanner.expected("an interval of years and months, or of days to seconds")
    return SqlType(SqlKind.INTERVAL_MONTHS if months[0] else SqlKind.INTERVAL_MILLIS)


def _raw(scanner: Scanner) -> SqlType:
    """Parse ``RAW('class', 'snapshot')``: both are kept as text only, the value stays bytes."""
    if scanner.take("("):
        while scanner.token.kind == "literal":
            scanner.advance()
            scanner.take(",")
        scanner.need(")")
    return SqlType(SqlKind.RAW)


def _nested(kind: SqlKind, count: int) -> Callable[[Scanner], SqlType]:
    def parse(scanner: Scanner) -> SqlType:
        scanner.need("<")
        children = [parse_sql(scanner)]
        for _ in range(count - 1):
            scanner.need(",")
            children.append(parse_sql(scanner))
        scanner.need(">")
        return SqlType(kind, children=tuple(children))

    return parse


def _row(scanner: Scanner) -> SqlType:
    close = ")" if scanner.take("(") else ">"
    if close == ">":
        scanner.need("<")
    names, types = parse_sql_fields(scanner, close)
    return SqlType(SqlKind.ROW, children=types, names=names)


_SPECIAL: dict[str, Callable[[Scanner], SqlType]] = {
    "STRING": _string,
    "BYTES": _bytes,
    "DOUBLE": _double,
    "DECIMAL": _decimal,
    "TIME": _time,
    "TIMESTAMP": _timestamp,
    "TIMESTAMP_LTZ": _timestamp_ltz,
    "INTERVAL": _interval,
    "RAW": _raw,
    "ARRAY": _nested(SqlKind.ARRAY, 1),
    "MULTISET": _nested(SqlKind.MULTISET, 1),
    "MAP": _nested(SqlKind.MAP, 2),
    "ROW": _row,
}
