"""The second reader alone: it reads in every shipped checkpoint what Flink itself read, element by element."""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdr_core.errors import Corrupt, CorruptMetadata
from cdr_core.verify.channel_handles import HandleBuilder
from cdr_core.verify.checkpoint import Checkpoint
from cdr_core.verify.cursor import Cursor
from cdr_core.verify.framing import KINDS, timestamp, value_of
from cdr_core.verify.keys import murmur, row_hash
from cdr_core.verify.metadata import read_metadata, uid_hash
from cdr_core.verify.rows import reading_of
from cdr_core.verify.spec import Exchange, read_spec
from cdr_core.verify.types import parse_type
from tests.support.checkpoints import SHIPPED, FixtureCheckpoints
from tests.support.oracle import ChannelId, Element


@pytest.mark.seed("001-22")
@pytest.mark.parametrize(("name", "number"), SHIPPED)
def test_every_element_is_the_one_that_flink_read(
    fixture_checkpoint: FixtureCheckpoints, name: str, number: int
) -> None:
    """Also the records that begin in input state and end in output state."""
    shipped = fixture_checkpoint(name, number)
    found: dict[ChannelId, list[Element]] = defaultdict(list)
    with Checkpoint(str(shipped.path)) as checkpoint:
        for exchange in read_spec(str(shipped.spec)):
            reading = reading_of(exchange, checkpoint.ends(exchange)[1].max_parallelism)
            for channel in checkpoint.channels(exchange):
                at = ChannelId(exchange.gate, channel.up, channel.down)
                elements = checkpoint.elements(exchange, channel).whole()
                for pos, (start, end) in enumerate(zip(elements.starts, elements.ends, strict=True)):
                    raw, state = elements.data[start:end], elements.from_state(pos)
                    element = Element(at, pos, state, KINDS[raw[0]], timestamp(raw))
                    if raw[0] <= 1:
                        fields, row_kind = reading.record.read(value_of(raw))
                        key, gen, seq, payload = fields.values()
                        data = payload.encode() if isinstance(payload, str) else payload
                        group = reading.group(fields) if reading.group is not None else None
                        element = Element(
                            at,
                            pos,
                            state,
                            "record",
                            timestamp(raw),
                            key,
                            group,
                            gen,
                            seq,
                            len(data),
                            zlib.crc32(data),
                            row_kind,
                        )
                    found[at].append(element)
    expected = shipped.oracle.by_channel
    assert {at: len(elements) for at, elements in found.items() if elements} == {
        at: len(elements) for at, elements in expected.items()
    }
    for at, of_flink in expected.items():
        for ours, theirs in zip(found[at], of_flink, strict=True):
            assert _comparable(ours, name) == _comparable(theirs, name)


def _comparable(element: Element, name: str) -> tuple[object, ...]:
    """The oracle leaves out what a job does not have: key groups of rebalanced records, row kinds of tuples."""
    group = None if name.startswith("d") else element.key_group
    ts = element.ts if element.kind in ("record", "watermark") else None
    content = (element.key, element.gen, element.seq, element.payload_len, element.payload_crc32)
    return (element.pos, element.from_state, element.kind, ts, group, *content)


def test_metadata_cut_anywhere_is_corrupt_and_never_less(fixture_checkpoint: FixtureCheckpoints) -> None:
    for name in ("a_p3_thr0", "v5_a_p3_thr0", "r_p3_rocks_inc_true"):
        data = (fixture_checkpoint(name, 1).path / "_metadata").read_bytes()
        properties = data.rindex(b"\xac\xed\x00\x05")
        for end in range(properties + 5):
            with pytest.raises(CorruptMetadata):
                read_metadata(data[:end], "cut")


def test_handles_are_ordered_by_channel_and_chunks_by_offset_and_none_is_there_twice() -> None:
    stream = b"\x06" + struct.pack(">h4sq", 4, b"file", 99)
    entries = [struct.pack(">iiqi3q", 0, channel, 30, 3, 50, 4, 20) for channel in (2, 1, 2)]

    def read(*chosen: bytes) -> HandleBuilder:
        builder, body = HandleBuilder(), struct.pack(">i", len(chosen)) + b"".join(chosen)
        data = struct.pack(">q", 90) + stream + struct.pack(">i", len(body)) + body
        assert builder.add_merged(Cursor(data, "x"), 7) == (90, 30 * len(chosen))
        return builder

    found = list(read(*entries[:2]).done(Cursor(b"", "x")).items())
    assert [(place.subtask, place.b, handle.offsets) for place, handle in found] == [
        (7, n, (4, 20, 50)) for n in (1, 2)
    ]
    with pytest.raises(CorruptMetadata, match=r"the channel \(0, 2\) of subtask 7 is described twice"):
        read(*entries).done(Cursor(b"", "x"))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_metadata_with_a_flipped_byte_is_read_or_corrupt_and_nothing_else(
    fixture_checkpoint: FixtureCheckpoints, data: st.DataObject
) -> None:
    whole = bytearray((fixture_checkpoint("a_p3_thr0", 2).path / "_metadata").read_bytes())
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(Corrupt):
        read_metadata(bytes(whole), "flipped")


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, 593689054), (1, 68075478), (2, 1085422463), (3, 847579505), (42, 1134849565), (-1, 1982413648)],
)
def test_murmur_has_flinks_values(code: int, expected: int) -> None:
    assert murmur(code) == expected


@pytest.mark.parametrize(
    ("record", "fields", "group"),
    [
        ("ROWDATA<k INT>", {"k": 1}, 94),
        ("ROWDATA<k BIGINT>", {"k": 42}, 69),
        ("ROWDATA<k STRING>", {"k": "BOB"}, 127),
        ("ROWDATA<k STRING>", {"k": "hello"}, 88),
        ("TUPLE<INT>", {"f0": 0}, 593689054 % 128),
        ("LONG", {"f0": -1}, 593689054 % 128),
        ("STRING", {"f0": "hello"}, murmur(99162322) % 128),
        ("STRING", {"f0": "\U0001f600"}, murmur(1772899) % 128),
        ("BOOLEAN", {"f0": True}, murmur(1231) % 128),
    ],
)
def test_key_groups_follow_the_published_hashes(record: str, fields: dict[str, object], group: int) -> None:
    exchange = Exchange("main", "gen", 0, "slow", 0, "hash", record, tuple(fields))
    reading = reading_of(exchange, 128)
    assert reading.group is not None
    assert reading.group(fields) == group


def test_the_example_row_of_the_format_has_its_hash() -> None:
    assert row_hash(bytes.fromhex("00000000000000002a00000000000000")) == 907821237


def test_a_type_says_which_fields_it_cannot_read() -> None:
    assert parse_type("TUPLE<LONG, INSTANT, INT>").unreadable == ("f1", "f2")
    assert parse_type("ROWDATA<a BIGINT, b DECIMAL(38, 2), c STRING>").unreadable == ("b",)
    assert parse_type("TUPLE<LONG, STRING>").unreadable == ()


def test_a_row_has_its_kind_low_bit_first_and_its_nulls() -> None:
    row = parse_type("ROW<a INT, b STRING>")
    assert row.read(bytes.fromhex("8000000007") + b"\x03hi") == ({"a": 7, "b": "hi"}, "-U")
    assert row.read(bytes.fromhex("5000000007")) == ({"a": 7, "b": None}, "+U")


def test_names_are_javas_modified_utf8() -> None:
    encoded = b"\x00\x0da\xc0\x80\xed\xa0\xbd\xed\xb8\x80\xc3\xa9zz"
    assert Cursor(encoded, "x").utf() == "a\0\U0001f600ézz"


@pytest.mark.parametrize(
    ("uid", "expected"),
    [("gen", "6bf01baa9d2ca23a3ef7ce311722523d"), ("slow", "59fa767824610e31f4a11d6125e09bf4")],
)
def test_a_uid_finds_its_operator(uid: str, expected: str) -> None:
    assert uid_hash(uid.encode()) == expected
