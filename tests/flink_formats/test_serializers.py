"""Serializer snapshots in heads of keyed state, against bytes that Flink's own classes wrote."""

from __future__ import annotations

import pytest

from cdr_core.flink.state.agreement import agrees, key_agrees, type_text
from cdr_core.flink.state.serializers import KeyedHead, Serializer, read_head
from cdr_core.flink.types import parse_type
from tests.flink_formats.heads import HEADS

KEYS = {
    name.removeprefix("key ").removesuffix(" sql"): data
    for name, data in HEADS.items()
    if name.startswith("key ") and "unknown" not in name and "ARRAY<BIGINT>" not in name
}


def _key(data: bytes) -> Serializer:
    found = read_head(data).key
    assert found is not None
    return found


@pytest.mark.parametrize("text", KEYS)
def test_a_key_agrees_with_its_own_type(text: str) -> None:
    assert agrees(parse_type(text), _key(KEYS[text])) is True


SAME_BYTES = ({"LONG", "TUPLE<LONG>"},)
"""Types that one serializer writes."""


@pytest.mark.parametrize("text", KEYS)
def test_a_key_contradicts_every_other_type(text: str) -> None:
    same = next((each for each in SAME_BYTES if text in each), {text})
    for other in KEYS:
        if other not in same:
            assert agrees(parse_type(other), _key(KEYS[text])) is False, other


def test_null_flags_count_in_records_and_not_in_keys() -> None:
    """A NULLABLE field has a byte more; a key that is taken out of it is the plain value."""
    plain, nullable = _key(KEYS["LONG"]), _key(KEYS["NULLABLE<LONG>"])
    assert agrees(parse_type("NULLABLE<LONG>"), plain) is False
    assert agrees(parse_type("LONG"), nullable) is False
    assert key_agrees(parse_type("NULLABLE<LONG>"), plain) is True
    assert key_agrees(parse_type("LONG"), nullable) is True
    pair = _key(KEYS["TUPLE<STRING, LONG>"])
    assert key_agrees(parse_type("TUPLE<STRING, NULLABLE<LONG>>"), pair) is True
    assert agrees(parse_type("TUPLE<STRING, NULLABLE<LONG>>"), pair) is False


def test_byte_arrays_have_two_names() -> None:
    found = Serializer("BytePrimitiveArraySerializer")
    assert agrees(parse_type("BYTES"), found) is True
    assert agrees(parse_type("ARRAY<BYTE>"), found) is True
    assert type_text(found) == "BYTES"


def test_a_class_that_is_not_flinks_is_unknown_whatever_it_is_called() -> None:
    flinks = b"org.apache.flink.api.common.typeutils.base"
    ours = HEADS["key LONG"].replace(flinks, b"com.acme.flink.api.common.typeutils.base".ljust(len(flinks), b"x"))
    assert len(ours) == len(HEADS["key LONG"])
    assert read_head(ours) == KeyedHead(None, ())


def test_a_tuple_of_one_field_counts_as_the_field() -> None:
    """``keyBy(0)`` makes a Tuple1, whose hash code is the field's."""
    assert agrees(parse_type("LONG"), _key(KEYS["TUPLE<LONG>"])) is True
    assert agrees(parse_type("STRING"), _key(KEYS["TUPLE<LONG>"])) is False


def test_precision_and_scale_count() -> None:
    found = _key(KEYS["ROWDATA<k BIGINT, s STRING, d DECIMAL(10, 2), t TIMESTAMP(3), x DOUBLE, i INT>"])
    columns = "k BIGINT, s STRING, d DECIMAL({}), t TIMESTAMP({}), x DOUBLE, i INT"
    assert agrees(parse_type(f"ROWDATA<{columns.format('10, 3', 3)}>"), found) is False
    assert agrees(parse_type(f"ROWDATA<{columns.format('10, 2', 6)}>"), found) is False
    assert type_text(found) == "ROWDATA<BIGINT, CHAR, DECIMAL(10, 2), TIMESTAMP(3), DOUBLE, INT>"


@pytest.mark.parametrize("name", ["key unknown enum", "key unknown generic"])
def test_an_unknown_serializer_decides_nothing(name: str) -> None:
    assert read_head(HEADS[name]) == KeyedHead(None, ())


def test_opaque_decides_nothing() -> None:
    assert agrees(parse_type("OPAQUE"), _key(KEYS["LONG"])) is None


def test_a_pojo_has_its_fields_by_name() -> None:
    found = _key(KEYS["POJO<userId STRING, amount LONG, price DOUBLE, inner POJO<a INT, b STRING>>"])
    assert found.names == ("amount", "inner", "price", "userId")
    renamed = parse_type("POJO<userId STRING, amount LONG, cost DOUBLE, inner POJO<a INT, b STRING>>")
    assert agrees(renamed, found) is False


def test_states_are_read_behind_the_key() -> None:
    (state,) = read_head(HEADS["window list"]).states
    assert (state.name, state.kind) == ("window-contents", "LIST")
    assert state.value is not None
    assert type_text(state.value.parts[0]) == "TUPLE<STRING, LONG>"
    assert [each.name for each in read_head(HEADS["join value"]).states] == ["left-records", "right-records"]


def test_states_end_before_one_that_is_unknown() -> None:
    head = read_head(HEADS["after unknown"])
    assert head.key == Serializer("LongSerializer")
    assert head.states == ()


@pytest.mark.parametrize("name", HEADS)
def test_a_cut_head_is_read_up_to_the_cut(name: str) -> None:
    data, whole = HEADS[name], read_head(HEADS[name])
    for end in range(len(data)):
        found = read_head(data[:end])
        assert found.key in (None, whole.key)
        assert found.states == whole.states[: len(found.states)]


@pytest.mark.parametrize("name", HEADS)
def test_a_flipped_byte_is_read_without_an_error(name: str) -> None:
    data = HEADS[name]
    for at in range(0, len(data), max(len(data) // 200, 1)):
        changed = bytearray(data)
        changed[at] ^= 0xFF
        assert isinstance(read_head(bytes(changed)), KeyedHead)
