"""What the channel-state writer wrote is found again by the reader, through handles of every version."""

from __future__ import annotations

import io
from itertools import count

import pytest

from cdr_core.errors import Refused
from cdr_core.flink import channel_writer
from cdr_core.flink.channel_state import ChannelId, channel_slices, read_chunk_extents
from cdr_core.flink.channel_writer import ChannelStateFile, InlineChannels, OwnedChannel, SubtaskSide, channel_handles
from cdr_core.flink.metadata import (
    InlineBytes,
    MergedChannelHandle,
    OperatorState,
    RelativeFile,
    Side,
    SingleChannelHandle,
    SubtaskState,
)

ID = "59fa767824610e31f4a11d6125e09bf4"
FIRST = OwnedChannel("slow", Side.INPUT, ChannelId(1, 0, 0))
SECOND = OwnedChannel("slow", Side.INPUT, ChannelId(1, 0, 2))
OTHER = OwnedChannel("gen", Side.OUTPUT, ChannelId(4, 1, 0))


def write() -> tuple[bytes, ChannelStateFile]:
    stream = io.BytesIO()
    file = ChannelStateFile(stream)
    file.append(SECOND, [b"two", b""])
    file.append(OTHER, [memoryview(b"elsewhere")])
    file.append(FIRST, [b"one"])
    file.append(SECOND, [b" again"])
    file.append(FIRST, [])
    return stream.getvalue(), file


@pytest.mark.parametrize(("version", "kind"), [(5, SingleChannelHandle), (6, MergedChannelHandle)])
def test_channels_that_took_turns_in_a_file_are_read_back_in_order(version: int, kind: type) -> None:
    data, file = write()
    handles = channel_handles(file.written(RelativeFile("f", file.size)), version)
    assert file.size == len(data)
    assert set(handles) == {SubtaskSide("slow", Side.INPUT, 1), SubtaskSide("gen", Side.OUTPUT, 4)}
    mine = handles[SubtaskSide("slow", Side.INPUT, 1)]
    assert [type(handle) for handle in mine] == [kind] * (1 if version == 6 else 2)
    assert sum(handle.size for handle in mine) == len("one" + "two" + " again") + 4 * 4
    slices = channel_slices(OperatorState(ID, 3, 128, subtasks=(SubtaskState(1, input_channels=mine),)), Side.INPUT)
    found = {}
    for channel, piece in slices.items():
        starts, lengths = read_chunk_extents(data, piece.offsets)
        found[channel] = [data[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    assert found == {FIRST.channel: [b"one"], SECOND.channel: [b"two", b"", b" again"]}


def test_inline_state_is_one_chunk_and_one_handle_a_channel() -> None:
    inline = InlineChannels()
    inline.append(SECOND, [b"two", b""])
    inline.append(FIRST, [b"one"])
    inline.append(SECOND, [b" again"])
    inline.append(OTHER, [])
    handles = channel_handles(inline.written(map(str, count())), 6)
    (mine,) = handles.values()
    assert [handle.delegate for handle in mine] == [
        InlineBytes("0", b"\0\0\0\0\0\0\0\3one"),
        InlineBytes("1", b"\0\0\0\0\0\0\0\x09two again"),
    ]
    assert [(handle.size, [tuple(part.offsets) for part in handle.channels]) for handle in mine] == [
        (11, [(4,)]),
        (17, [(4,)]),
    ]


def test_a_chunk_that_its_length_field_cannot_say_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_writer, "LONGEST_CHUNK", 8)
    with pytest.raises(Refused, match="a chunk of 9 bytes") as refused:
        write()
    assert refused.value.where.operator == "gen"
    inline = InlineChannels()
    inline.append(FIRST, [b"five."])
    with pytest.raises(Refused, match="a chunk of 10 bytes"):
        inline.append(FIRST, [b"five."])
