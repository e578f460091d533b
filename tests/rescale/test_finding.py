"""A checkpoint is opened by its directory or by its metadata file, and its files are found where it was moved to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cdr_core.channels.channel_source import open_checkpoint
from cdr_core.errors import CorruptChannelState, Refused, Unreadable
from cdr_core.recovery.recovery_request import RecoveryRequest, check
from cdr_core.settings import load
from cdr_core.verify import checkpoint as independent
from cdr_core.verify.handles import Stream
from cdr_core.verify.spec import read_spec
from tests.support.bucket import Bucket
from tests.support.checkpoints import FIXTURES, FixtureCheckpoint, FixtureCheckpoints, unpack
from tests.support.elements import assert_elements_equal

MERGED = "a_p2_file_merging"


@pytest.fixture
def moved(tmp_path: Path, fixture_checkpoint: FixtureCheckpoints) -> FixtureCheckpoint:
    """The checkpoint whose channel state is in merged files, as an archive gives it: no path in it is true here."""
    unpack(FIXTURES / "flink-2.3.0" / f"{MERGED}.tar.gz", tmp_path)
    return FixtureCheckpoint(MERGED, tmp_path / MERGED / "chk-2", fixture_checkpoint(MERGED, 2).spec)


def test_a_moved_checkpoint_with_merged_files_has_every_element(moved: FixtureCheckpoint) -> None:
    assert b"file:/srv/flink" in (moved.path / "_metadata").read_bytes(), "the shipped one names another place"
    assert assert_elements_equal(moved.path, moved.spec.read_text(), moved.oracle) > 0


def test_the_independent_reader_finds_moved_files_too(
    moved: FixtureCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    (exchange,) = read_spec(moved.spec.read_text())
    monkeypatch.chdir(moved.path)
    for address in (str(moved.path), "."):
        with independent.Checkpoint(address) as checkpoint:
            found = [checkpoint.elements(exchange, channel) for channel in checkpoint.channels(exchange)]
        assert sum(len(each.whole().starts) for each in found) == len(moved.oracle.elements)


def test_files_of_a_checkpoint_that_was_given_another_name_are_in_it(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    renamed = shutil.copytree(fixture_checkpoint("a_p3_thr0", 2).path, tmp_path / "incident-42")
    file = next(path for path in renamed.iterdir() if path.name != "_metadata")
    stream = Stream(path=f"file:/gone/job/chk-2/{file.name}")
    with independent.Checkpoint(str(renamed)) as checkpoint:
        assert checkpoint.address(stream) == str(file)


def test_a_moved_file_that_is_not_beside_the_checkpoint_is_missing_by_its_old_name(moved: FixtureCheckpoint) -> None:
    shutil.rmtree(moved.path.parent / "taskowned")
    with pytest.raises(CorruptChannelState, match=r"is missing: /srv/flink/.*/taskowned/"):
        assert_elements_equal(moved.path, moved.spec.read_text(), moved.oracle)


def test_a_moved_checkpoint_on_s3_has_every_element(moved: FixtureCheckpoint, bucket: Bucket) -> None:
    uri = bucket.upload(moved.path.parent)
    assert assert_elements_equal(f"{uri}/chk-2", moved.spec.read_text(), moved.oracle) > 0


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
@pytest.mark.parametrize("name", ["_metadata", "170_metadata"])
def test_a_metadata_file_is_a_checkpoint_by_any_name(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str, scheme: str
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    path = checkpoint.copy(tmp_path / "chk-2")
    (path / "_metadata").rename(path / name)
    opened = open_checkpoint(f"{scheme}{path / name}")
    assert (Path(opened.directory.removeprefix("file://")), opened.file) == (path, name)
    assert opened.address.endswith("/chk-2" if name == "_metadata" else "/chk-2/170_metadata")
    assert_elements_equal(f"{scheme}{path / name}", checkpoint.spec.read_text(), checkpoint.oracle)


def test_a_metadata_file_in_the_working_directory_needs_no_slash(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fixture_checkpoint("a_p3_thr0", 2).copy(tmp_path / "chk-2")
    monkeypatch.chdir(path)
    assert open_checkpoint("_metadata").metadata == open_checkpoint(".").metadata == open_checkpoint(str(path)).metadata


def test_a_metadata_object_is_a_checkpoint_by_any_name(moved: FixtureCheckpoint, bucket: Bucket) -> None:
    (moved.path / "_metadata").rename(moved.path / "170_metadata")
    uri = bucket.upload(moved.path)
    assert open_checkpoint(f"{uri}/170_metadata").address == f"{uri}/170_metadata"
    with pytest.raises(Unreadable, match="is not a checkpoint"):
        open_checkpoint(uri)


def test_a_recovery_needs_the_name_that_flink_gives(moved: FixtureCheckpoint, tmp_path: Path) -> None:
    other = moved.path / "170_metadata"
    (moved.path / "_metadata").rename(other)
    request = RecoveryRequest(
        checkpoint=str(other), spec=str(moved.spec), parallelism="2", to=f"parquet:{tmp_path}/out"
    )
    with pytest.raises(Refused, match="is not named _metadata"):
        check(request, load())
