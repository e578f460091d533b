"""Addresses as Flink and its users write them, and names that no file can have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cdr_core.channels.channel_source import open_checkpoint
from cdr_core.errors import CdrError, Refused, Unreadable
from cdr_core.flink.checkpoint import FileLocation, load_checkpoint
from cdr_core.flink.metadata import AbsoluteFile
from cdr_core.inspection.what_if import what_if
from cdr_core.settings import load
from cdr_core.storage import absolute, is_local, s3, storage_for
from cdr_core.storage.local import LocalStorage, local_path
from tests.support.bucket import Bucket
from tests.support.checkpoints import FixtureCheckpoints

NO_NAMES = {"U+0000": "a\0b", "half a pair": "\ud800", "too long": "x" * 5000}


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3p", "s3n"])
def test_s3_is_s3_by_whichever_client_flink_writes_it(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    uri = f"{bucket.uri()}/object"
    bucket.put(uri, b"bytes")
    spelled = uri.replace("s3://", f"{scheme}://")
    assert not is_local(spelled)
    assert storage_for(spelled).read(spelled) == b"bytes"
    assert absolute(spelled) == uri


@pytest.mark.parametrize("spelling", ["{}", "file:{}", "file://{}"])
def test_a_local_path_is_one_however_flink_prints_it(tmp_path: Path, spelling: str) -> None:
    (tmp_path / "object").write_bytes(b"bytes")
    uri = spelling.format(tmp_path / "object")
    assert is_local(uri)
    assert (storage_for(uri).read(uri), local_path(uri)) == (b"bytes", tmp_path / "object")
    assert absolute(uri) == os.path.realpath(tmp_path / "object")


def test_a_checkpoint_is_opened_by_the_address_that_flink_prints(fixture_checkpoint: FixtureCheckpoints) -> None:
    source = fixture_checkpoint("a_p3_thr0")
    found = what_if(f"file:{source.path}", str(source.spec), "2", "", load(), exact=False, speed=None)
    assert (found.value["path"], found.refusals) == (str(source.path), ())
    assert open_checkpoint(f"file:{source.path}") == open_checkpoint(str(source.path))


def test_state_of_another_client_is_found_and_its_handle_stays(fixture_checkpoint: FixtureCheckpoints) -> None:
    metadata = (fixture_checkpoint("a_p3_thr0").path / "_metadata").read_bytes()
    handle = AbsoluteFile("s3p://bucket/shared/1", 5)
    location = load_checkpoint("s3://bucket/chk-1", metadata).resolve(handle)
    assert (location, handle.path) == (FileLocation("s3://bucket/shared/1", 0, 5), "s3p://bucket/shared/1")


def test_other_schemes_are_refused() -> None:
    with pytest.raises(Refused, match="hdfs://"):
        storage_for("hdfs://name/data")


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_name_that_no_file_can_have_is_unreadable_and_cannot_be_written(tmp_path: Path, name: str) -> None:
    storage, path = LocalStorage(), f"{tmp_path}/{NO_NAMES[name]}"
    with pytest.raises(Unreadable, match="no name that a file can have") as read:
        storage.read(path)
    with pytest.raises(Unreadable):
        storage.stat(path)
    assert not storage.exists(path)
    assert (read.value.exit_code, len(str(read.value)) < 400) == (5, True)
    assert str(read.value).encode(), "can be printed"
    with pytest.raises(CdrError) as written:
        storage.create(path, b"")
    assert written.value.exit_code == 3


def test_a_file_below_a_file_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unreadable, match="does not exist"):
        LocalStorage().read(str(tmp_path / "file" / "below"))


def test_a_key_that_is_no_text_is_unreadable(bucket: Bucket) -> None:
    with pytest.raises(Unreadable, match="no name that an object can have"):
        s3.S3Storage(bucket.client).read("s3://cdr/\ud800", 0, 1)
