"""The Java object stream at the end of the file is whole, or the file is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdr_core.flink.metadata import read_metadata
from cdr_core.flink.metadata.properties import LONGEST_PROPERTIES, walk_properties
from tests.flink_formats.metadata.conftest import RealCheckpoint

START = bytes.fromhex("aced0005")


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _class(name: str, fields: bytes = b"", number: int = 0, *, above: bytes = b"\x70", flags: int = 2) -> bytes:
    return b"\x72" + _utf(name) + bytes(8) + bytes([flags]) + struct.pack(">H", number) + fields + b"\x78" + above


def _reference(handle: int) -> bytes:
    return b"\x71" + struct.pack(">i", 0x7E0000 + handle)


@pytest.fixture
def real(real_checkpoints: dict[str, RealCheckpoint]) -> bytes:
    return read_metadata(real_checkpoints["a_p3_thr0/chk-1"].metadata).properties


def test_a_real_stream_and_the_null_stream_are_whole(real: bytes) -> None:
    assert walk_properties(real) is None
    assert walk_properties(START + b"\x70") is None


def test_a_real_stream_cut_anywhere_or_with_more_behind_it_is_not_whole(real: bytes) -> None:
    for length in range(len(real)):
        assert walk_properties(real[:length]) is not None
    fault = walk_properties(real + b"\x70")
    assert fault is not None
    assert fault.at == len(real)


@pytest.mark.parametrize(
    "body",
    [
        b"\x74" + _utf("text"),
        b"\x73" + _class("A"),
        b"\x73" + _class("A", b"Z" + _utf("flag") + b"J" + _utf("long"), 2) + bytes(9),
        b"\x73" + _class("A", b"L" + _utf("s") + b"\x74" + _utf("LS;"), 1) + b"\x74" + _utf("value"),
        b"\x73" + _class("A", b"L" + _utf("s") + b"\x74" + _utf("LS;"), 1) + _reference(1),
        b"\x73" + _class("B", above=_class("A", b"I" + _utf("i"), 1)) + bytes(4),
        b"\x7e" + _class("E", above=_class("java.lang.Enum", flags=0x12), flags=0x12) + b"\x74" + _utf("ONE"),
    ],
)
def test_objects_of_known_grammar_are_stepped_over(body: bytes) -> None:
    assert walk_properties(START + body) is None


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"", "ends"),
        (b"\x77\x00", "0x77"),
        (b"\x73\x70", "no class"),
        (b"\x73\x74" + _utf("x"), "class description"),
        (_reference(0), "means nothing"),
        (b"\x71\x00\x00\x00\x00", "means nothing"),
        (b"\x73" + _class("A", above=_reference(0)), "something else"),
        (b"\x73" + _class("A", flags=4), "own way"),
        (b"\x73" + _class("A", flags=3), "own way"),
        (b"\x73" + _class("A", b"Q" + _utf("q"), 1), "field type"),
        (b"\x73" + _class("A", b"L" + _utf("q") + b"\x70", 1), "something else"),
        (b"\x7e" + _class("E", flags=0x12) + _reference(0), "something else"),
        (b"\x74\x00\x01\x00", "modified UTF-8"),
        (b"\x74" + struct.pack(">H", 9), "ends"),
    ],
)
def test_unknown_or_broken_grammar_is_said(body: bytes, what: str) -> None:
    fault = walk_properties(START + body)
    assert fault is not None
    assert what in fault.what


def test_nesting_and_size_are_bounded() -> None:
    field = b"L" + _utf("x") + b"\x74" + _utf("LA;")
    nested = b"\x73" + _class("A", field, 1) + (b"\x73" + _reference(0)) * 5000
    ancestors = b"\x72" + _utf("A") + bytes(8) + b"\x02\x00\x00\x78"
    for body, what in ((nested, "nested"), (b"\x73" + ancestors * 2000 + b"\x70", "nested")):
        fault = walk_properties(START + body)
        assert fault is not None
        assert what in fault.what
    fault = walk_properties(START + bytes(LONGEST_PROPERTIES))
    assert fault is not None
    assert "the most" in fault.what


@given(st.binary(max_size=300))
def test_any_bytes_give_an_answer(body: bytes) -> None:
    fault = walk_properties(START + body)
    assert fault is None or 0 <= fault.at <= len(body) + 4
