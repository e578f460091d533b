"""Handmade values: one of every kind of handle, and files that hold them."""

from __future__ import annotations

import struct

from cdr_core.flink.metadata import (
    EMPTY_SEGMENT,
    AbsoluteFile,
    Change,
    Changelog,
    ChangeStream,
    ChannelHandle,
    CheckpointedChangelog,
    CheckpointMetadata,
    FileChanges,
    FileSegment,
    FinishedSubtask,
    IdentifiedIncremental,
    IdentifiedKeyGroups,
    Incremental,
    InlineBytes,
    KeyedHandle,
    KeyGroupRange,
    KeyGroups,
    KeyGroupStream,
    LegacySubtask,
    LocalFile,
    MasterState,
    MemoryChanges,
    MergedChannel,
    MergedChannelHandle,
    MergedOperatorStateHandle,
    NamedState,
    NullOperatorState,
    Offsets,
    OperatorHandle,
    OperatorState,
    OperatorStateHandle,
    RelativeFile,
    SavepointKeyGroups,
    SingleChannelHandle,
    StoredFileChanges,
    StreamHandle,
    SubtaskState,
)

NULL_PROPERTIES = bytes.fromhex("aced000570")
OPERATOR_ID = "00112233445566778899aabbccddeeff"

INLINE = InlineBytes("a name", b"\x00\x01payload")
ABSOLUTE = AbsoluteFile("s3://bucket/shared/aaaa-bbbb", 123_456_789_012)
RELATIVE = RelativeFile("cccc-dddd", -1)
SEGMENT = FileSegment(4096, 77, 1, "file:/data/merged/eeee", "logical-ffff")
NESTED = KeyGroupStream(5, Offsets.of([40, 0, 11]), RELATIVE)

STREAMS: dict[str, StreamHandle | None] = {
    "null": None,
    "inline": INLINE,
    "absolute": ABSOLUTE,
    "relative": RELATIVE,
    "key groups as stream": NESTED,
    "segment": SEGMENT,
    "empty segment": EMPTY_SEGMENT,
}

_STATES = (
    NamedState("split", 0, Offsets.of([4, 90])),
    NamedState("union", 1, Offsets.of([])),
    NamedState("broad\x00cast \U0001f600 é", 2, Offsets.of([7])),
)

OPERATOR_HANDLES: dict[str, OperatorHandle | None] = {
    "none": None,
    "announced null": NullOperatorState(),
    "plain": OperatorStateHandle(_STATES, RELATIVE),
    "without states": OperatorStateHandle((), None),
    "merged": MergedOperatorStateHandle(_STATES, "/owned", "/shared", False, SEGMENT),
    "merged and empty": MergedOperatorStateHandle((), "", "", True, EMPTY_SEGMENT),
}

_RANGE = KeyGroupRange(43, 43)
_SHARED = (LocalFile("000012.sst", ABSOLUTE), LocalFile("000013.sst", NESTED))
_PRIVATE = (LocalFile("MANIFEST-01", RELATIVE), LocalFile("CURRENT", INLINE), LocalFile("nothing", None))
_INCREMENTAL = IdentifiedIncremental(9, "uuid-1", _RANGE, 5000, RELATIVE, _SHARED, _PRIVATE, "id-11")
_MEMORY = MemoryChanges(_RANGE, 3, 9, (Change(44, b"change"), Change(45, b"")), "id-9")
_STREAMS = (ChangeStream(17, RELATIVE), ChangeStream(0, None))

KEYED_HANDLES: dict[str, KeyedHandle | None] = {
    "null": None,
    "3 key groups": KeyGroups(0, Offsets.of([100, 0, 50]), RELATIVE),
    "7 savepoint key groups": SavepointKeyGroups(3, Offsets.of([1]), INLINE),
    "12 identified key groups": IdentifiedKeyGroups(0, Offsets.of([]), SEGMENT, "id-12"),
    "5 incremental": Incremental(8, "uuid-0", _RANGE, INLINE, _SHARED, ()),
    "11 identified incremental": _INCREMENTAL,
    "8 changelog": Changelog(_RANGE, -1, (_INCREMENTAL, None), (_MEMORY,), 2, "id-8"),
    "14 checkpointed changelog": CheckpointedChangelog(_RANGE, 6, (), (_MEMORY, _INCREMENTAL), 2, 99, "id-14"),
    "9 changes in memory": _MEMORY,
    "10 changes in files": FileChanges(_RANGE, _STREAMS, 30, 20, "id-10"),
    "13 stored changes in files": StoredFileChanges(_RANGE, _STREAMS, 30, 20, "id-13", "filesystem"),
}

CHANNEL_HANDLES: dict[str, ChannelHandle] = {
    "single": SingleChannelHandle(1, 0, 2, Offsets.of([4, 108, 60]), 300, RELATIVE),
    "single without offsets": SingleChannelHandle(1, 1, 0, Offsets(), 0, None),
    "merged": MergedChannelHandle(
        1, 700, SEGMENT, (MergedChannel(0, 0, 400, Offsets.of([4, 50])), MergedChannel(0, 1, 300, Offsets.of([20])))
    ),
    "merged without channels": MergedChannelHandle(1, 0, INLINE, ()),
}


def operator(*subtasks: SubtaskState | FinishedSubtask, **fields: object) -> OperatorState:
    """An operator of parallelism 4 that holds these subtasks."""
    return OperatorState(OPERATOR_ID, 4, 128, subtasks=subtasks, **fields)  # type: ignore[arg-type]


def metadata(*operators: OperatorState, version: int = 6, **fields: object) -> CheckpointMetadata:
    """A file of ``version`` with the shortest legal properties."""
    fields.setdefault("properties", NULL_PROPERTIES if version >= 4 else b"")
    return CheckpointMetadata(version, 7, operators, **fields)  # type: ignore[arg-type]


def everything() -> CheckpointMetadata:
    """A version 6 file with every kind of handle in it."""
    subtasks = [
        SubtaskState(index, managed_operator=handle, raw_keyed=keyed)
        for index, (handle, keyed) in enumerate(
            zip([*OPERATOR_HANDLES.values(), *[None] * 5], KEYED_HANDLES.values(), strict=True)
        )
    ]
    channels = tuple(CHANNEL_HANDLES.values())
    streams = tuple(SingleChannelHandle(11, 3, b, Offsets(), b, s) for b, s in enumerate(STREAMS.values()))
    with_channels = SubtaskState(11, input_channels=channels, output_channels=(*streams, *channels))
    first = OperatorState(
        OPERATOR_ID,
        20,
        128,
        name="Source: gen",
        uid="gen-é-\U0001f600",
        coordinator_state=INLINE,
        subtasks=(with_channels, *subtasks, FinishedSubtask(19)),
    )
    second = OperatorState("ff" * 16, 3, 3, name="only a name", finished_mark=-5)
    masters = (MasterState(1, "hook", b"state"), MasterState(0, "", b""))
    return metadata(first, second, master_states=masters)


def legacy() -> CheckpointMetadata:
    """A version 2 file with its two unused fields."""
    subtask = SubtaskState(
        2,
        managed_operator=OPERATOR_HANDLES["plain"],
        managed_keyed=KEYED_HANDLES["3 key groups"],
        legacy=LegacySubtask(-12, -1),
    )
    return metadata(operator(subtask, chain_length=3), version=2)


def header(version: int = 6, checkpoint_id: int = 7) -> bytes:
    """The first 16 bytes of a file, for tests that spell bytes out."""
    return struct.pack(">iiq", 0x4960672D, version, checkpoint_id)


def one_subtask(body: bytes, version: int = 6) -> bytes:
    """A file, by hand: no master state, one operator, subtask 0 of parallelism 4 with this body, null properties."""
    names = b"\x00\x00\x00\x00" if version >= 5 else b""
    operator_bytes = names + bytes.fromhex(OPERATOR_ID) + struct.pack(">iibii", 4, 128, 0, 1, 0)
    return (
        header(version) + struct.pack(">ii", 0, 1) + operator_bytes + body + (NULL_PROPERTIES if version > 3 else b"")
    )
