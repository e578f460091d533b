"""Handmade values of every kind: written in Flink's layout, read back equal, changed where they were changed."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from cdr_core.errors import Refused
from cdr_core.flink.metadata import (
    ChannelHandle,
    FinishedSubtask,
    KeyedHandle,
    MergedChannelHandle,
    Offsets,
    OperatorHandle,
    OperatorState,
    SingleChannelHandle,
    StreamHandle,
    SubtaskState,
    read_metadata,
    write_metadata,
)
from cdr_core.flink.metadata.writer import encode_metadata
from tests.flink_formats.metadata import samples
from tests.flink_formats.metadata.samples import metadata, operator

VERSIONS = (3, 4, 5, 6)


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


_STREAM_BYTES = {
    "null": b"\x00",
    "inline": b"\x01" + _utf("a name") + struct.pack(">i", 9) + b"\x00\x01payload",
    "absolute": b"\x02" + struct.pack(">q", 123_456_789_012) + _utf("s3://bucket/shared/aaaa-bbbb"),
    "relative": b"\x06" + _utf("cccc-dddd") + struct.pack(">q", -1),
    "segment": b"\x0f" + struct.pack(">qqi", 4096, 77, 1) + _utf("file:/data/merged/eeee") + _utf("logical-ffff"),
    "empty segment": b"\x10",
}
_STREAM_BYTES["key groups as stream"] = b"\x03" + struct.pack(">iiqqq", 5, 3, 40, 0, 11) + _STREAM_BYTES["relative"]

_RANGE = struct.pack(">ii", 43, 43)
_FILES = {
    "shared": struct.pack(">i", 2)
    + _utf("000012.sst")
    + _STREAM_BYTES["absolute"]
    + _utf("000013.sst")
    + _STREAM_BYTES["key groups as stream"],
    "private": struct.pack(">i", 3)
    + _utf("MANIFEST-01")
    + _STREAM_BYTES["relative"]
    + _utf("CURRENT")
    + _STREAM_BYTES["inline"]
    + _utf("nothing")
    + b"\x00",
}
_INCREMENTAL = (
    b"\x0b"
    + struct.pack(">q", 9)
    + _utf("uuid-1")
    + _RANGE
    + struct.pack(">q", 5000)
    + _STREAM_BYTES["relative"]
    + _FILES["shared"]
    + _FILES["private"]
    + _utf("id-11")
)
_MEMORY = (
    b"\x09" + _RANGE + struct.pack(">qqi", 3, 9, 2) + struct.pack(">ii", 44, 6) + b"change" + struct.pack(">ii", 45, 0)
) + _utf("id-9")
_CHANGES = struct.pack(">iq", 2, 17) + _STREAM_BYTES["relative"] + struct.pack(">qb", 0, 0) + struct.pack(">qq", 30, 20)

_KEYED_BYTES = {
    "null": b"\x00",
    "3 key groups": b"\x03" + struct.pack(">iiqqq", 0, 3, 100, 0, 50) + _STREAM_BYTES["relative"],
    "7 savepoint key groups": b"\x07" + struct.pack(">iiq", 3, 1, 1) + _STREAM_BYTES["inline"],
    "12 identified key groups": b"\x0c" + struct.pack(">ii", 0, 0) + _STREAM_BYTES["segment"] + _utf("id-12"),
    "5 incremental": b"\x05"
    + struct.pack(">q", 8)
    + _utf("uuid-0")
    + _RANGE
    + _STREAM_BYTES["inline"]
    + _FILES["shared"]
    + struct.pack(">i", 0),
    "11 identified incremental": _INCREMENTAL,
    "8 changelog": b"\x08"
    + _RANGE
    + struct.pack(">qi", -1, 2)
    + _INCREMENTAL
    + b"\x00"
    + struct.pack(">i", 1)
    + _MEMORY
    + struct.pack(">q", 2)
    + _utf("id-8"),
    "14 checkpointed changelog": b"\x0e"
    + _RANGE
    + struct.pack(">qii", 6, 0, 2)
    + _MEMORY
    + _INCREMENTAL
    + struct.pack(">qq", 2, 99)
    + _utf("id-14"),
    "9 changes in memory": _MEMORY,
    "10 changes in files": b"\x0a" + _RANGE + _CHANGES + _utf("id-10"),
    "13 stored changes in files": b"\x0d" + _RANGE + _CHANGES + _utf("id-13") + _utf("filesystem"),
}


@pytest.mark.parametrize("kind", samples.STREAMS)
def test_a_stream_handle_has_flinks_layout_and_is_read_back(kind: str) -> None:
    handle = SingleChannelHandle(0, 1, 2, Offsets.of([4]), 50, samples.STREAMS[kind])
    body = struct.pack(">iibbi", 0, 0, 0, 0, 1) + struct.pack(">biiiiqq", 1, 0, 1, 2, 1, 4, 50) + _STREAM_BYTES[kind]
    _assert_same(SubtaskState(0, input_channels=(handle,)), body + struct.pack(">i", 0))


@pytest.mark.parametrize("kind", samples.KEYED_HANDLES)
def test_a_keyed_handle_has_flinks_layout_and_is_read_back(kind: str) -> None:
    body = struct.pack(">ii", 0, 0) + _KEYED_BYTES[kind] + b"\x00" + struct.pack(">ii", 0, 0)
    _assert_same(SubtaskState(0, managed_keyed=samples.KEYED_HANDLES[kind]), body)


def test_a_merged_operator_handle_has_flinks_layout() -> None:
    body = struct.pack(">ibi", 1, 17, 0) + _utf("") + _utf("") + b"\x01\x10" + struct.pack(">ibbii", 0, 0, 0, 0, 0)
    _assert_same(SubtaskState(0, managed_operator=samples.OPERATOR_HANDLES["merged and empty"]), body)


def test_a_merged_channel_handle_has_size_before_offsets_in_a_counted_blob() -> None:
    blob = struct.pack(">i", 2) + struct.pack(">iiqiqq", 0, 0, 400, 2, 4, 50) + struct.pack(">iiqiq", 0, 1, 300, 1, 20)
    handle = b"\x04" + struct.pack(">iq", 1, 700) + _STREAM_BYTES["segment"] + struct.pack(">i", len(blob)) + blob
    body = struct.pack(">iibbii", 0, 0, 0, 0, 0, 1) + handle
    _assert_same(SubtaskState(0, output_channels=(samples.CHANNEL_HANDLES["merged"],)), body)


def _assert_same(subtask: SubtaskState, body: bytes) -> None:
    wanted = samples.one_subtask(body)
    assert write_metadata(metadata(operator(subtask))) == wanted
    assert read_metadata(wanted) == metadata(operator(subtask))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("stream", samples.STREAMS.values(), ids=list(samples.STREAMS))
def test_a_stream_handle_survives_in_every_version(version: int, stream: StreamHandle | None) -> None:
    _assert_survives(SubtaskState(1, output_channels=(SingleChannelHandle(1, 0, 0, Offsets(), 0, stream),)), version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("handle", samples.OPERATOR_HANDLES.values(), ids=list(samples.OPERATOR_HANDLES))
def test_an_operator_handle_survives_in_every_version(version: int, handle: OperatorHandle | None) -> None:
    _assert_survives(SubtaskState(0, managed_operator=handle), version)
    _assert_survives(SubtaskState(0, raw_operator=handle), version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("handle", samples.KEYED_HANDLES.values(), ids=list(samples.KEYED_HANDLES))
def test_a_keyed_handle_survives_in_every_version(version: int, handle: KeyedHandle | None) -> None:
    _assert_survives(SubtaskState(0, managed_keyed=handle), version)
    _assert_survives(SubtaskState(0, raw_keyed=handle), version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("handle", samples.CHANNEL_HANDLES.values(), ids=list(samples.CHANNEL_HANDLES))
def test_a_channel_handle_survives_where_the_version_has_it_and_is_refused_elsewhere(
    version: int, handle: ChannelHandle
) -> None:
    for subtask in (SubtaskState(1, input_channels=(handle,)), SubtaskState(1, output_channels=[handle, handle])):
        if version < 6 and isinstance(handle, MergedChannelHandle):
            with pytest.raises(Refused, match=f"version {version}"):
                write_metadata(metadata(operator(subtask), version=version))
        else:
            _assert_survives(subtask, version)


def _assert_survives(subtask: SubtaskState, version: int) -> None:
    value = metadata(operator(subtask, FinishedSubtask(3)), version=version)
    assert read_metadata(write_metadata(value)) == value
    assert hash(read_metadata(write_metadata(value))) == hash(value)


def test_a_file_with_everything_is_read_back_equal_and_written_back_the_same() -> None:
    data = write_metadata(samples.everything())
    assert read_metadata(data) == samples.everything()
    assert write_metadata(read_metadata(data)) == data


def test_version_2_is_read_without_loss() -> None:
    assert read_metadata(encode_metadata(samples.legacy())) == samples.legacy()


@pytest.mark.parametrize("version", [0, 1, 2, 7, -1])
def test_other_versions_are_not_written_and_the_version_is_named(version: int) -> None:
    with pytest.raises(Refused, match=f"version {version} "):
        write_metadata(dataclasses.replace(samples.everything(), version=version))


@pytest.mark.parametrize("mark", [-1, -2, -(2**31)])
def test_any_negative_number_of_subtasks_is_a_finished_operator_and_kept(mark: int) -> None:
    value = metadata(operator(finished_mark=mark))
    read = read_metadata(write_metadata(value))
    assert read == value
    assert read.operators[0].finished


def test_finished_subtasks_and_the_order_of_subtasks_are_kept() -> None:
    value = metadata(operator(SubtaskState(2), FinishedSubtask(3), SubtaskState(0), FinishedSubtask(1)))
    assert [subtask.index for subtask in read_metadata(write_metadata(value)).operators[0].subtasks] == [2, 3, 0, 1]


def _variants(value: Any, name: str = "") -> Iterator[tuple[str, Any, int]]:
    """The value with one leaf changed, the leaf's name, and the bytes it takes at most."""
    if isinstance(value, Offsets):
        numbers = tuple(value)
        for index in range(len(numbers)):
            yield f"{name}[{index}]", Offsets.of([*numbers[:index], 99, *numbers[index + 1 :]]), 8
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            for path, changed, width in _variants(getattr(value, field.name), f"{name}.{field.name}"):
                yield path, dataclasses.replace(value, **{field.name: changed}), width
    elif isinstance(value, str | bytes | int):
        yield from _changed_leaf(value, name)
    elif value is not None:
        for index, item in enumerate(value):
            for path, changed, width in _variants(item, f"{name}[{index}]"):
                yield path, (*value[:index], changed, *value[index + 1 :]), width


def _changed_leaf(value: str | bytes | int, name: str) -> Iterator[tuple[str, str | bytes | int, int]]:
    """Another value of the same encoded length; nothing where the format leaves no other."""
    if name.endswith((".version", ".mode", ".scope", ".properties")):
        return
    if isinstance(value, bool):
        yield name, not value, 1
    elif isinstance(value, int):
        yield name, value + 1, 8
    elif isinstance(value, str) and value.isascii() and value:
        yield name, value[:-1] + ("0" if value[-1] != "0" else "1"), 1
    elif isinstance(value, bytes) and value:
        yield name, value[:-1] + bytes([value[-1] ^ 1]), 1


def test_replacing_one_field_changes_the_bytes_of_that_field_only() -> None:
    data = write_metadata(samples.everything())
    number = 0
    for path, changed, width in _variants(samples.everything()):
        other = write_metadata(changed)
        assert len(other) == len(data), path
        different = [i for i, (x, y) in enumerate(zip(data, other, strict=True)) if x != y]
        assert different, path
        assert different[-1] - different[0] < width, path
        number += 1
    assert number > 250


@pytest.mark.parametrize(
    "wrong",
    [
        OperatorState("00" * 15, 1, 1),
        OperatorState("AA" * 16, 1, 1),
        OperatorState("00" * 16, 1 << 31, 1),
        OperatorState("00" * 16, 1, 1, name=""),
        OperatorState("00" * 16, 1, 1, uid="x" * 70_000),
        OperatorState("00" * 16, 1, 1, finished_mark=0),
        OperatorState("00" * 16, 1, 1, finished_mark=-1, subtasks=(SubtaskState(0),)),
        OperatorState("00" * 16, 1, 1, chain_length=1),
        OperatorState("00" * 16, 1, 1, subtasks=(SubtaskState(-1),)),
        OperatorState("00" * 16, 1, 1, subtasks=(FinishedSubtask(-1),)),
    ],
)
def test_a_value_that_the_format_cannot_hold_is_refused_when_written(wrong: OperatorState) -> None:
    with pytest.raises(Refused):
        write_metadata(metadata(wrong))


def test_what_a_version_does_not_have_is_refused_rather_than_left_out() -> None:
    with pytest.raises(Refused, match="names"):
        write_metadata(metadata(operator(name="a"), version=4))
    with pytest.raises(Refused, match="properties"):
        write_metadata(metadata(version=3, properties=samples.NULL_PROPERTIES))
    with pytest.raises(Refused, match="Java object stream"):
        write_metadata(metadata(version=4, properties=b""))
