"""Options that both formats share, and filters that are evaluated before anything is read."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from cdr_core.errors import Refused

Test = Callable[[Any], bool]


def required(options: Mapping[str, str], name: str, example: str) -> str:
    """Return an option that must be given."""
    value = options.get(name)
    if not value:
        raise Refused(f"the data source needs the option {name!r}", hint=f"write .option({name!r}, {example})")
    return value


def chosen(options: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """Return an option that is one of these; the first is its default."""
    value = options.get(name, values[0])
    if value not in values:
        raise Refused(f"the data source's option {name!r} is {value!r}", hint=f"write {' or '.join(values)}")
    return value


def require_columns(wanted: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a read schema with a column that the source does not have."""
    columns = list(known)
    unknown = [name for name in wanted if name not in columns]
    if unknown:
        what = f"the read schema has a column {unknown[0]!r}, which the data source does not have"
        raise Refused(what, hint=f"its columns are {', '.join(columns)}")


def split_filters(filters: Iterable[Filter], columns: frozenset[str]) -> tuple[dict[str, list[Test]], list[Filter]]:
    """Return filters on these columns as tests by column, and the others, which Spark applies itself."""
    tests: dict[str, list[Test]] = {}
    left: list[Filter] = []
    for each in filters:
        test = _test(each)
        column = ".".join(getattr(each, "attribute", ()))
        if test is not None and column in columns:
            tests.setdefault(column, []).append(test)
        else:
            left.append(each)
    return tests, left


def _test(each: Filter) -> Test | None:
    """Return the filter as a function of its column's value; ``None`` for kinds that are left to Spark.

    The columns that are pushed are never null, so "is not null" holds and null-safe equality is equality.
    """
    match each:
        case IsNotNull():
            return lambda _: True
        case In():
            allowed = tuple(each.value)
            return lambda value: value in allowed
        case EqualTo() | EqualNullSafe() | LessThan() | LessThanOrEqual() | GreaterThan() | GreaterThanOrEqual():
            compare, bound = _COMPARISONS[type(each)], each.value
            return lambda value: bool(compare(value, bound))
        case _:
            return None


_COMPARISONS: dict[type[Filter], Callable[[Any, Any], Any]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
}


def passes(tests: Mapping[str, list[Test]], values: Mapping[str, Any]) -> bool:
    """Return whether all tests on these values hold; columns without a value are not judged here."""
    return all(test(values[column]) for column, each in tests.items() if column in values for test in each)
