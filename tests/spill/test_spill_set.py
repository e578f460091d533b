"""Spill sets: what goes in comes out in order; what is damaged is noticed; what fails leaves nothing."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdr_core.errors import DiskFull, SpillLost, StorageError
from cdr_core.spill.segments import HEADER, SpillSet
from cdr_core.spill.writer import SpillWriter
from tests.support.spill import frames, read, write


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.binary(min_size=1, max_size=90), min_size=1, max_size=5)), max_size=12
    ),
    st.integers(1, 200),
    st.integers(1, 400),
)
def test_records_come_back_in_order_with_their_positions(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, list[bytes]]], segment: int, file: int
) -> None:
    spill_set = write(tmp_path_factory.mktemp("set") / "s", batches, segment, file)
    again = SpillSet.from_json(spill_set.to_json())
    assert again == spill_set
    got = read(again)
    assert b"".join(body for _, body, _ in got) == b"".join(frames(values) for _, values in batches)
    assert [p for _, _, positions in got for p in positions] == list(range(sum(len(v) for _, v in batches)))
    changes = [batches[0][0]] if batches else []
    changes += [b for (a, _), (b, _) in pairwise(batches) if a != b]
    assert [c for i, (c, _, _) in enumerate(got) if i == 0 or got[i - 1][0] != c] == changes


@pytest.mark.seed("000-12")
def test_segments_carry_their_header_and_never_cross_files(tmp_path: Path) -> None:
    """Files rotate beyond the soft bound, each smaller than the bound and one segment."""
    spill_set = write(tmp_path / "s", [(channel, [b"x" * 30]) for channel in range(40)])
    assert len(spill_set.files) > 3
    for file in spill_set.files:
        data = Path(file.path).read_bytes()
        assert 0 < len(data) == file.bytes < 256 + HEADER.size + 34
    for segment in spill_set.segments:
        data = Path(spill_set.files[segment.file].path).read_bytes()
        assert HEADER.unpack_from(data, segment.offset) == (segment.gate, segment.channel, segment.length)
        assert segment.offset + HEADER.size + segment.length <= len(data)


def test_nothing_to_spill_makes_no_file(tmp_path: Path) -> None:
    spill_set = write(tmp_path / "s", [])
    assert spill_set.files == ()
    assert spill_set.segments == ()
    assert list((tmp_path / "s").iterdir()) == []


@pytest.mark.seed("E19", "E23")
@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "header", "directory", "positions", "no positions"])
def test_a_damaged_set_is_lost_and_never_fewer_records(tmp_path: Path, damage: str) -> None:
    """An error of its own class, by which the drain knows that making the set again helps."""
    spill_set = write(tmp_path / "s", [(0, [b"y" * 50] * 4)], file_size=1 << 20)
    path = Path(spill_set.files[0].path)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[HEADER.size + 17] ^= 4
    if damage == "header":
        data[3] ^= 1
    path.write_bytes(data[:-1] if damage == "truncate" else data)
    if damage == "delete":
        path.unlink()
    if damage == "positions":
        (tmp_path / "s" / "positions").write_bytes(b"")
    if damage == "no positions":
        (tmp_path / "s" / "positions").unlink()
    if damage == "directory":
        shutil.rmtree(tmp_path / "s")
    with pytest.raises(SpillLost, match=str(tmp_path)) as lost:
        read(spill_set)
    assert lost.value.retry_helps


def test_a_failed_writer_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with SpillWriter(tmp_path / "s", 0, 8, 16) as writer:
            body = np.frombuffer(frames([b"abcdefgh"] * 5), np.uint8)
            writer.append(0, 0, 0, body, 0, np.array([0]), np.array([len(body)]), np.arange(5))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="no room left"), SpillWriter(tmp_path / "s", 0, 8, 16):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []
    assert issubclass(DiskFull, StorageError)


def test_a_damaged_position_is_noticed(tmp_path: Path) -> None:
    spill_set = write(tmp_path / "s", [(0, [b"one", b"two"])])
    assert spill_set.positions is not None
    positions = Path(spill_set.positions)
    data = positions.read_bytes()
    positions.write_bytes(data[:-8] + bytes([data[-8] ^ 1]) + data[-7:])
    with pytest.raises(SpillLost, match="positions is damaged"):
        read(spill_set)
