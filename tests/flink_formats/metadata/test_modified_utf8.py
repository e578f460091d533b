"""Java's strings: every text has one encoding, every other encoding is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdr_core.flink.metadata.modified_utf8 import decode, encode


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("", b""),
        ("plain", b"plain"),
        ("\x00", b"\xc0\x80"),
        ("a\x00b", b"a\xc0\x80b"),
        ("é€", "é€".encode()),
        ("\U0001f600", b"\xed\xa0\xbd\xed\xb8\x80"),
        ("\ud83d", b"\xed\xa0\xbd"),
        ("\ude00\ud83d", b"\xed\xb8\x80\xed\xa0\xbd"),
    ],
)
def test_a_text_has_the_bytes_java_writes(text: str, raw: bytes) -> None:
    assert encode(text) == raw
    assert decode(raw) == text


@pytest.mark.parametrize(
    "raw",
    [b"\x00", b"a\x00", b"\xc1\x81", b"\xe0\x80\x80", b"\xf0\x9f\x98\x80", b"\x80", b"\xc3", b"\xe0\xc0\x80", b"\xff"],
)
def test_a_form_that_java_does_not_write_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        decode(raw)


@given(st.text())
def test_any_text_survives(text: str) -> None:
    assert decode(encode(text)) == text


@given(st.binary(max_size=20))
def test_any_bytes_are_refused_or_survive(raw: bytes) -> None:
    try:
        text = decode(raw)
    except ValueError:
        return
    assert encode(text) == raw
