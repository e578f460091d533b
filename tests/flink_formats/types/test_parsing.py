"""Type descriptions: what is read, what is refused and how, and that the canonical text reads back."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdr_core.errors import SpecRefused
from cdr_core.flink.types import RowData, TypeDescription, parse_type
from tests.flink_formats.types.strategies import descriptions, row_datas


@settings(max_examples=100, deadline=None)
@given(st.one_of(descriptions(), row_datas()))
def test_the_canonical_text_reads_back_to_the_same_type(description: TypeDescription) -> None:
    again = parse_type(description.text)
    assert again == description
    assert hash(again) == hash(description)
    assert again.text == description.text


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=60), st.text("TUPLE<ROWAINT>, ()`'X", max_size=60)))
def test_any_text_is_a_type_or_refused(text: str) -> None:
    with suppress(SpecRefused):
        description = parse_type(text)
        assert parse_type(description.text) == description


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (" tuple< long,INT , Long,string > ", "TUPLE<LONG, INT, LONG, STRING>"),
        ("row<Name string, `odd name` INT>", "ROW<Name STRING, `odd name` INT>"),
        ("POJO<b LONG, a INT>", "POJO<b LONG, a INT>"),
        ("TUPLE<LONG, OPAQUE>", "TUPLE<LONG, OPAQUE>"),
        ("POJO<z OPAQUE, a INT>", "POJO<z OPAQUE, a INT>"),
        ("ROW<a INT, b NULLABLE<TUPLE<INT, OPAQUE>>>", "ROW<a INT, b NULLABLE<TUPLE<INT, OPAQUE>>>"),
        ("ROWDATA<k BIGINT NOT NULL, v STRING NULL 'a comment'>", "ROWDATA<k BIGINT, v STRING>"),
        ("ROWDATA<a INTEGER, b NUMERIC(5), c DEC>", "ROWDATA<a INT, b DECIMAL(5, 0), c DECIMAL(10, 0)>"),
        ("ROWDATA<a DOUBLE PRECISION>", "ROWDATA<a DOUBLE>"),
        ("ROWDATA<a VARCHAR(2147483647), b VARBINARY(2147483647), c CHAR>", "ROWDATA<a STRING, b BYTES, c CHAR(1)>"),
        ("ROWDATA<a TIMESTAMP, b TIMESTAMP(3) WITHOUT TIME ZONE>", "ROWDATA<a TIMESTAMP(6), b TIMESTAMP(3)>"),
        ("ROWDATA<a TIMESTAMP(3) WITH LOCAL TIME ZONE, b TIME>", "ROWDATA<a TIMESTAMP_LTZ(3), b TIME(0)>"),
        ("ROWDATA<a INTERVAL DAY(2) TO SECOND(3)>", "ROWDATA<a INTERVAL DAY TO SECOND>"),
        ("ROWDATA<a INTERVAL MONTH>", "ROWDATA<a INTERVAL YEAR TO MONTH>"),
        ("ROWDATA<a ROW(x INT, y ARRAY<STRING NOT NULL>)>", "ROWDATA<a ROW<x INT, y ARRAY<STRING>>>"),
        ("ROWDATA<a RAW('com.example.Thing', 'AAE='), b MAP<STRING, INT>>", "ROWDATA<a RAW, b MAP<STRING, INT>>"),
    ],
)
def test_spellings_that_mean_the_same(text: str, canonical: str) -> None:
    assert parse_type(text).text == canonical
    assert parse_type(canonical) == parse_type(text)


@pytest.mark.parametrize(
    ("text", "column", "what"),
    [
        ("", 1, "expected a type, found the end"),
        ("LONGS", 1, "'LONGS' is no type"),
        ("TUPLE<LONG, VARCHAR>", 13, "'VARCHAR' is no type"),
        ("TUPLE<LONG", 11, "expected ',' or '>', found the end"),
        ("TUPLE<>", 7, "expected a type, found '>'"),
        ("TUPLE<LONG> x", 13, "expected the end, found 'x'"),
        ("TUPLE", 6, "expected '<', found the end"),
        ("ROW<a INT, a LONG>", 12, "field 'a' appears twice"),
        ("ROW<INT>", 8, "expected a type, found '>'"),
        ("ROWDATA<a LONG>", 11, "expected a Flink SQL type, found 'LONG'"),
        ("ROWDATA<a DECIMAL(39)>", 19, "the digits of a DECIMAL must be from 1 to 38, not 39"),
        ("ROWDATA<a DECIMAL(5, 6)>", 22, "the scale of a DECIMAL must be from 0 to 5, not 6"),
        ("ROWDATA<a TIMESTAMP(10)>", 21, "a precision must be from 0 to 9, not 10"),
        ("ROWDATA<a TIMESTAMP(3) WITH TIME ZONE>", 29, "expected LOCAL"),
        ("ROWDATA<a INT NOT>", 18, "expected NULL after NOT"),
        ("ROWDATA<a INTERVAL YEAR TO DAY>", 31, "expected an interval of years and months"),
        ("TUPLE<OPAQUE, INT>", 7, "OPAQUE takes the rest of the record, but another field follows"),
        ("POJO<a OPAQUE, b INT>", 8, "OPAQUE takes the rest"),
        ("ARRAY<OPAQUE>", 7, "OPAQUE takes the rest of the record, so it can only be the last field"),
        ("NULLABLE<NULLABLE<INT>>", 10, "NULLABLE inside NULLABLE"),
        ("TUPLE<LONG; INT>", 11, "';' has no meaning"),
        ("TUPLE<" + ", ".join(["INT"] * 26) + ">", 132, "Flink's tuples have at most 25 fields"),
        ("ARRAY<" * 40 + "INT" + ">" * 40, 193, "nested deeper than 32 types"),
    ],
)
def test_a_refusal_says_what_and_where(text: str, column: int, what: str) -> None:
    with pytest.raises(SpecRefused) as caught:
        parse_type(text)
    assert f"column {column}: {what}" in str(caught.value)
    assert caught.value.hint


def test_a_pasted_file_is_refused_at_once() -> None:
    with pytest.raises(SpecRefused, match="1000000 characters"):
        parse_type("A" * 1_000_000)


@pytest.mark.parametrize(
    ("text", "arrow"),
    [
        ("LONG", pa.struct([("f0", pa.int64())])),
        ("NULLABLE<LONG>", pa.struct([("f0", pa.int64())])),
        ("OPAQUE", pa.struct([("f0", pa.binary())])),
        ("TUPLE<BOOLEAN, STRING>", pa.struct([("f0", pa.bool_()), ("f1", pa.string())])),
        ("NULLABLE<ROW<a INT>>", pa.struct([("a", pa.int32())])),
        ("POJO<b INSTANT, a DECIMAL_BIG>", pa.struct([("b", pa.string()), ("a", pa.string())])),
        ("ARRAY<ARRAY<BYTE>>", pa.struct([("f0", pa.list_(pa.list_(pa.int8())))])),
        (
            "ROWDATA<a DECIMAL(10, 2), b TIMESTAMP(6), c TIMESTAMP_LTZ(3), d TIMESTAMP(9), e TIME(3), f DATE>",
            pa.struct(
                [
                    ("a", pa.decimal128(10, 2)),
                    ("b", pa.timestamp("us")),
                    ("c", pa.timestamp("us", "UTC")),
                    ("d", pa.string()),
                    ("e", pa.string()),
                    ("f", pa.date32()),
                ]
            ),
        ),
        (
            "ROWDATA<m MAP<STRING, INT>, u MULTISET<INT>, r ROW<x RAW>>",
            pa.struct(
                [
                    ("m", pa.map_(pa.string(), pa.int32())),
                    ("u", pa.map_(pa.int32(), pa.int32())),
                    ("r", pa.struct([("x", pa.binary())])),
                ]
            ),
        ),
    ],
)
def test_arrow_types(text: str, arrow: pa.DataType) -> None:
    assert parse_type(text).arrow_type == arrow


def test_descriptions_are_values() -> None:
    assert len({parse_type("TUPLE<LONG>"), parse_type("tuple<long>"), parse_type("TUPLE<INT>")}) == 2
    assert isinstance(parse_type("ROWDATA<a INT>"), RowData)
