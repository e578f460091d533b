"""Types and values of them, for property tests. Values have the shape that decoding gives."""

from __future__ import annotations

import calendar
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from cdr_core.flink.types import Array, Kind, Nullable, RowData, Scalar, Struct, StructKind, TypeDescription
from cdr_core.flink.types.sql import MAX_LENGTH, SqlKind, SqlType

Values = st.SearchStrategy[Any]

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAMES = st.one_of(
    st.from_regex(r"[a-zA-Z_$][a-zA-Z0-9_$]{0,5}", fullmatch=True), st.sampled_from(["a b", "é", "`", "1"])
)


def signed(bits: int) -> Values:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _fraction(nanos: int) -> str:
    if nanos == 0:
        return ""
    for digits in (3, 6):
        if nanos % 10 ** (9 - digits) == 0:
            return f".{nanos // 10 ** (9 - digits):0{digits}d}"
    return f".{nanos:09d}"


@st.composite
def dates(draw: st.DrawFn, most: int = 999_999_999) -> str:
    year = draw(st.one_of(st.integers(-most, most), st.integers(1900, 2100), st.sampled_from([0, -1, 9999, 10000])))
    month = draw(st.integers(1, 12))
    leap = calendar.isleap(year)
    day = draw(st.integers(1, 28 + leap if month == 2 else 30 + (month not in (4, 6, 9, 11))))
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


@st.composite
def times(draw: st.DrawFn, step: int = 1) -> str:
    nanos = draw(st.one_of(st.just(0), st.integers(0, 10**9 // step - 1))) * step
    second = draw(st.integers(0, 86399))
    return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}{_fraction(nanos)}"


def moments(most: int, step: int = 1, zone: str = "Z") -> Values:
    return st.builds(lambda day, time: f"{day}T{time}{zone}", dates(most), times(step))


def _decimal_text(unscaled: int, scale: int) -> str:
    return str(Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale)))


BIG = st.one_of(signed(8), signed(64), signed(65), signed(700))

SCALARS: dict[Kind, Values] = {
    Kind.BOOLEAN: st.booleans(),
    Kind.BYTE: signed(8),
    Kind.SHORT: signed(16),
    Kind.INT: signed(32),
    Kind.LONG: signed(64),
    Kind.FLOAT: st.floats(width=32),
    Kind.DOUBLE: st.floats(),
    Kind.CHAR: st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF),
    Kind.STRING: TEXTS,
    Kind.BYTES: st.binary(max_size=40),
    Kind.BIGINT_BIG: BIG.map(str),
    Kind.DECIMAL_BIG: st.builds(
        _decimal_text, BIG, st.one_of(st.integers(-30, 60), signed(32).filter(lambda s: s > -(2**31)))
    ),
    Kind.INSTANT: moments(999_999_999),
    Kind.DATE: moments(292_000_000, 1_000_000),
    Kind.TIME: moments(292_000_000, 1_000_000),
    Kind.TIMESTAMP: moments(292_000_000),
    Kind.LOCALDATE: dates(),
    Kind.LOCALTIME: times(),
    Kind.LOCALDATETIME: moments(999_999_999, zone=""),
}

KNOW_NULL = {
    Kind.STRING, Kind.BIGINT_BIG, Kind.DECIMAL_BIG, Kind.INSTANT, Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.LOCALDATE,
    Kind.LOCALTIME, Kind.LOCALDATETIME,
}  # fmt: skip


def values(description: TypeDescription, null: bool = False) -> Values:
    """Values that the type can hold; None as well if what is around it has a way to write it."""
    strategy: Values
    if isinstance(description, Scalar):
        strategy = SCALARS[description.kind]
        null = null or description.kind in KNOW_NULL
    elif isinstance(description, Nullable):
        return values(description.element, null=True)
    elif isinstance(description, Array):
        strategy = st.lists(values(description.content, null=description.boxed), max_size=4)
    elif isinstance(description, RowData):
        strategy = st.fixed_dictionaries(
            {name: sql_values(type_) for name, type_ in zip(description.names, description.types, strict=True)}
        )
    else:
        assert isinstance(description, Struct)
        loose = description.kind is not StructKind.TUPLE
        strategy = st.fixed_dictionaries(
            {name: values(type_, null=loose) for name, type_ in zip(description.names, description.types, strict=True)}
        )
        null = null or description.kind is StructKind.POJO
    return st.none() | strategy if null else strategy


def _structs(types: st.SearchStrategy[TypeDescription]) -> st.SearchStrategy[TypeDescription]:
    def named(kind: StructKind, names: list[str], parts: list[TypeDescription]) -> Struct:
        count = min(len(names), len(parts))
        return Struct(kind, tuple(names[:count]), tuple(parts[:count]))

    parts = st.lists(types, min_size=1, max_size=12)
    names = st.lists(NAMES, min_size=1, max_size=12, unique=True)
    return st.one_of(
        parts.map(lambda p: Struct(StructKind.TUPLE, tuple(f"f{i}" for i in range(len(p))), tuple(p))),
        st.builds(named, st.sampled_from([StructKind.ROW, StructKind.POJO]), names, parts),
        types.map(Array),
        types.filter(lambda t: not isinstance(t, Nullable)).map(Nullable),
    )


def row_datas(depth: int = 2) -> st.SearchStrategy[RowData]:
    return sql_rows(depth).map(lambda row: RowData(row.names, row.children))


def descriptions() -> st.SearchStrategy[TypeDescription]:
    """Types of every kind but OPAQUE, nested a few levels."""
    flat = st.sampled_from(list(SCALARS)).map(Scalar)
    return st.recursive(flat | row_datas(1), _structs, max_leaves=12)


# --- SQL ---

LENGTHS = st.sampled_from([1, 7, 8, 100, MAX_LENGTH])
PLAIN_SQL = [
    SqlKind.BOOLEAN, SqlKind.TINYINT, SqlKind.SMALLINT, SqlKind.INT, SqlKind.BIGINT, SqlKind.FLOAT, SqlKind.DOUBLE,
    SqlKind.DATE, SqlKind.INTERVAL_MONTHS, SqlKind.INTERVAL_MILLIS, SqlKind.RAW, SqlKind.VARIANT,
]  # fmt: skip


def flat_sql() -> st.SearchStrategy[SqlType]:
    def decimal(precision: int, share: float) -> SqlType:
        return SqlType(SqlKind.DECIMAL, precision=precision, scale=int(precision * share))

    def stamp(kind: SqlKind, precision: int) -> SqlType:
        return SqlType(kind, precision=precision)

    return st.one_of(
        st.sampled_from(PLAIN_SQL).map(SqlType),
        st.builds(stamp, st.sampled_from([SqlKind.VARCHAR, SqlKind.VARBINARY]), LENGTHS),
        st.builds(stamp, st.sampled_from([SqlKind.CHAR, SqlKind.BINARY]), st.integers(1, 20)),
        st.builds(decimal, st.integers(1, 38), st.floats(0, 1)),
        st.builds(stamp, st.sampled_from([SqlKind.TIMESTAMP, SqlKind.TIMESTAMP_LTZ, SqlKind.TIME]), st.integers(0, 9)),
    )


def sql_rows(depth: int) -> st.SearchStrategy[SqlType]:
    return st.lists(st.tuples(NAMES, sql_types(depth - 1)), min_size=1, max_size=8, unique_by=lambda f: f[0]).map(
        lambda fields: SqlType(SqlKind.ROW, children=tuple(t for _, t in fields), names=tuple(n for n, _ in fields))
    )


def sql_types(depth: int) -> st.SearchStrategy[SqlType]:
    if depth <= 0:
        return flat_sql()
    inner = sql_types(depth - 1)
    return st.one_of(
        flat_sql(),
        flat_sql(),
        inner.map(lambda t: SqlType(SqlKind.ARRAY, children=(t,))),
        flat_sql().map(lambda t: SqlType(SqlKind.MULTISET, children=(t,))),
        st.tuples(flat_sql(), inner).map(lambda pair: SqlType(SqlKind.MAP, children=pair)),
        sql_rows(depth),
    )


def _stamps(type_: SqlType) -> Values:
    zone = type_.kind is SqlKind.TIMESTAMP_LTZ
    if type_.precision > 6:
        return moments(200_000_000, zone="Z" if zone else "")
    step = 1000 if type_.precision <= 3 else 1
    moment = st.integers(-62_135_596_800_000_000 // step, 253_402_300_799_999_999 // step)

    def build(count: int) -> datetime:
        seconds, micros = divmod(count * step, 10**6)
        exact = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)
        return exact if zone else exact.replace(tzinfo=None)

    return moment.map(build)


_FLAT_SQL: dict[SqlKind, Values] = {
    SqlKind.BOOLEAN: st.booleans(),
    SqlKind.TINYINT: signed(8),
    SqlKind.SMALLINT: signed(16),
    SqlKind.INT: signed(32),
    SqlKind.BIGINT: signed(64),
    SqlKind.FLOAT: st.floats(width=32),
    SqlKind.DOUBLE: st.floats(),
    SqlKind.CHAR: TEXTS,
    SqlKind.VARCHAR: TEXTS,
    SqlKind.BINARY: st.binary(max_size=20),
    SqlKind.VARBINARY: st.binary(max_size=20),
    SqlKind.DATE: st.dates(date(1, 1, 1)),
    SqlKind.TIME: times(1_000_000),
    SqlKind.INTERVAL_MONTHS: signed(32),
    SqlKind.INTERVAL_MILLIS: signed(64),
    SqlKind.RAW: st.binary(max_size=20),
    SqlKind.VARIANT: st.binary(max_size=20),
}


def sql_values(type_: SqlType, null: bool = True) -> Values:
    """Values of a SQL type, None as well if it may be."""
    strategy: Values
    if type_.kind in _FLAT_SQL:
        strategy = _FLAT_SQL[type_.kind]
    elif type_.kind is SqlKind.DECIMAL:
        limit = 10**type_.precision - 1
        strategy = st.integers(-limit, limit).map(
            lambda u: Decimal((int(u < 0), tuple(map(int, str(abs(u)))), -type_.scale))
        )
    elif type_.kind in (SqlKind.TIMESTAMP, SqlKind.TIMESTAMP_LTZ):
        strategy = _stamps(type_)
    elif type_.kind is SqlKind.ARRAY:
        strategy = st.lists(sql_values(type_.children[0]), max_size=4)
    elif type_.kind is SqlKind.ROW:
        strategy = st.fixed_dictionaries(
            {name: sql_values(child) for name, child in zip(type_.names, type_.children, strict=True)}
        )
    else:
        value = sql_values(type_.children[1]) if type_.kind is SqlKind.MAP else signed(32)
        strategy = st.lists(st.tuples(sql_values(type_.children[0], null=False), value), max_size=3)
    return st.none() | strategy if null else strategy
