"""Against Flink itself: values that its serializers wrote, and real checkpoints that its classes read.

``vectors/Vectors.java`` made the first; its key groups come from Flink's own assignment, and those of SQL rows from the
projections that the planner generates.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdr_core.flink.decode import decode_values
from cdr_core.flink.decode.render import json_fields
from cdr_core.flink.keys import key_groups
from cdr_core.flink.types import parse_type
from cdr_core.synthetic.encode import encode_value
from tests.flink_formats.types.batches import batch, decode
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints

VECTORS = Path(__file__).parent / "vectors" / "vectors.jsonl.gz"


def _vectors() -> dict[str, list[dict[str, Any]]]:
    by_type: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in gzip.decompress(VECTORS.read_bytes()).decode().splitlines():
        vector = json.loads(line)
        by_type[vector["type"]].append(vector)
    return by_type


BY_TYPE = _vectors()
TWO_SPELLINGS = {"000000050a", "0000000500", "000000050a00000001", "000000050000000005"}
"""10 and 0 that are not Java's constants: Flink writes those in full, we the short form. Both are read."""


def _name(text: str) -> str:
    return text[:30]


@pytest.mark.parametrize("text", BY_TYPE, ids=_name)
def test_what_flink_wrote_is_read(text: str) -> None:
    vectors = BY_TYPE[text]
    decoded = decode(text, *(bytes.fromhex(vector["hex"]) for vector in vectors))
    assert json_fields(decoded.values) == [vector["fields"] for vector in vectors]
    assert decoded.row_kind.to_pylist() == [vector["row_kind"] for vector in vectors]


@pytest.mark.parametrize("text", BY_TYPE, ids=_name)
def test_our_bytes_are_those_flink_wrote(text: str) -> None:
    vectors = [vector for vector in BY_TYPE[text] if vector["hex"] not in TWO_SPELLINGS]
    description = parse_type(text)
    records = decode(text, *(bytes.fromhex(vector["hex"]) for vector in vectors)).values.to_pylist()
    for vector, record in zip(vectors, records, strict=True):
        assert encode_value(description, record, row_kind=vector["row_kind"] or "+I").hex() == vector["hex"]


@pytest.mark.parametrize("text", [text for text in BY_TYPE if any(v["groups"] for v in BY_TYPE[text])], ids=_name)
def test_keys_are_in_the_groups_flink_put_them_in(text: str) -> None:
    by_key: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for vector in BY_TYPE[text]:
        for key in vector["groups"] or ():
            by_key[key].append(vector)
    for key, vectors in by_key.items():
        values = [bytes.fromhex(vector["hex"]) for vector in vectors]
        found = key_groups(parse_type(text), key.split(","), *batch(values), 128)
        assert found.tolist() == [vector["groups"][key] for vector in vectors], key


# --- real checkpoints ---

CHECKPOINTS = {
    "a_p3_thr0": ("TUPLE<LONG, INT, LONG, STRING>", "f0"),
    "b_p3_thr0": ("TUPLE<LONG, INT, LONG, BYTES>", "f0"),
    "d_p4_thr0": ("TUPLE<LONG, INT, LONG, BYTES>", "f0"),
    "e_p4_seg32k": ("TUPLE<LONG, INT, LONG, BYTES>", "f0"),
    "f_p3_thr0": ("ROWDATA<k BIGINT, gen INT, seq BIGINT, payload STRING>", "k"),
}


def _channels(checkpoint: FixtureCheckpoint) -> dict[tuple[int, int], bytes]:
    """Bytes of each virtual channel (up, down), by the oracle's own list of chunks: input state, then output state."""
    sides: dict[str, dict[tuple[int, int], list[bytes]]] = {"input": defaultdict(list), "output": defaultdict(list)}
    for handle in checkpoint.oracle.lines["handle"]:
        body = (checkpoint.path / handle["underlying"]).read_bytes()
        is_input = handle["kind"] == "input"
        ends = (handle["channel"], handle["subtask"]) if is_input else (handle["subtask"], handle["subpartition"])
        for offset in sorted(handle["offsets"]):
            (length,) = struct.unpack_from(">i", body, offset)
            sides[handle["kind"]][ends].append(body[offset + 4 : offset + 4 + length])
    both = sorted({*sides["input"], *sides["output"]})
    return {ends: b"".join(sides["input"][ends] + sides["output"][ends]) for ends in both}


def _values(channel: bytes) -> tuple[list[int], list[int]]:
    """Where the records' values are: behind length, tag and timestamp."""
    starts, ends, at = [], [], 0
    while at < len(channel):
        (length,) = struct.unpack_from(">i", channel, at)
        if channel[at + 4] in (0, 1):
            starts.append(at + (13 if channel[at + 4] == 0 else 5))
            ends.append(at + 4 + length)
        at += 4 + length
    assert at == len(channel)
    return starts, ends


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_records_in_flight_are_those_flink_sees(name: str, fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = fixture_checkpoint(name, 2)
    text, key = CHECKPOINTS[name]
    description = parse_type(text)
    elements = [
        e
        for e in checkpoint.oracle.lines["element"]
        if e["kind"].startswith("record") and e["kind"] != "record_attributes"
    ]
    count = 0
    for (up, down), channel in _channels(checkpoint).items():
        expected = [e for e in elements if (e["up"], e["down"]) == (up, down)]
        starts, ends = _values(channel)
        records = (np.frombuffer(channel, np.uint8), np.array(starts, np.int64), np.array(ends, np.int64))
        decoded = decode_values(description, *records)
        for record, element in zip(decoded.values.to_pylist(), expected, strict=True):
            number, generator, sequence, payload = record.values()
            payload = payload.encode() if isinstance(payload, str) else payload
            assert (number, generator, sequence) == (element["key"], element["gen"], element["seq"])
            assert zlib.crc32(payload) == element["payload_crc32"]
        assert decoded.row_kind.to_pylist() == [element.get("row_kind") for element in expected]
        group = "key_group128_row" if "ROWDATA" in text else "key_group128_long"
        assert key_groups(description, [key], *records, 128).tolist() == [element[group] for element in expected]
        count += len(expected)
    assert count == len(elements) > 0
