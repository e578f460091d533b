"""Decoded records as JSON."""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa
import pytest

from cdr_core.flink.decode.render import json_fields
from cdr_core.flink.types import parse_type
from cdr_core.synthetic.encode import encode_value
from tests.flink_formats.types.batches import decode


def rendered(text: str, *records: Any) -> list[Any]:
    description = parse_type(text)
    shown = json_fields(decode(text, *(encode_value(description, record) for record in records)).values)
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    return [record and (record["f0"] if list(record) == ["f0"] else record) for record in shown]


def test_bytes_are_hex_and_numbers_json_has_not_are_names() -> None:
    assert rendered("BYTES", b"\x00\xff") == ["00ff"]
    assert rendered("DOUBLE", float("nan"), float("inf"), float("-inf"), -0.5) == ["NaN", "Infinity", "-Infinity", -0.5]
    assert rendered("FLOAT", float("nan"), 0.5) == ["NaN", 0.5]


def test_decimals_and_timestamps_are_text() -> None:
    text = "ROWDATA<a DECIMAL(20, 2), b TIMESTAMP(6), c TIMESTAMP_LTZ(3), d DATE>"
    full = {"a": "1.50", "b": "2024-02-29T10:11:12.000001", "c": "1969-12-31T23:59:59.999Z", "d": -719162}
    assert rendered(text, full, {}) == [{**full, "d": "0001-01-01"}, {"a": None, "b": None, "c": None, "d": None}]
    assert rendered("ROWDATA<a DECIMAL(38, 0)>", {"a": "9" * 38}) == [{"a": "9" * 38}]


def test_dates_that_python_does_not_have() -> None:
    assert rendered("ROWDATA<d DATE>", {"d": 2**31 - 1}, {"d": -(2**31)}) == [
        {"d": "+5881580-07-11"},
        {"d": "-5877641-06-23"},
    ]
    far = struct.pack("<iQq", 0x10000000, 0, 9_223_372_036_854_774)
    assert json_fields(decode("ROWDATA<t TIMESTAMP(3)>", far).values) == [{"t": "+294247-01-10T04:00:54.774"}]


def test_maps_are_pairs_and_nulls_stay() -> None:
    text = "ROWDATA<m MAP<STRING, BYTES>, l ARRAY<ROW<x DOUBLE>>>"
    record = {"m": [("k", b"\1"), ("l", None)], "l": [{"x": 1.5}, None, {"x": None}]}
    pairs = [{"key": "k", "value": "01"}, {"key": "l", "value": None}]
    assert rendered(text, record, {}) == [{"m": pairs, "l": record["l"]}, {"m": None, "l": None}]
    assert rendered("POJO<a INT>", None, {"a": None}) == [None, {"a": None}]


@pytest.mark.parametrize("text", ["ROWDATA<m MAP<INT, INT>, l ARRAY<ARRAY<INT>>, r ROW<b BYTES>>"])
def test_a_slice_shows_its_own_records(text: str) -> None:
    description = parse_type(text)
    records = [{"m": [(i, -i)] * i, "l": [[i], None, [1, i]], "r": {"b": bytes([i])}} for i in range(6)]
    values = decode(text, *(encode_value(description, record) for record in records)).values
    whole = json_fields(values)
    assert json_fields(values[2:5]) == whole[2:5]
    assert json_fields(values.take(pa.array([4, None, 0]))) == [whole[4], None, whole[0]]
