"""Decoding by hand-written bytes: layouts, nulls, and what is a fault."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest

from cdr_core.errors import CorruptChannelState, SpecRefused, Where
from cdr_core.flink.decode import BadValue, decode_values
from cdr_core.flink.types import parse_type
from cdr_core.synthetic.encode import encode_value
from tests.flink_formats.types.batches import batch, decode, fields


def long(value: int) -> bytes:
    return struct.pack(">q", value)


def test_a_tuple_is_its_fields_back_to_back() -> None:
    value = bytes.fromhex("0000000000000007 00000002 ffffffffffffffff 04 616263".replace(" ", ""))
    assert fields("TUPLE<LONG, INT, LONG, STRING>", value) == [{"f0": 7, "f1": 2, "f2": -1, "f3": "abc"}]


def test_a_rows_mask_has_the_kind_low_bit_first_then_nulls() -> None:
    update_before, update_after = bytes([0b1001_0000]), bytes([0b0110_0000])
    decoded = decode("ROW<a BYTE, b BYTE>", update_before + b"\5", update_after + b"\6")
    assert decoded.row_kind.to_pylist() == ["-U", "+U"]
    assert decoded.values.to_pylist() == [{"a": 5, "b": None}, {"a": None, "b": 6}]


def test_a_pojos_fields_are_sorted_by_name_like_java_strings() -> None:
    # U+1F600 is the greater code point, but its first code unit is the smaller.
    description = "POJO<`～` BYTE, `😀` BYTE, b BYTE, a BYTE>"
    assert fields(description, bytes([2, 0, 1, 0, 2, 0, 3, 0, 4])) == [{"～": 4, "😀": 3, "b": 2, "a": 1}]


def test_a_known_rows_bytes() -> None:
    row = bytes.fromhex("0000000000000000 0c00000010000000 68656c6c6f20776f726c642100000000".replace(" ", ""))
    value = struct.pack(">i", len(row)) + row
    assert fields("ROWDATA<s STRING>", value) == [{"s": "hello world!"}]
    assert encode_value(parse_type("ROWDATA<s STRING>"), {"s": "hello world!"}) == value


def test_opaque_takes_the_rest_of_the_record() -> None:
    assert fields("OPAQUE", b"", b"abc") == [{"f0": b""}, {"f0": b"abc"}]
    assert fields("TUPLE<BYTE, OPAQUE>", b"\x01xyz") == [{"f0": 1, "f1": b"xyz"}]


def test_a_null_struct_is_not_a_struct_of_nulls() -> None:
    assert fields("POJO<a STRING>", b"\1", b"\2\1", b"\2\0\0") == [None, {"a": None}, {"a": None}]
    assert fields("NULLABLE<TUPLE<BYTE>>", b"\1", b"\0\7") == [None, {"f0": 7}]


def test_boxed_and_bare_arrays_differ_by_a_presence_byte() -> None:
    two = struct.pack(">i", 2)
    assert fields("ARRAY<BYTE>", two + b"\1\2") == [{"f0": [1, 2]}]
    assert fields("ARRAY<NULLABLE<BYTE>>", two + b"\0\1\2") == [{"f0": [None, 2]}]
    assert fields("ARRAY<TUPLE<BYTE>>", two + b"\1\1\1\2") == [{"f0": [{"f0": 1}, {"f0": 2}]}]
    assert fields("ARRAY<STRING>", two + b"\0\2a") == [{"f0": [None, "a"]}]


# --- text that UTF-8 cannot hold ---

LONE = {
    "high at the end": "a\ud83d",
    "low alone": "\ude00b",
    "two high": "\ud83d\ud83d\ude00",
    "swapped": "\ude00\ud83d",
    "only one": "\ud800",
}


@pytest.mark.parametrize("text", LONE.values(), ids=LONE)
def test_half_of_a_surrogate_pair_is_refused_not_changed(text: str) -> None:
    value = encode_value(parse_type("STRING"), text)
    with pytest.raises(BadValue, match="half of a surrogate pair") as caught:
        decode("STRING", b"\0", value)
    assert caught.value.record == 1


@pytest.mark.parametrize("text", LONE.values(), ids=LONE)
def test_or_replaced_and_counted_when_asked(text: str) -> None:
    decoded = decode(
        "TUPLE<STRING, CHAR>", encode_value(parse_type("TUPLE<STRING, CHAR>"), [text, "\udfff"]), replace=True
    )
    expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    found = decoded.values.to_pylist()[0]
    assert found["f1"] == "\ufffd"
    assert decoded.replaced == found["f0"].count("\ufffd") + 1 == expected.count("\ufffd") + 1


def test_pairs_are_joined_and_nothing_is_counted() -> None:
    decoded = decode("STRING", encode_value(parse_type("STRING"), "😀" * 100), replace=True)
    assert decoded.values.to_pylist() == [{"f0": "😀" * 100}]
    assert decoded.replaced == 0


@pytest.mark.parametrize(
    "content",
    [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe0\x9f\xbf", b"abcdefgh\xc3", b"\xf0\x8f\xbf\xbf"],
)
def test_a_sql_string_that_is_no_utf8(content: bytes) -> None:
    description = parse_type("ROWDATA<a BYTES>")
    value = encode_value(description, {"a": content})
    with pytest.raises(BadValue, match="field a is not UTF-8"):
        decode("ROWDATA<a STRING>", value)
    decoded = decode("ROWDATA<a STRING>", value, replace=True)
    assert decoded.replaced == decoded.values.to_pylist()[0]["a"].count("\ufffd") > 0


# --- faults ---

FAULTS = {
    "INT": [(b"123", "field f0 runs past the end"), (b"12345", "leaves bytes of its record over"), (b"", "runs past")],
    "BOOLEAN": [(b"\2", "neither 0 nor 1")],
    "STRING": [
        (b"\3a", "impossible length"),
        (b"\x80\x00", "impossible length"),  # a varint with a needless byte
        (b"\xff\xff\xff\xff\xff\xff", "impossible length"),
        (b"\2\x80", "runs past the end"),
        (b"\2\x80\x00", "a character that Flink does not write"),
        (b"\2\xff\xff\x04", "a character that Flink does not write"),  # beyond 16 bits
        (b"\2\xff\xff\xff\x01", "a character that Flink does not write"),
    ],
    "BYTES": [(struct.pack(">i", -1), "impossible length"), (struct.pack(">i", 5) + b"1234", "impossible length")],
    "BIGINT_BIG": [
        (struct.pack(">i", -1), "impossible length"),
        (struct.pack(">i", 4), "impossible length"),
        (struct.pack(">i", 9) + b"1234", "impossible length"),
        (struct.pack(">i", 4 + 5000) + b"\1" * 5000, "larger than can be shown"),
    ],
    "DECIMAL_BIG": [(struct.pack(">i", 2), "runs past the end")],
    "INSTANT": [
        (struct.pack(">qi", 0, -1), "no date or time"),
        (struct.pack(">qi", 0, 10**9), "no date or time"),
        (struct.pack(">qi", 31556889864403200, 0), "no date or time"),
        (struct.pack(">qi", -(2**63), 0), "no date or time"),
    ],
    "TIMESTAMP": [(struct.pack(">qi", 1, 0), "no date or time"), (struct.pack(">qi", -(2**63), 1), "no date or time")],
    "LOCALDATE": [
        (struct.pack(">ibb", 2023, 2, 29), "no date or time"),
        (struct.pack(">ibb", 1900, 2, 29), "no date or time"),
        (struct.pack(">ibb", 2023, 13, 1), "no date or time"),
        (struct.pack(">ibb", 2023, 4, 31), "no date or time"),
        (struct.pack(">ibb", 2023, 1, 0), "no date or time"),
        (struct.pack(">ibb", 10**9, 1, 1), "no date or time"),
    ],
    "LOCALTIME": [(struct.pack(">bbbi", 24, 0, 0, 0), "no date"), (struct.pack(">bbbi", 0, 60, 0, 0), "no date")],
    "LOCALDATETIME": [(struct.pack(">ihbbbi", -(2**31), -(2**15), 1, 1, 1, 1), "no date")],  # half of it null
    "ARRAY<INT>": [
        (struct.pack(">i", -1), "impossible length"),
        (struct.pack(">i", 2**31 - 1), "impossible length"),
        (struct.pack(">ii", 2, 2), "f0\\[\\] runs past the end"),
    ],
    "ARRAY<NULLABLE<INT>>": [(struct.pack(">ib", 1, 2), "flag byte that Flink does not write")],
    "NULLABLE<INT>": [(b"\2", "flag byte")],
    "POJO<a INT>": [(b"\0", "flag byte"), (b"\4", "subclass"), (b"\x08", "subclass"), (b"\2\2", "flag byte")],
    "ROW<a INT>": [(b"\x3f", "bits set beyond"), (b"\x20\0", "leaves bytes"), (b"", "runs past")],
    "ROWDATA<a INT>": [
        (struct.pack(">i", 8) + bytes(8), "impossible length"),
        (struct.pack(">i", 17) + bytes(17), "impossible length"),
        (struct.pack(">i", 16) + b"\4" + bytes(15), "flag byte"),
        (struct.pack(">i", 24) + bytes(16), "impossible length"),
    ],
    "ROWDATA<a STRING>": [
        (struct.pack("<iQQ", 0x10000000, 0, 17 << 32), "field a lies outside its row"),
        (struct.pack("<iQQ", 0x10000000, 0, 0xFFFFFFFF), "field a lies outside its row"),
        (struct.pack("<iQQ", 0x10000000, 0, 0x88 << 56), "field a lies outside its row"),
    ],
    "ROWDATA<a TIME>": [(struct.pack("<iQQ", 0x10000000, 0, 86_400_000), "no date or time")],
    "ROWDATA<a DECIMAL(3, 0)>": [(struct.pack("<iQQ", 0x10000000, 0, 1000), "more digits than its type")],
    "ROWDATA<a TIMESTAMP(3)>": [
        (struct.pack("<iQQ", 0x10000000, 0, 2**62), "no timestamp"),
        (struct.pack("<iQq", 0x10000000, 0, -(2**63)), "no timestamp"),
        (struct.pack("<iQq", 0x10000000, 0, -(2**63) + 1), "no timestamp"),
    ],
    "ROWDATA<a TIMESTAMP(6)>": [
        (struct.pack("<iQQQ", 0x18000000, 0, 16 << 32 | 1, 0), "finer than its type"),
        (struct.pack("<iQQ", 0x10000000, 0, 16 << 32), "lies outside its row"),
    ],
    "ROWDATA<a ARRAY<INT>>": [(struct.pack("<iQQii", 0x18000000, 0, 16 << 32 | 8, 1, 0), "lies outside its row")],
}


@pytest.mark.parametrize(
    ("text", "value", "what"), [(text, value, what) for text, cases in FAULTS.items() for value, what in cases]
)
def test_a_value_that_does_not_fit_is_a_clean_error(text: str, value: bytes, what: str) -> None:
    with pytest.raises(CorruptChannelState, match=what) as caught:
        decode(text, value)
    assert isinstance(caught.value, BadValue)
    assert caught.value.record == 0
    assert caught.value.exit_code == 5


def test_a_timestamp_finer_than_its_type_can_be_described_as_finer() -> None:
    value = struct.pack("<iQQQ", 0x18000000, 0, 16 << 32 | 1, 0)
    with pytest.raises(BadValue, match="precision 9"):
        decode("ROWDATA<a TIMESTAMP(6)>", value)
    assert fields("ROWDATA<a TIMESTAMP(9)>", value) == [{"a": "1970-01-01T00:00:00.000000001"}]


def test_a_small_array_cannot_claim_much_memory() -> None:
    # A thousand strings that all are the whole array: real ones do not overlap.
    count, size = 1000, 4 + 128 + 8000 + 4
    array = struct.pack("<i", count) + bytes(128) + struct.pack("<Q", size) * count + bytes(4)
    row = struct.pack("<QQ", 0, 16 << 32 | len(array)) + array
    with pytest.raises(BadValue, match="lies outside its row"):
        decode("ROWDATA<a ARRAY<STRING>>", struct.pack(">i", len(row)) + row)


@pytest.mark.parametrize("order", range(4))
def test_the_first_bad_record_is_the_one_reported(order: int) -> None:
    text = "TUPLE<STRING, BOOLEAN, ARRAY<BOOLEAN>, ROWDATA<a STRING, b ARRAY<TIME>>>"
    description = parse_type(text)
    row = {"a": "x" * 20, "b": ["00:00:00"]}
    good = encode_value(description, ["ab", True, [True], row])
    faults = [
        good[:-1],  # structure
        good.replace(b"\3ab\1", b"\3ab\2"),  # a boolean
        good.replace(b"\0\0\0\1\1", b"\0\0\0\1\2"),  # a boolean in an array
        good.replace(b"x" * 20, b"x" * 19 + b"\xff"),  # a string in a row
    ]
    faults = faults[order:] + faults[:order]
    with pytest.raises(BadValue) as caught:
        decode(text, good, good, *faults, good)
    assert caught.value.record == 2
    with pytest.raises(BadValue) as alone:
        decode(text, good, good, faults[0])
    assert str(alone.value) == str(caught.value)


def test_a_fault_says_the_field_and_the_byte() -> None:
    description = parse_type("TUPLE<LONG, ROW<name STRING, tags ARRAY<STRING>>>")
    good = encode_value(description, [1, {"name": "n", "tags": ["a", "b"]}])
    bad = good.replace(b"\2b", b"\2\x80") + b"\0"
    with pytest.raises(BadValue, match=r"record 1 .* field f1\.tags\[\]") as caught:
        decode(description.text, good, bad)
    assert caught.value.field == "f1.tags[]"
    data, _, _ = batch([good, bad])
    assert data[caught.value.offset] == 0x80


def test_a_fault_gets_its_place_from_the_caller_and_survives_pickling() -> None:
    with pytest.raises(BadValue) as caught:
        decode("INT", b"")
    placed = pickle.loads(pickle.dumps(caught.value.at(Where(operator="slow", gate=0, channel=2, offset=44), 7)))
    assert isinstance(placed, BadValue)
    assert placed.record == 0
    assert str(placed).startswith("at position 7 a record does not fit its type: field f0 runs past")
    assert "operator slow, gate 0, channel 2, offset 44" in str(placed)


def test_positions_outside_the_data_are_refused() -> None:
    data = np.zeros(8, np.uint8)
    for start, end in ((-1, 4), (4, 9), (5, 4), (2**62, 2**62 + 4)):
        with pytest.raises(BadValue):
            decode_values(parse_type("INT"), data, np.array([start], np.int64), np.array([end], np.int64))


def test_encoding_refuses_what_the_type_cannot_hold() -> None:
    for text, value in (
        ("INT", 2**31),
        ("INT", None),
        ("INT", "1"),
        ("CHAR", "ab"),
        ("CHAR", "😀"),
        ("INSTANT", "yesterday"),
        ("TUPLE<INT>", [1, 2]),
        ("TUPLE<INT>", None),
        ("ROWDATA<a DECIMAL(3, 1)>", {"a": "123.4"}),
        ("ROWDATA<a INT>", {"a": 2**31}),
        ("ROWDATA<a INT>", 5),
    ):
        with pytest.raises(SpecRefused, match="cannot be written as"):
            encode_value(parse_type(text), value)
