"""Options that both formats share, and filters that they evaluate before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In

from cdr_core.errors import Refused

Test = Callable[[Any], bool]


def required(options: Mapping[str, str], name: str, example: str) -> str:
    """An option that must be given."""
    value = options.get(name)
    if not value:
        raise Refused(f"the data source needs the option {name!r}", hint=f"write .option({name!r}, {example})")
    return value


def split_filters(filters: Iterable[Filter], columns: frozenset[str]) -> tuple[dict[str, list[Test]], list[Filter]]:
    """Filters on these columns as tests by column, and the others, which Spark applies itself."""
    tests: dict[str, list[Test]] = {}
    left: list[Filter] = []
    for each in filters:
        if isinstance(each, EqualTo | EqualNullSafe | In) and ".".join(each.attribute) in columns:
            tests.setdefault(".".join(each.attribute), []).append(_test(each))
        else:
            left.append(each)
    return tests, left


def _test(each: EqualTo | EqualNullSafe | In) -> Test:
    allowed = tuple(each.value) if isinstance(each, In) else (each.value,)
    return lambda value: value in allowed


def passes(tests: Mapping[str, list[Test]], values: Mapping[str, Any]) -> bool:
    """Whether all tests on these values hold; columns without a value are not judged here."""
    return all(test(values[column]) for column, each in tests.items() if column in values for test in each)
