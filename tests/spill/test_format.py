"""The bytes of a spill set: what lies in a file, and where files and segments end."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdr_core.audit.ledger import Tally
from cdr_core.errors import Unbalanced, Where
from cdr_core.flink.virtual_channel import ChannelBytes, Part
from cdr_core.kernels.fingerprint import record_hash
from cdr_core.settings import MIB
from cdr_core.spill.gather import Fold, Gatherer
from cdr_core.spill.segments import HEADER, SpillSet
from cdr_core.spill.writer import SpillWriter
from tests.support.spill import frames, read, write

RECORD = b"\x01"
"""The tag of a record without a timestamp; a kernel that frames bytes wants real elements."""


def test_the_bytes_of_a_set_are_these_and_no_others(tmp_path: Path) -> None:
    """000-09, 000-19, 000-23: the format, byte by byte; another one needs another version."""
    spill_set = write(tmp_path / "s", [(0, [b"\x01ab", b"\x01c"]), (2, [b"\x01defg"])], 64, 20)
    assert [Path(file.path).read_bytes().hex() for file in spill_set.files] == [
        "00000000000000000000000d00000003016162000000020163",
        "000000000000000200000009000000050164656667",
    ]
    assert Path(spill_set.positions or "").read_bytes().hex() == "".join(f"{n:02x}" + "00" * 7 for n in range(3))
    value = json.loads(json.dumps(spill_set.to_json()))
    assert value == {
        "version": 2,
        "subtask": 3,
        "files": [
            {"path": str(tmp_path / "s" / "spill-00000"), "bytes": 25},
            {"path": str(tmp_path / "s" / "spill-00001"), "bytes": 21},
        ],
        "segments": [
            [0, 0, 0, 0, 13, 2, google_crc32c.value(bytes.fromhex("00000003016162000000020163")), 0, crc_of(0, 1)],
            [1, 0, 0, 2, 9, 1, google_crc32c.value(bytes.fromhex("000000050164656667")), 2, crc_of(2)],
        ],
        "positions": str(tmp_path / "s" / "positions"),
        "ledger": [],
    }
    assert SpillSet.from_json(value) == spill_set
    older = {**value, "version": 1, "segments": [segment[:-1] for segment in value["segments"]]}
    assert read(SpillSet.from_json(older)) == read(spill_set), "a set of the release before can still be drained"


def crc_of(*positions: int) -> int:
    return int(google_crc32c.value(b"".join(position.to_bytes(8, "little") for position in positions)))


def tally_of(records: list[bytes]) -> Tally:
    """By hashing one after another."""
    tally = Tally()
    for record in records:
        first, second = record_hash(np.frombuffer(record, np.uint8), 0, len(record))
        tally = tally.then(Tally(1, len(record), int(first), int(second), int(first)))
    return tally


def test_two_hundred_megabytes_rotate_between_segments(tmp_path: Path) -> None:
    """000-12, 000-19: three files or more, each below 64 MiB + one segment, no segment split over two; none empty."""
    record = Random(5).randbytes(9_996)
    batch = [record] * 100
    count = 200_000_000 // (len(batch) * 10_000)
    with SpillWriter(tmp_path / "s", 0, MIB, 64 * MIB) as writer:
        body = np.frombuffer(frames(batch), np.uint8)
        for number in range(count):
            positions = np.arange(100, dtype=np.int64)
            writer.append(number // 20, 0, 0, body, 0, np.array([0]), np.array([len(body)]), positions)
        spill_set = writer.seal(())
    sizes = [Path(file.path).stat().st_size for file in spill_set.files]
    assert sizes == [file.bytes for file in spill_set.files]
    assert sum(sizes) == count * len(body) + len(spill_set.segments) * HEADER.size
    assert len(sizes) >= 3
    longest = max(segment.length for segment in spill_set.segments) + HEADER.size
    assert all(0 < size < 64 * MIB + longest for size in sizes)
    assert all(size >= 64 * MIB for size in sizes[:-1])
    for number, size in enumerate(sizes):
        mine = [segment for segment in spill_set.segments if segment.file == number]
        assert [segment.offset for segment in mine] == list(
            np.cumsum([0, *(HEADER.size + segment.length for segment in mine)])[:-1]
        )
        assert mine[-1].offset + HEADER.size + mine[-1].length == size


def channel_of(values: list[bytes], chunk: int) -> ChannelBytes:
    """A virtual channel whose bytes lie in chunks that cut anywhere."""
    data = np.frombuffer(frames(values), np.uint8)
    starts = np.arange(0, len(data), chunk, dtype=np.int64)
    return ChannelBytes((Part(data, starts, np.minimum(chunk, len(data) - starts)),), (), Where(exchange="main"))


def runs_of(values: list[bytes], wanted: list[bool]) -> list[np.ndarray]:
    """Neighbouring wanted records as (start, end, position, count)."""
    rows: list[list[int]] = []
    at = 0
    for position, value in enumerate(values):
        size = 4 + len(value)
        if wanted[position] and rows and rows[-1][1] == at:
            rows[-1][1] += size
            rows[-1][3] += 1
        elif wanted[position]:
            rows.append([at, at + size, position, 1])
        at += size
    return [np.array([row[column] for row in rows], np.int64) for column in range(4)]


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.tuples(st.binary(max_size=300), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 700),
    st.integers(1, 90),
)
def test_runs_of_any_length_become_segments_of_about_one_size(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[bytes, bool]], segment: int, chunk: int
) -> None:
    """000-10, 002-25, 002-48: a run may be a whole split, a record longer than a segment; all of it stays in order."""
    values, wanted = [RECORD + value for value, _ in records], [take for _, take in records]
    kept = [value for value, take in zip(values, wanted, strict=True) if take]
    with SpillWriter(tmp_path_factory.mktemp("set") / "s", 0, segment, 4096) as writer:
        gatherer, fold = Gatherer(writer, segment), Fold()
        pieces = gatherer.add((0, 0, 0), channel_of(values, chunk), runs_of(values, wanted), fold)
        seen = [piece.tobytes() for piece in pieces]
        spill_set = writer.seal(())
    assert b"".join(seen) == frames(kept)
    assert fold.tally == tally_of(kept)
    got = read(spill_set)
    assert b"".join(body for _, body, _ in got) == frames(kept)
    assert [p for _, _, positions in got for p in positions] == [n for n, take in enumerate(wanted) if take]
    assert all(each.length <= segment or each.records == 1 for each in spill_set.segments)


@pytest.mark.parametrize("claimed", [3, 5])
@pytest.mark.parametrize("segment", [20, 4096], ids=["cut", "whole"])
def test_a_run_that_holds_other_than_what_was_selected_is_an_error(tmp_path: Path, claimed: int, segment: int) -> None:
    values = [RECORD + bytes([number]) * 10 for number in range(4)]
    runs = runs_of(values, [True] * 4)
    runs[3][0] = claimed
    with (
        pytest.raises(Unbalanced, match=r"spill (gathered|found)") as caught,
        SpillWriter(tmp_path / "s", 0, segment, 4096) as writer,
    ):
        list(Gatherer(writer, segment).add((0, 0, 0), channel_of(values, 7), runs, Fold()))
    assert caught.value.where.exchange == "main"
    assert not (tmp_path / "s").exists()
