"""A checkpoint by the names people use, and where its bytes are."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from cdr_core.errors import CorruptMetadata, SpecRefused
from cdr_core.flink.checkpoint import Checkpoint, FileLocation, InlineLocation, load_checkpoint
from cdr_core.flink.metadata import (
    EMPTY_SEGMENT,
    AbsoluteFile,
    FileSegment,
    InlineBytes,
    KeyGroupStream,
    Offsets,
    OperatorState,
    RelativeFile,
    Side,
    write_metadata,
)
from cdr_core.flink.operator_id import operator_id_of_uid
from tests.flink_formats.metadata.conftest import RealCheckpoint
from tests.flink_formats.metadata.samples import metadata

GEN, SLOW = "6bf01baa9d2ca23a3ef7ce311722523d", "59fa767824610e31f4a11d6125e09bf4"


def _checkpoint(*operators: OperatorState, version: int = 6, directory: str = "/chk-1") -> Checkpoint:
    return load_checkpoint(directory, write_metadata(metadata(*operators, version=version)))


@pytest.mark.parametrize(
    ("uid", "operator_id"),
    [("gen", GEN), ("slow", SLOW), ("sink", "2e588ce1c86a9d46e2e85186773ce4fd"), ("", "0" * 32)],
)
def test_an_operator_id_is_the_hash_of_its_uid(uid: str, operator_id: str) -> None:
    assert operator_id_of_uid(uid) == operator_id


def test_real_operator_ids_are_the_hashes_of_their_uids(real_checkpoints: dict[str, RealCheckpoint]) -> None:
    for checkpoint in real_checkpoints.values():
        for operator in load_checkpoint("x", checkpoint.metadata).metadata.operators:
            if operator.uid:
                assert operator_id_of_uid(operator.uid) == operator.operator_id


def test_an_operator_is_found_by_uid_name_and_id() -> None:
    gen = OperatorState(GEN, 1, 1, name="Source: gen", uid="gen")
    other = OperatorState("ab" * 16, 1, 1, name="Sink: Writer")
    checkpoint = _checkpoint(gen, other)
    assert checkpoint.operator("gen") == checkpoint.operator("Source: gen") == checkpoint.operator(GEN) == gen
    assert checkpoint.operator("Sink: Writer") == checkpoint.operator("AB" * 16) == other


@pytest.mark.parametrize("version", [3, 4])
def test_a_uid_finds_its_operator_where_the_metadata_stores_none(version: int) -> None:
    checkpoint = _checkpoint(OperatorState(GEN, 1, 1), OperatorState(SLOW, 2, 2), version=version)
    assert checkpoint.operator("slow").operator_id == SLOW


def test_a_uid_goes_before_the_same_name_of_another_operator() -> None:
    by_name = OperatorState("ab" * 16, 1, 1, name="gen")
    by_uid = OperatorState(GEN, 1, 1, name="other", uid="gen")
    assert _checkpoint(by_name, by_uid).operator("gen") == by_uid


def test_an_unknown_operator_is_refused_with_the_known_ones() -> None:
    checkpoint = _checkpoint(OperatorState(GEN, 1, 1, uid="gen"), OperatorState("ab" * 16, 1, 1, name="Sink"))
    with pytest.raises(SpecRefused, match=r"no operator 'slow' .*it has Sink, gen") as caught:
        checkpoint.operator("slow")
    assert caught.value.exit_code == 3
    with pytest.raises(SpecRefused, match="none at all"):
        _checkpoint().operator("slow")


def test_a_name_that_two_operators_have_is_refused_with_their_ids() -> None:
    checkpoint = _checkpoint(OperatorState("ab" * 16, 1, 1, name="Map"), OperatorState("cd" * 16, 1, 1, name="Map"))
    with pytest.raises(SpecRefused, match=f"2 operators have the name 'Map' .*{'ab' * 16}, {'cd' * 16}"):
        checkpoint.operator("Map")


def test_the_hash_of_a_checkpoint_is_over_its_metadata(real_checkpoints: dict[str, RealCheckpoint]) -> None:
    real = real_checkpoints["g_p7_thr0/chk-2"]
    checkpoint = load_checkpoint(str(real.directory), real.metadata)
    assert checkpoint.sha256 == hashlib.sha256(real.metadata).hexdigest()
    gates = {channel.a for channel in checkpoint.channels("slow", Side.INPUT)}
    assert gates == {0, 1}


def test_broken_metadata_is_refused_with_the_directory() -> None:
    with pytest.raises(CorruptMetadata, match="s3://b/chk-1"):
        load_checkpoint("s3://b/chk-1", b"nothing")


@pytest.mark.parametrize("directory", ["/data/chk-7", "/data/chk-7/", "file:///data/chk-7", "s3://bucket/chk-7/"])
def test_a_relative_file_is_below_the_directory_that_is_read(directory: str) -> None:
    location = _checkpoint(directory=directory).resolve(RelativeFile("aa-bb", 12))
    assert location == FileLocation(f"{directory.rstrip('/')}/aa-bb", 0, 12)


def test_other_handles_say_where_they_are() -> None:
    checkpoint = _checkpoint()
    assert checkpoint.resolve(InlineBytes("n", b"data")) == InlineLocation(b"data")
    assert checkpoint.resolve(EMPTY_SEGMENT) == InlineLocation(b"")
    assert checkpoint.resolve(AbsoluteFile("s3://b/shared/x", -1)) == FileLocation("s3://b/shared/x", 0, None)
    assert checkpoint.resolve(AbsoluteFile("file:/data/x", 5)) == FileLocation("file:///data/x", 0, 5)
    assert checkpoint.resolve(FileSegment(40, 9, 0, "/merged", "id")) == FileLocation("/merged", 40, 9)
    nested = KeyGroupStream(0, Offsets(), RelativeFile("f", 1))
    assert checkpoint.resolve(nested) == FileLocation("/chk-1/f", 0, 1)
    with pytest.raises(CorruptMetadata, match="names no stream"):
        checkpoint.resolve(KeyGroupStream(0, Offsets(), None))


MERGED = "file:/srv/flink/job/taskowned/tm/uuid"


def _resolved(path: str, there: set[str], directory: str = "/copy/chk-1") -> str:
    checkpoint = replace(_checkpoint(directory=directory), exists=there.__contains__)
    location = checkpoint.resolve(FileSegment(40, 9, 0, path, "id"))
    assert isinstance(location, FileLocation)
    assert (location.base, location.length) == (40, 9)
    return location.uri


def test_a_file_that_was_moved_with_its_checkpoint_is_found_beside_it() -> None:
    there = {"/copy/taskowned/tm/uuid", "s3://b/job/shared/x", "/copy/chk-1/y", "/copy/chk-9/y"}
    assert _resolved(MERGED, there) == "/copy/taskowned/tm/uuid"
    assert _resolved("hdfs://old/shared/a/shared/x", there, "s3://b/job/chk-1") == "s3://b/job/shared/x"
    assert _resolved("/old/chk-1/y", there) == "/copy/chk-1/y"
    assert _resolved("/old/chk-9/y", there) == "/copy/chk-9/y"
    assert _resolved("/old/shared/x", {"./../shared/x"}, ".") == "./../shared/x"
    assert _resolved("/old/shared/x", {"shared/x"}, "chk-1") == "shared/x"


def test_a_file_of_a_checkpoint_that_has_another_name_now_is_found_in_it() -> None:
    assert _resolved("/old/chk-7/y", {"/copy/of-it/y"}, "/copy/of-it") == "/copy/of-it/y"


def test_a_file_that_is_where_the_metadata_says_is_never_passed_over() -> None:
    there = {"/copy/taskowned/tm/uuid", "file:///srv/flink/job/taskowned/tm/uuid"}
    assert _resolved(MERGED, there) == "file:///srv/flink/job/taskowned/tm/uuid"


def test_a_file_that_is_nowhere_is_called_by_the_name_in_the_metadata() -> None:
    assert _resolved(MERGED, set()) == "file:///srv/flink/job/taskowned/tm/uuid"
    assert _resolved("/old/elsewhere/x", {"/copy/elsewhere/x"}) == "/old/elsewhere/x"
    assert _resolved("/old/shared/../../secret", {"/copy/shared/../../secret"}) == "/old/shared/../../secret"


def test_nobody_asks_for_files_of_a_checkpoint_that_was_not_moved() -> None:
    asked: list[str] = []
    checkpoint = replace(_checkpoint(directory="/srv/flink/job/chk-1"), exists=lambda uri: bool(asked.append(uri)))
    assert checkpoint.resolve(AbsoluteFile(MERGED, 9)) == FileLocation(f"file://{MERGED.removeprefix('file:')}", 0, 9)
    assert asked == []
