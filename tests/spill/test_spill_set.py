"""Spill sets: what goes in comes out in order; what is damaged is noticed; what fails leaves nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdr_core.errors import DiskFull, SpillLost, StorageError
from cdr_core.spill.set_writer import SetWriter
from cdr_core.spill.spill_set import SpillSet
from tests.support.spill import append, frames, read, write


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
    got = read(again)
    assert got == read(spill_set)
    assert b"".join(body for body, _, _ in got) == b"".join(frames(values) for _, values in batches)
    assert [p for _, _, positions in got for p in positions] == list(range(sum(len(v) for _, v in batches)))
    pieces = [(line, elements) for _, of_segment, _ in got for line, _, elements in of_segment]
    assert pieces == [(line, len(values)) for line, values in batches]


@pytest.mark.seed("000-12")
def test_segments_never_cross_files(tmp_path: Path) -> None:
    """Files rotate beyond the soft bound, each smaller than the bound and one segment."""
    spill_set = write(tmp_path / "s", [(line, [b"x" * 30]) for line in range(40)])
    *files, _ = spill_set.files
    assert len(files) > 3
    for file in files:
        data = Path(file.path).read_bytes()
        assert 0 < len(data) == file.bytes < 256 + 64
    columns = spill_set.columns
    for number, offset, length in zip(columns["file"], columns["offset"], columns["length"], strict=True):
        assert offset + length <= files[number].bytes


def test_nothing_to_spill_makes_no_file(tmp_path: Path) -> None:
    spill_set = write(tmp_path / "s", [])
    assert spill_set.files == ()
    assert spill_set.segments == 0
    assert list((tmp_path / "s").iterdir()) == []


@pytest.mark.seed("E19", "E23")
@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "directory", "runs", "no runs"])
def test_a_damaged_set_is_lost_and_never_fewer_records(tmp_path: Path, damage: str) -> None:
    """An error of its own class, by which the drain knows that making the set again helps."""
    spill_set = write(tmp_path / "s", [(0, [b"y" * 50] * 4)], file_size=1 << 20)
    path = Path(spill_set.files[0].path)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[17] ^= 4
    path.write_bytes(data[:-1] if damage == "truncate" else data)
    if damage == "delete":
        path.unlink()
    if damage == "runs":
        (tmp_path / "s" / "runs").write_bytes(b"")
    if damage == "no runs":
        (tmp_path / "s" / "runs").unlink()
    if damage == "directory":
        shutil.rmtree(tmp_path / "s")
    with pytest.raises(SpillLost, match=str(tmp_path)) as lost:
        read(spill_set)
    assert lost.value.retry_helps


def test_a_failed_writer_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with SetWriter(tmp_path / "s", 0, 16) as writer:
            append(writer, [(0, [b"abcdefgh"] * 5, 0)])
            append(writer, [(0, [b"in a file that is open"], 5)])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="no room left"), SetWriter(tmp_path / "s", 0, 16):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []
    assert issubclass(DiskFull, StorageError)


def test_a_damaged_position_is_noticed(tmp_path: Path) -> None:
    spill_set = write(tmp_path / "s", [(0, [b"one", b"two"])])
    runs = Path(spill_set.files[-1].path)
    data = runs.read_bytes()
    runs.write_bytes(data[:-8] + bytes([data[-8] ^ 1]) + data[-7:])
    with pytest.raises(SpillLost, match="runs is damaged"):
        read(spill_set)
