"""Key groups: published vectors, a second implementation, which keys are refused, who owns what."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdr_core.errors import SpecRefused
from cdr_core.flink.decode import BadValue
from cdr_core.flink.keys import check_key, key_group_range, owner
from cdr_core.flink.types import Kind, RowData, Scalar, SqlKind, parse_type
from cdr_core.kernels import hashes
from cdr_core.synthetic.encode import encode_value
from cdr_core.synthetic.encode.rows import encode_row
from tests.flink_formats.types import naive
from tests.flink_formats.types.batches import groups
from tests.flink_formats.types.strategies import SCALARS, flat_sql, sql_values, values

HASHABLE = [
    Kind.BOOLEAN, Kind.BYTE, Kind.SHORT, Kind.INT, Kind.LONG, Kind.FLOAT, Kind.DOUBLE, Kind.CHAR, Kind.STRING,
    Kind.BIGINT_BIG, Kind.DECIMAL_BIG,
]  # fmt: skip
SOME = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


# --- vectors ---


@pytest.mark.parametrize(
    ("code", "mixed"),
    [
        (0, 593689054),
        (1, 68075478),
        (2, 1085422463),
        (3, 847579505),
        (42, 1134849565),
        (-1, 1982413648),
        (100, 616682048),
        (-2089875627, 0),  # its murmur is the one number that has no absolute value
    ],
)
def test_murmur_of_hash_codes(code: int, mixed: int) -> None:
    out = np.empty(1, np.int32)
    hashes.to_key_groups(np.array([code & 0xFFFFFFFF], np.uint32), 2**31 - 1, out)
    assert out[0] == mixed == naive.murmur(code)


def test_long_keys_of_a_real_savepoint() -> None:
    values = [struct.pack(">q", key) for key in range(4)]
    assert groups("LONG", "f0", *values, max_parallelism=4) == [2, 2, 3, 1]


@pytest.mark.parametrize(
    ("type_", "key", "group"),
    [("INT", 1, 94), ("INT", 2, 93), ("INT", 3, 112), ("STRING", "BOB", 127), ("STRING", "a", 4), ("STRING", "b", 11),
     ("BIGINT", 42, 69), ("INT", 42, 69), ("STRING", "hello", 88)],
)  # fmt: skip
def test_sql_keys(type_: str, key: Any, group: int) -> None:
    text = f"ROWDATA<other STRING, k {type_}>"
    value = encode_value(parse_type(text), {"other": "something long", "k": key}, row_kind="-D")
    assert groups(text, "k", value) == [group]


@pytest.mark.parametrize(("row", "code"), [({"k": 42}, 907821237), ({"k": "hello"}, 243722546)])
def test_row_hashes(row: dict[str, Any], code: int) -> None:
    description = parse_type("ROWDATA<k BIGINT>" if row["k"] == 42 else "ROWDATA<k STRING>")
    assert isinstance(description, RowData)
    assert naive.row_hash(encode_row(description.names, description.types, row)) == code


def test_java_hash_codes() -> None:
    assert naive.string_hash("hello") == 99162322
    assert naive.string_hash("😀") == 1772899
    for text, key in (("STRING", "hello"), ("STRING", "😀"), ("LONG", -1)):
        code = naive.java_hash(text, key)
        assert groups(text, "f0", encode_value(parse_type(text), key)) == [naive.key_group(code, 128)]


def test_every_nan_has_one_key_group() -> None:
    assert len(set(groups("FLOAT", "f0", b"\x7f\xc0\0\0", b"\xff\xc0\0\1", b"\x7f\x80\0\1"))) == 1
    longs = (0x7FF8 << 48, (0xFFF8 << 48) + 1, (0x7FF0 << 48) + 1)
    assert len(set(groups("DOUBLE", "f0", *(struct.pack(">Q", bits) for bits in longs)))) == 1


def test_a_row_as_a_key() -> None:
    # Row.of("a") with +I has the hash code 159.
    value = encode_value(parse_type("TUPLE<ROW<x STRING>>"), [{"x": "a"}])
    assert groups("TUPLE<ROW<x STRING>>", "f0", value) == [naive.key_group(159, 128)]


# --- a second implementation ---


@SOME
@given(data=st.data(), max_parallelism=st.integers(1, 32768))
@pytest.mark.parametrize("kind", HASHABLE)
def test_keys_of_one_field(kind: Kind, max_parallelism: int, data: st.DataObject) -> None:
    text = f"TUPLE<STRING, {kind}, BYTES>"
    keys = data.draw(st.lists(SCALARS[kind], max_size=8))
    records = [encode_value(parse_type(text), ["skipped ä", key, b"never read"]) for key in keys]
    expected = [naive.key_group(naive.java_hash(kind, key), max_parallelism) for key in keys]
    assert groups(text, "f1", *records, max_parallelism=max_parallelism) == expected


@SOME
@given(data=st.data(), kinds=st.lists(st.sampled_from(HASHABLE), min_size=2, max_size=5), shuffle=st.randoms())
def test_keys_of_several_fields_are_a_tuple(data: st.DataObject, kinds: list[Kind], shuffle: Any) -> None:
    text = f"TUPLE<{', '.join(kinds)}>"
    order = list(range(len(kinds)))
    shuffle.shuffle(order)
    records = data.draw(st.lists(st.tuples(*(values(Scalar(kind)) for kind in kinds)), max_size=5))
    codes = [[naive.java_hash(kinds[i], record[i]) for i in order] for record in records]
    found = groups(text, ",".join(f"f{i}" for i in order), *(encode_value(parse_type(text), list(r)) for r in records))
    assert found == [naive.key_group(naive.tuple_hash(code), 128) for code in codes]


@SOME
@given(data=st.data())
def test_sql_keys_are_the_projected_row(data: st.DataObject) -> None:
    types = data.draw(
        st.lists(flat_sql().filter(lambda t: t.kind not in (SqlKind.RAW, SqlKind.VARIANT)), min_size=1, max_size=6)
    )
    names = [f"c{i}" for i in range(len(types))]
    key = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    picked = [types[names.index(name)] for name in key]
    # A null of these is written unlike by serializer and projection; Flink's own vectors cover it.
    reserved = {name for name, t in zip(key, picked, strict=True) if t.kind is SqlKind.DECIMAL or "TIMESTAMP" in t.kind}
    row = st.fixed_dictionaries({n: sql_values(t, null=n not in reserved) for n, t in zip(names, types, strict=True)})
    rows = data.draw(st.lists(row, max_size=4))
    description = RowData(tuple(names), tuple(types))
    found = groups(description.text, ",".join(key), *(encode_value(description, r, row_kind="+U") for r in rows))
    assert found == [naive.key_group(naive.row_hash(encode_row(key, picked, r)), 128) for r in rows]


# --- finding keys ---


def test_keys_inside_other_fields() -> None:
    text = "ROW<skip ARRAY<STRING>, user POJO<id LONG, name STRING>, rest OPAQUE>"
    value = encode_value(parse_type(text), {"skip": ["a", None], "user": {"id": 7, "name": "n"}, "rest": b"?"})
    assert groups(text, "user.id", value) == groups("LONG", "f0", struct.pack(">q", 7))
    assert groups(text, "user.name", value) == groups("STRING", "f0", b"\2n")


def test_bytes_behind_the_key_are_not_looked_at() -> None:
    assert groups("TUPLE<LONG, STRING>", "f0", struct.pack(">q", 7) + b"\xff" * 9) == groups(
        "LONG", "f0", struct.pack(">q", 7)
    )


def test_a_record_that_ends_before_its_key_is_a_fault() -> None:
    with pytest.raises(BadValue, match="field f1 runs past") as caught:
        groups("TUPLE<INT, LONG>", "f1", bytes(12), bytes(11))
    assert caught.value.record == 1


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [("STRING", "f0", b"\0"), ("INSTANT", "f0", struct.pack(">qi", -(2**63), -(2**31))), ("ROW<a INT>", "a", b"\x20"),
     ("NULLABLE<LONG>", "f0", b"\1"), ("TUPLE<NULLABLE<TUPLE<INT>>>", "f0", b"\1")],
)  # fmt: skip
def test_a_null_cannot_be_a_key(text: str, key: str, value: bytes) -> None:
    with pytest.raises(BadValue, match="null, which no key can be"):
        groups(text, key, value)


def test_but_a_part_of_one_can_and_so_can_a_sql_column() -> None:
    assert groups("TUPLE<STRING, INT>", "f0,f1", b"\0" + bytes([0, 0, 0, 5])) == [naive.key_group(5, 128)]
    row = encode_row(["a"], parse_type("ROWDATA<a INT>").types, {"a": None})  # type: ignore[attr-defined]
    value = struct.pack(">i", len(row)) + row
    assert groups("ROWDATA<a INT>", "a", value) == [naive.key_group(naive.row_hash(row), 128)]


@pytest.mark.parametrize(
    ("text", "key", "why"),
    [
        ("TUPLE<LONG>", "f1", "no field 'f1'"),
        ("TUPLE<LONG>", "", "no field ''"),
        ("LONG", "key", "no field 'key' .*fields are f0"),
        ("TUPLE<BYTES>", "f0", "arrays have no hash code"),
        ("TUPLE<ARRAY<INT>>", "f0", "arrays have no hash code"),
        ("TUPLE<ARRAY<INT>>", "f0[]", "no field"),
        ("TUPLE<TUPLE<INT, BYTES>>", "f0", "field 'f0.f1' of type BYTES cannot be the key 'f0'"),
        ("TUPLE<POJO<a INT>>", "f0", "the user's own"),
        ("TUPLE<INT, OPAQUE>", "f1", "not described"),
        ("OPAQUE", "f0", "not described"),
        ("TUPLE<ROWDATA<a INT>>", "f0", "no stable hash code"),
        ("ROWDATA<a INT>", "b", "no field 'b'"),
        ("ROWDATA<a ARRAY<INT>>", "a", "cannot be a key here"),
        ("ROWDATA<a ROW<b INT>>", "a.b", "no field 'a.b'"),
    ],
)
def test_keys_that_are_refused(text: str, key: str, why: str) -> None:
    with pytest.raises(SpecRefused, match=why) as caught:
        check_key(parse_type(text), key.split(","))
    assert caught.value.hint


def test_no_key_is_refused() -> None:
    with pytest.raises(SpecRefused, match="no key field"):
        check_key(parse_type("LONG"), [])


# --- owners ---


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 400).flatmap(lambda m: st.tuples(st.integers(1, m), st.just(m))))
def test_ranges_cover_every_group_once_and_agree_with_owners(sizes: tuple[int, int]) -> None:
    parallelism, max_parallelism = sizes
    covered: list[int] = []
    for index in range(parallelism):
        first, last = key_group_range(index, parallelism, max_parallelism)
        covered += range(first, last + 1)
        assert all(owner(group, parallelism, max_parallelism) == index for group in range(first, last + 1))
    assert covered == list(range(max_parallelism))
