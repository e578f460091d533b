"""What is encoded decodes to the same values, for every type, nested and null."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdr_core.flink.decode import ROW_KINDS, decode_values
from cdr_core.flink.types import Nullable, RowData, Scalar, Struct, TypeDescription, parse_type
from cdr_core.synthetic.encode import encode_value
from tests.flink_formats.types.batches import batch, decode, same
from tests.flink_formats.types.strategies import SCALARS, descriptions, row_datas, values

MANY = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
FEW = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


def shown(description: TypeDescription, value: Any) -> Any:
    """As decoding gives it: a value without fields is the field f0."""
    inner = description.element if isinstance(description, Nullable) else description
    return value if isinstance(inner, Struct | RowData) else {"f0": value}


def check(description: TypeDescription, records: list[Any]) -> None:
    encoded = [encode_value(description, record) for record in records]
    decoded = decode_values(description, *batch(encoded))
    decoded.values.validate(full=True)
    assert decoded.values.type == description.arrow_type
    expected = [shown(description, record) for record in records]
    assert same(decoded.values.to_pylist(), expected)
    again = [encode_value(description, record) for record in decoded.values.to_pylist()]
    assert again == encoded


@FEW
@given(data=st.data())
@pytest.mark.parametrize("kind", SCALARS)
def test_every_scalar(kind: Any, data: st.DataObject) -> None:
    description = Scalar(kind)
    check(description, data.draw(st.lists(values(description), max_size=8)))


@MANY
@given(data=st.data(), description=descriptions())
def test_any_nesting(description: TypeDescription, data: st.DataObject) -> None:
    check(description, data.draw(st.lists(values(description), max_size=4)))


@MANY
@given(data=st.data(), description=row_datas())
def test_any_binary_row(description: RowData, data: st.DataObject) -> None:
    check(description, data.draw(st.lists(values(description), max_size=4)))


@pytest.mark.parametrize("text", ["ROW<a INT>", "ROWDATA<a INT>", "NULLABLE<ROW<a INT, b STRING>>"])
def test_row_kinds_survive(text: str) -> None:
    description = parse_type(text)
    encoded = [encode_value(description, {"a": 1}, row_kind=kind) for kind in ROW_KINDS]
    assert decode(text, *encoded).row_kind.to_pylist() == list(ROW_KINDS)


def test_a_type_without_kinds_has_none() -> None:
    assert decode("TUPLE<INT>", bytes(4), bytes(4)).row_kind.to_pylist() == [None, None]


def test_a_row_that_is_null_has_no_kind() -> None:
    assert decode("NULLABLE<ROW<a INT>>", b"\1").row_kind.to_pylist() == [None]


@pytest.mark.parametrize("text", ["TUPLE<LONG, INT, LONG, STRING>", "ROWDATA<a INT>", "ARRAY<INT>", "STRING"])
def test_no_records_give_an_empty_column(text: str) -> None:
    assert decode(text).values.to_pylist() == []


def test_a_long_list_of_longs_is_exact() -> None:
    description = parse_type("ARRAY<LONG>")
    numbers = [2**63 - 1 - i for i in range(1000)]
    assert decode("ARRAY<LONG>", encode_value(description, numbers)).values.to_pylist() == [{"f0": numbers}]
