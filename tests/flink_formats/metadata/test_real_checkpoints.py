"""Files that a real Flink wrote: read like Flink reads them, written back byte for byte."""

from __future__ import annotations

import tarfile
from typing import Any

import pytest

from cdr_core.flink.checkpoint import load_checkpoint
from cdr_core.flink.metadata import (
    CheckpointedChangelog,
    CheckpointMetadata,
    EmptySegment,
    FileSegment,
    IdentifiedIncremental,
    IdentifiedKeyGroups,
    InlineBytes,
    MergedOperatorStateHandle,
    OperatorStateHandle,
    RelativeFile,
    Side,
    StreamHandle,
    SubtaskState,
    read_metadata,
    write_metadata,
)
from cdr_core.flink.metadata.writer import encode_metadata
from tests.flink_formats.metadata.conftest import REPOSITORY, RealCheckpoint

FLINK_OWN = REPOSITORY.parent / "shared" / "fixtures" / "flink-repo-metadata.tar.gz"
MODES = {0: "SPLIT_DISTRIBUTE", 1: "UNION", 2: "BROADCAST"}


def test_every_real_checkpoint_is_written_back_byte_for_byte(real_checkpoints: dict[str, RealCheckpoint]) -> None:
    for name, checkpoint in real_checkpoints.items():
        assert write_metadata(read_metadata(checkpoint.metadata, checkpoint=name)) == checkpoint.metadata, name


def test_a_memoryview_is_read_like_bytes(real_checkpoints: dict[str, RealCheckpoint]) -> None:
    data = real_checkpoints["a_p3_thr0/chk-2"].metadata
    assert read_metadata(memoryview(bytearray(data))) == read_metadata(data)


def test_operators_are_those_flink_reads(real_checkpoints: dict[str, RealCheckpoint]) -> None:
    for name, checkpoint in real_checkpoints.items():
        if not checkpoint.oracle:
            continue
        metadata = read_metadata(checkpoint.metadata)
        (said,) = checkpoint.lines("checkpoint")
        assert (metadata.version, metadata.checkpoint_id) == (said["version"], said["id"]), name
        read = [
            (o.operator_id, o.name, o.uid, o.parallelism, o.max_parallelism, len(o.subtasks), o.finished)
            for o in metadata.operators
        ]
        wanted = [
            (
                line["operator_id"],
                line["name"] or None,
                line["uid"] or None,
                line["parallelism"],
                line["max_parallelism"],
                line["subtask_states"],
                line["fully_finished"],
            )
            for line in checkpoint.lines("operator")
        ]
        assert sorted(read) == sorted(wanted), name


def test_channel_handles_are_those_flink_reads(real_checkpoints: dict[str, RealCheckpoint]) -> None:
    compared = 0
    for name, checkpoint in real_checkpoints.items():
        if not checkpoint.oracle:
            continue
        loaded = load_checkpoint(str(checkpoint.directory), checkpoint.metadata)
        read = {
            (side, operator.operator_id, *at, tuple(piece.offsets), piece.size, *_stream(piece.delegate))
            for operator in loaded.metadata.operators
            for side in Side
            for at, piece in loaded.channels(operator, side).items()
        }
        wanted = {_handle_line(line) for line in checkpoint.lines("handle")}
        assert read == wanted, name
        compared += len(wanted)
    assert compared > 300


def test_keyed_state_is_what_flink_reads(real_checkpoints: dict[str, RealCheckpoint]) -> None:
    kinds = {
        "KeyGroupsStateHandle": IdentifiedKeyGroups,
        "IncrementalRemoteKeyedStateHandle": IdentifiedIncremental,
        "ChangelogStateBackendHandleImpl": CheckpointedChangelog,
    }
    compared = 0
    for name, checkpoint in real_checkpoints.items():
        subtasks = _subtasks(read_metadata(checkpoint.metadata))
        for line in checkpoint.lines("keyed_state"):
            handle = subtasks[line["operator_id"], line["subtask"]].managed_keyed
            assert isinstance(handle, kinds[line["class"]]), name
            if isinstance(handle, IdentifiedKeyGroups):
                assert handle.delegate is not None
                assert (handle.start, len(handle.offsets)) == (line["kg_start"], line["kg_end"] - line["kg_start"] + 1)
                assert _stream(handle.delegate) == _stream_line(line), name
            else:
                assert isinstance(handle, IdentifiedIncremental | CheckpointedChangelog)
                assert (handle.key_groups.start, handle.key_groups.count + handle.key_groups.start - 1) == (
                    line["kg_start"],
                    line["kg_end"],
                )
            if isinstance(handle, CheckpointedChangelog):
                assert (len(handle.materialized), len(handle.changes)) == (line["materialized"], line["changes"]), name
            compared += 1
    assert compared > 50


def test_operator_state_is_what_flink_reads(real_checkpoints: dict[str, RealCheckpoint]) -> None:
    compared = 0
    for name, checkpoint in real_checkpoints.items():
        subtasks = _subtasks(read_metadata(checkpoint.metadata))
        for line in checkpoint.lines("operator_state"):
            handle = subtasks[line["operator_id"], line["subtask"]].managed_operator
            assert isinstance(handle, OperatorStateHandle | MergedOperatorStateHandle)
            assert handle.delegate is not None
            states = {s.name: {"mode": MODES[s.mode], "offsets": list(s.offsets)} for s in handle.states}
            assert states == line["states"], name
            assert _stream(handle.delegate) == _stream_line(line), name
            compared += 1
    assert compared > 30


def test_every_metadata_file_of_flinks_own_tests_is_written_back_byte_for_byte() -> None:
    if not FLINK_OWN.exists():
        pytest.skip("the archive of Flink's own _metadata files is not beside this checkout")
    seen: dict[int, int] = {}
    with tarfile.open(FLINK_OWN) as tar:
        for member in tar:
            if (file := tar.extractfile(member)) is None:
                continue
            data = file.read()
            metadata = read_metadata(data, checkpoint=member.name)
            assert encode_metadata(metadata) == data, member.name
            seen[metadata.version] = seen.get(metadata.version, 0) + 1
    assert sum(seen.values()) == 245
    assert set(seen) == {2, 3, 4, 5, 6}


def _handle_line(line: dict[str, Any]) -> tuple[Any, ...]:
    a = line["gate"] if line["kind"] == "input" else line["partition"]
    b = line["channel"] if line["kind"] == "input" else line["subpartition"]
    place = (line["kind"], line["operator_id"], line["subtask"], a, b)
    return (*place, tuple(line["offsets"]), line["size"], *_stream_line(line))


def _stream_line(line: dict[str, Any]) -> tuple[str, int, bool, int]:
    return line["underlying"], line["underlying_size"], line["inline"], line.get("underlying_start", 0)


def _stream(handle: StreamHandle) -> tuple[str, int, bool, int]:
    """Name, size, inline, start, as the oracle prints them."""
    match handle:
        case InlineBytes():
            return handle.name, len(handle.data), True, 0
        case FileSegment():
            return handle.path, handle.length, False, handle.start
        case EmptySegment():
            return "empty", 0, False, 0
    assert isinstance(handle, RelativeFile)
    return handle.path, handle.size, False, 0


def _subtasks(metadata: CheckpointMetadata) -> dict[tuple[str, int], SubtaskState]:
    return {
        (operator.operator_id, subtask.index): subtask
        for operator in metadata.operators
        for subtask in operator.subtasks
        if isinstance(subtask, SubtaskState)
    }
