"""Spill sets of format 3: their bytes and index, where files end, and what damage does to them."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from cdr_core.errors import CdrError, Corrupt, Refused, SpillLost
from cdr_core.settings import MIB
from cdr_core.spill import set_writer
from cdr_core.spill.set_reader import read_segment
from cdr_core.spill.spill_set import SpillSet
from tests.support.spill import NO_SOURCE, Piece, frames, read, write_segments

SEGMENTS: Sequence[Sequence[Piece]] = (
    ((4, [b"\x01ab", b"\x01c"], 0), (6, [b"\x01defg"], 7)),
    ((6, [b"\x01h"], 9),),
    ((6, [b"\x01i", b"\x01j", b"\x01k"], 10), (9, [b"\x01l"], 0)),
)


def write(directory: Path, segments: Sequence[Sequence[Piece]] = SEGMENTS, file_size: int = 20) -> SpillSet:
    return write_segments(directory, segments, file_size)


@pytest.mark.seed("000-09", "000-12")
def test_the_bytes_and_the_index_of_a_set_are_these_and_no_others(tmp_path: Path) -> None:
    """Files hold bodies and nothing else; another format needs another version."""
    spill_set = write(tmp_path / "s")
    bodies = [b"".join(frames(values) for _, values, _ in pieces) for pieces in SEGMENTS]
    runs = [struct.pack(f"<{len(each)}q", *each) for each in ([0, 7, 2, 1], [9, 1], [10, 0, 3, 1])]
    assert [Path(file.path).read_bytes() for file in spill_set.files] == [
        bodies[0],
        bodies[1] + bodies[2],
        b"".join(runs),
    ]
    assert [file.bytes for file in spill_set.files] == [len(bodies[0]), len(bodies[1] + bodies[2]), 16 * 5]
    assert {name: column.tolist() for name, column in spill_set.columns.items()} == {
        "file": [0, 1, 1],
        "offset": [0, 0, len(bodies[1])],
        "length": [len(body) for body in bodies],
        "crc32c": [google_crc32c.value(body) for body in bodies],
        "runs_crc32c": [google_crc32c.value(each) for each in runs],
        "piece_first": [0, 2, 3, 5],
        "line": [4, 6, 6, 6, 9],
        "piece_length": [13, 9, 6, 18, 6],
        "piece_elements": [2, 1, 1, 3, 1],
        "run_first": [0, 1, 2, 3, 4, 5],
        "reference_piece": [],
        "reference_crc32c": [],
        "range_first": [0],
        "range_start": [],
        "range_end": [],
    }
    again = SpillSet.from_json(json.loads(json.dumps(spill_set.to_json())))
    assert read(again) == read(spill_set)
    assert read(again)[2] == (bodies[2], [[6, 18, 3], [9, 24, 1]], [10, 11, 12, 0])
    assert read(SpillSet.from_json({**spill_set.to_json(), "version": 3})) == read(spill_set)
    for version in (2, 5):
        with pytest.raises(Refused, match=f"version {version}"):
            SpillSet.from_json({**spill_set.to_json(), "version": version})


@pytest.mark.seed("000-12", "000-19")
def test_files_end_softly_between_segments_and_none_is_empty(tmp_path: Path) -> None:
    """Each below its size and one segment, however many there are; no data, no file."""
    value = bytes([1]) * (MIB // 2 - 4)
    spill_set = write(tmp_path / "s", [[(line, [value, value], 0)] for line in range(40)], 8 * MIB)
    sizes = [file.bytes for file in spill_set.files[:-1]]
    assert sizes == [8 * MIB] * 5
    uneven = write(tmp_path / "u", [[(line, [value, value, value], 0)] for line in range(20)], 8 * MIB)
    assert all(8 * MIB <= file.bytes < 8 * MIB + 3 * MIB // 2 for file in uneven.files[:-2])
    assert 0 < uneven.files[-2].bytes <= 8 * MIB
    ends = uneven.columns["offset"] + uneven.columns["length"]
    assert all(end <= uneven.files[file].bytes for file, end in zip(uneven.columns["file"], ends, strict=True))
    assert (write(tmp_path / "e", []).files, write(tmp_path / "f", []).segments) == ((), 0)


@pytest.mark.seed("E23")
@pytest.mark.parametrize("file", [1, 2])
@pytest.mark.parametrize("how", ["flipped", "cut off", "gone"])
def test_damaged_bytes_are_lost_and_never_fewer(tmp_path: Path, how: str, file: int) -> None:
    spill_set = write(tmp_path / "s")
    path = Path(spill_set.files[file].path)
    data = path.read_bytes()
    for place in range(len(data)):
        path.unlink(missing_ok=True)
        if how != "gone":
            flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            path.write_bytes(flipped if how == "flipped" else data[:place])
        with pytest.raises(SpillLost, match="redo the spill"):
            read(spill_set)
        read_segment(spill_set, 0, NO_SOURCE, positions=file == 1)  # whose bytes are in another file


def test_a_damaged_index_is_an_error_and_never_fewer_records(tmp_path: Path) -> None:
    value = write(tmp_path / "s").to_json()
    index = value["index"]
    for place in range(len("columns:"), len(index)):
        other = "A" if index[place] != "A" else "B"
        with pytest.raises(CdrError):
            SpillSet.from_json({**value, "index": index[:place] + other + index[place + 1 :]})


@pytest.mark.parametrize("column", ["length", "piece_length", "run_first"])
def test_an_index_that_does_not_add_up_is_an_error(tmp_path: Path, column: str) -> None:
    """Its checksum is right: whoever wrote it was wrong."""
    spill_set = write(tmp_path / "s")
    changed = {**spill_set.columns, column: spill_set.columns[column] + 1}
    with pytest.raises(Corrupt, match="does not add up"):
        SpillSet.from_json(replace(spill_set, columns=changed).to_json())


def test_a_directory_that_another_task_takes_away_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of an attempt share a directory on a host, and the one that leaves it empty removes it."""
    made = iter([lambda path: None, lambda path: path.mkdir(parents=True)])
    monkeypatch.setattr(set_writer, "make_directories", lambda path: next(made)(path))
    assert write(tmp_path / "scratch" / "s").segments == len(SEGMENTS)
