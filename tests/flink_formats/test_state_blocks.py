"""What cannot be redistributed is said beforehand, with the operator's name and the way out; which files there are."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from cdr_core.errors import PlanRefused, Refused
from cdr_core.flink.checkpoint import load_checkpoint
from cdr_core.flink.metadata import (
    AbsoluteFile,
    ChangeStream,
    CheckpointedChangelog,
    FileSegment,
    IdentifiedIncremental,
    IdentifiedKeyGroups,
    InlineBytes,
    KeyGroupRange,
    LocalFile,
    NamedState,
    NullOperatorState,
    Offsets,
    OperatorState,
    OperatorStateHandle,
    RelativeFile,
    StoredFileChanges,
    SubtaskState,
)
from cdr_core.flink.state import BlockKind, blocks, files_behind
from tests.flink.fixtures import MADE, STATEFUL
from tests.flink_formats.state_support import SPLIT, Memory, head, operator, operator_handle
from tests.support.checkpoints import FixtureCheckpoints

RAW = OperatorStateHandle((NamedState("raw", SPLIT, Offsets.of([0])),), InlineBytes("raw", b"anything"))
KEYED = IdentifiedKeyGroups(0, Offsets.of([4]), InlineBytes("keyed", b"head and"), "id")
INCREMENTAL = IdentifiedIncremental(7, "b", KeyGroupRange(0, 1), 9, InlineBytes("meta", b""), (), (), "id")


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (SubtaskState(0, raw_operator=RAW), BlockKind.RAW_OPERATOR),
        (SubtaskState(0, raw_keyed=INCREMENTAL), BlockKind.RAW_KEYED),
    ],
)
def test_raw_state_is_blocked_by_name_unless_parallelism_stays(state: SubtaskState, kind: BlockKind) -> None:
    source = operator([state])
    assert blocks(source, 1, version=6) == ()
    (block,) = blocks(source, 2, version=6)
    assert (block.operator, block.kind) == ("op", kind)
    assert "let Flink rescale" in str(block)
    memory = Memory()
    with pytest.raises(PlanRefused, match=kind.value):
        memory.moved(source, 2)
    assert not memory.written


def test_raw_state_of_which_there_is_none_blocks_nothing() -> None:
    empty = replace(RAW, states=())
    states = [SubtaskState(0, raw_operator=empty), SubtaskState(1, raw_operator=NullOperatorState())]
    assert blocks(operator(states), 3, version=6) == ()


def test_more_subtasks_than_key_groups_are_blocked() -> None:
    (block,) = blocks(operator([SubtaskState(0)], max_parallelism=4), 5, version=6)
    assert block.kind is BlockKind.TOO_PARALLEL
    assert "choose at most 4" in str(block)


def test_heads_are_looked_into_where_they_can_be_read() -> None:
    memory = Memory()
    states = {("a", SPLIT): [b"x"]}
    subtasks = [
        SubtaskState(i, managed_operator=operator_handle(memory, f"o{i}", head(list(states), serializer=how), states))
        for i, how in enumerate((b"one", b"two"))
    ]
    assert blocks(operator(subtasks), 3, version=6) == ()
    (block,) = blocks(operator(subtasks), 3, version=6, read=memory.read)
    assert block.kind is BlockKind.UNLIKE_OPERATOR
    assert blocks(operator(subtasks), 2, version=6, read=memory.read) == ()


def test_state_of_asynchronous_access_is_cut_but_not_merged() -> None:
    memory = Memory()
    name = b"\0\5count" + struct.pack(">ii", 4, 1) + b"\0\x10KEYED_STATE_TYPE"
    meta = [memory.put("plain", name.replace(struct.pack(">i", 4), bytes(4))), memory.put("asynchronous", name)]
    handles = [
        IdentifiedIncremental(7, "b", KeyGroupRange(64 * i, 64), 9, meta[i], (), (), f"id {i}") for i in range(2)
    ]
    source = operator([SubtaskState(i, managed_keyed=each) for i, each in enumerate(handles)])
    assert blocks(source, 4, version=6, read=memory.read) == ()
    assert blocks(source, 1, version=6) == ()
    (block,) = blocks(source, 1, version=6, read=memory.read)
    assert block.kind is BlockKind.UNMERGEABLE_KEYED
    assert "asynchronous state access" in str(block)
    with pytest.raises(Refused, match="asynchronous state access"):
        memory.moved(source, 1)
    both_plain = operator(
        [SubtaskState(i, managed_keyed=replace(each, meta=meta[0])) for i, each in enumerate(handles)]
    )
    assert blocks(both_plain, 1, version=6, read=memory.read) == ()


def test_coordinators_and_finished_operators_block_nothing() -> None:
    """Flink hands a coordinator the bytes of the checkpoint, at whatever parallelism it restores."""
    source = replace(operator([SubtaskState(0)]), coordinator_state=InlineBytes("c", b"enumerator"))
    assert blocks(source, 2, version=6) == ()
    done = OperatorState("0" * 32, 3, 128, finished_mark=-1)
    assert blocks(done, 2, version=6) == ()
    assert Memory().moved(done, 2) == ()


@pytest.mark.parametrize("name", sorted({*MADE, *STATEFUL}))
def test_nothing_of_what_flink_wrote_is_blocked(fixture_checkpoint: FixtureCheckpoints, name: str) -> None:
    checkpoint = fixture_checkpoint(name)
    metadata = load_checkpoint(str(checkpoint.path), (checkpoint.path / "_metadata").read_bytes()).metadata
    for each in metadata.operators:
        for parallelism in (1, 2, 3, 5, 128):
            assert blocks(each, parallelism, version=metadata.version) == ()


@pytest.mark.parametrize("name", sorted(MADE))
def test_the_files_behind_an_operator_are_there(fixture_checkpoint: FixtureCheckpoints, name: str) -> None:
    checkpoint = fixture_checkpoint(name)
    metadata = load_checkpoint(str(checkpoint.path), (checkpoint.path / "_metadata").read_bytes()).metadata
    relative = set()
    for file in (file for each in metadata.operators for file in files_behind(each)):
        if isinstance(file, RelativeFile):
            relative.add(file.path)
            assert (checkpoint.path / file.path).stat().st_size == file.size
        else:
            assert isinstance(file, AbsoluteFile | FileSegment)
            assert file.path.startswith("file:")
    others = {path.name for path in checkpoint.path.iterdir() if path.name != "_metadata"} - relative
    assert all((checkpoint.path / other).read_bytes()[:4] == bytes(4) for other in others), "only channel state is left"


def test_every_file_of_a_nested_handle_is_told() -> None:
    names = ["meta", "shared", "private", "full", "log"]
    meta, shared, private, full, log = (RelativeFile(name, 1) for name in names)
    incremental = replace(
        INCREMENTAL, meta=meta, shared=(LocalFile("1.sst", shared),), private=(LocalFile("CURRENT", private),)
    )
    changes = StoredFileChanges(KeyGroupRange(0, 1), (ChangeStream(0, log),), 1, 1, "id", "fs")
    changelog = CheckpointedChangelog(
        KeyGroupRange(0, 1), 1, (incremental, replace(KEYED, delegate=full)), (changes,), 1, 1, "id"
    )
    found = files_behind(operator([SubtaskState(0, managed_keyed=changelog)]))
    assert [file.path for file in found] == names


def test_a_file_that_two_subtasks_name_is_told_once() -> None:
    keyed = replace(KEYED, delegate=RelativeFile("one", 3))
    assert files_behind(operator([SubtaskState(i, managed_keyed=keyed) for i in range(2)])) == (RelativeFile("one", 3),)
