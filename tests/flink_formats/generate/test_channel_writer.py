"""What the channel-state writer wrote is found again by the reader, through handles of every version."""

from __future__ import annotations

import io

import numpy as np
import pytest

from cdr_core.errors import Refused
from cdr_core.flink.channel_state import ChannelId, channel_slices, read_chunk_extents
from cdr_core.flink.channel_writer import SubtaskSide
from cdr_core.flink.metadata import (
    MergedChannelHandle,
    Offsets,
    OperatorState,
    RelativeFile,
    Side,
    SingleChannelHandle,
    SubtaskState,
)
from cdr_core.flink.metadata.channel_packing import ChannelChunks, pack_handles
from cdr_core.flink.metadata.channels import write_channels
from cdr_core.flink.metadata.sink import Sink
from tests.support import channel_writer
from tests.support.channel_writer import ChannelStateFile, OwnedChannel, WrittenChannel, channel_handles

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


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize("count", [0, 1, 300])
def test_packed_handles_are_those_made_of_objects(version: int, count: int) -> None:
    """Chunks in any order, of several subtasks, gates and streams; the bytes of a ``_metadata`` are the same too."""
    rng = np.random.default_rng(count)
    delegates = [RelativeFile(f"file-{number}", 777 + number) for number in range(3)]
    subtask, a, b, stream = (rng.integers(0, high, count) for high in (3, 2, 40, 3))
    offset, size = rng.permutation(count) * 2**33 + 4, rng.integers(4, 2**40, count)
    found = pack_handles(ChannelChunks(subtask, a, b, stream, offset, size), Side.OUTPUT, delegates, version)

    written = []
    for number, delegate in enumerate(delegates):
        owners = sorted({*zip(*(each[stream == number].tolist() for each in (subtask, a, b)), strict=True)})
        for owner in owners:
            mine = (stream == number) & (subtask == owner[0]) & (a == owner[1]) & (b == owner[2])
            owned = OwnedChannel("slow", Side.OUTPUT, ChannelId(*owner))
            written.append(WrittenChannel(owned, delegate, Offsets.of(np.sort(offset[mine])), int(size[mine].sum())))
    expected = channel_handles(written, version)
    assert {index: tuple(handles) for index, handles in found.items()} == {
        side.subtask: handles for side, handles in expected.items()
    }
    for side, handles in expected.items():
        one, other = Sink(), Sink()
        write_channels(one, found[side.subtask], Side.OUTPUT, version)
        other.i32(len(handles))
        for handle in handles:
            if version > 5:
                other.i8(handle.TAGS[Side.OUTPUT])
            handle.write(other)
        assert one.getvalue() == other.getvalue()


def test_a_gate_that_its_field_cannot_say_is_refused() -> None:
    one = np.ones(1, np.int64)
    with pytest.raises(Refused, match="2147483648 does not fit its 4-byte field"):
        ChannelChunks(one, one * 2**31, one, one, one, one)


def test_a_chunk_that_its_length_field_cannot_say_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_writer, "LONGEST_CHUNK", 8)
    with pytest.raises(Refused, match="a chunk of 9 bytes") as refused:
        write()
    assert refused.value.where.operator == "gen"
