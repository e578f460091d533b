"""Handles to channels, channels to chunks: every byte accounted for, every contradiction refused."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdr_core.errors import CorruptChannelState, Where
from cdr_core.flink.channel_state import (
    ChannelId,
    channel_slices,
    read_chunk_extents,
)
from cdr_core.flink.checkpoint import Checkpoint, InlineLocation, load_checkpoint
from cdr_core.flink.metadata import (
    ChannelHandle,
    FileSegment,
    FinishedSubtask,
    MergedChannel,
    MergedChannelHandle,
    Offsets,
    RelativeFile,
    Side,
    SingleChannelHandle,
    StreamHandle,
    SubtaskState,
)
from tests.flink_formats.metadata.conftest import RealCheckpoint
from tests.flink_formats.metadata.samples import operator

FILE = RelativeFile("file", 1000)


def _single(a: int, b: int, *offsets: int, subtask: int = 1) -> SingleChannelHandle:
    return SingleChannelHandle(subtask, a, b, Offsets.of(offsets), 0, FILE)


def _merged(*channels: tuple[int, int, list[int]], delegate: StreamHandle | None = FILE) -> MergedChannelHandle:
    return MergedChannelHandle(1, 0, delegate, [MergedChannel(a, b, 0, Offsets.of(o)) for a, b, o in channels])


def _stream(*payloads: bytes) -> tuple[bytes, list[int]]:
    """A channel-state stream and the offsets of its chunks."""
    data, offsets = struct.pack(">i", 0), []
    for payload in payloads:
        offsets.append(len(data))
        data += struct.pack(">i", len(payload)) + payload
    return data, offsets


# --- handles to channels ---------------------------------------------------------------------------------------------


def test_single_and_merged_handles_give_the_same_channels_in_order() -> None:
    singles = SubtaskState(1, input_channels=[_single(0, 1, 50), _single(0, 0, 4, 30)])
    merged = SubtaskState(1, input_channels=[_merged((0, 1, [50]), (0, 0, [4, 30]))])
    found = channel_slices(operator(singles, FinishedSubtask(0)), Side.INPUT)
    assert found == channel_slices(operator(merged), Side.INPUT)
    assert list(found) == [ChannelId(1, 0, 0), ChannelId(1, 0, 1)]
    assert found[ChannelId(1, 0, 0)].delegate == FILE
    assert channel_slices(operator(singles), Side.OUTPUT) == {}


def test_offsets_are_put_in_the_order_flink_reads_them() -> None:
    found = channel_slices(operator(SubtaskState(1, output_channels=[_single(0, 0, 30, 4, 17)])), Side.OUTPUT)
    assert list(found[ChannelId(1, 0, 0)].offsets) == [4, 17, 30]


@pytest.mark.parametrize(
    "handles",
    [
        [_single(2, 3, 4), _single(2, 3, 50)],
        [_merged((2, 3, [4]), (2, 3, [50]))],
        [_merged((2, 3, [4])), _single(2, 3, 9)],
    ],
)
@pytest.mark.parametrize("side", Side)
def test_two_handles_of_one_channel_are_refused_with_its_place(handles: list[ChannelHandle], side: Side) -> None:
    subtask = SubtaskState(1, **{f"{side}_channels": handles})  # type: ignore[arg-type]
    with pytest.raises(CorruptChannelState, match=f"two handles describe one {side} channel") as caught:
        channel_slices(operator(subtask, uid="slow"), side, checkpoint="chk-2")
    assert caught.value.where == Where(checkpoint="chk-2", operator="slow", subtask=1, gate=2, channel=3)


def test_the_same_channel_on_the_other_side_or_of_another_subtask_is_another_channel() -> None:
    first = SubtaskState(1, input_channels=[_single(0, 0, 4)], output_channels=[_single(0, 0, 30)])
    second = SubtaskState(2, input_channels=[_single(0, 0, 60, subtask=2)])
    both = operator(first, second)
    assert len(channel_slices(both, Side.INPUT)) == 2
    assert len(channel_slices(both, Side.OUTPUT)) == 1


@pytest.mark.parametrize(
    ("handle", "what"),
    [
        (_single(0, 0, 4, subtask=2), "stored under 1"),
        (_single(-1, 0, 4), "negative index"),
        (_single(0, -1, 4), "negative index"),
        (_single(0, 0, 4, 9, 4), "one chunk twice"),
        (_merged((0, 0, [4]), delegate=None), "names no stream"),
    ],
)
def test_a_handle_that_contradicts_itself_is_refused(handle: ChannelHandle, what: str) -> None:
    with pytest.raises(CorruptChannelState, match=what):
        channel_slices(operator(SubtaskState(1, input_channels=[handle])), Side.INPUT)


# --- channels to chunks ----------------------------------------------------------------------------------------------

Source = Callable[[bytes], object]
SOURCES: dict[str, Source] = {
    "bytes": lambda data: data,
    "memoryview": memoryview,
    "array": lambda data: np.frombuffer(data, dtype=np.uint8),
    "reader": lambda data: lambda offset, length: data[offset : offset + length],
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=list(SOURCES))
def test_extents_are_the_payloads_of_the_listed_chunks(make: Source) -> None:
    payloads = [b"one", b"", b"three", b"x" * 3_000_000, b"y" * 9_000_000, b"last"]
    data, offsets = _stream(*payloads)
    starts, lengths = read_chunk_extents(make(data), Offsets.of(offsets), limit=len(data))  # type: ignore[arg-type]
    assert starts.dtype == lengths.dtype == np.int64
    found = [data[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    assert found == payloads
    starts, lengths = read_chunk_extents(make(data), Offsets.of(offsets[1::2]), limit=len(data))  # type: ignore[arg-type]
    assert lengths.tolist() == [0, 3_000_000, 4]


def test_a_reader_is_asked_for_few_ranges_of_bounded_size() -> None:
    data, offsets = _stream(*[b"z" * 500_000] * 60, b"w" * 5_000_000, b"end")
    asked: list[int] = []

    def read(offset: int, length: int) -> bytes:
        asked.append(length)
        return data[offset : offset + length]

    read_chunk_extents(read, Offsets.of(offsets), limit=len(data))
    assert len(asked) <= 6
    assert max(asked) <= 8 << 20
    with pytest.raises(ValueError, match="limit"):
        read_chunk_extents(read, Offsets.of(offsets))


def test_offsets_of_a_segment_count_from_its_start_and_end_with_it() -> None:
    stream, offsets = _stream(b"inside", b"tail")
    data = b"\xff" * 33 + stream + b"\x00" * 50
    starts, lengths = read_chunk_extents(data, Offsets.of(offsets), base=33, limit=len(stream))
    assert [data[s : s + n] for s, n in zip(starts, lengths, strict=True)] == [b"inside", b"tail"]
    with pytest.raises(CorruptChannelState, match="beyond the end"):
        read_chunk_extents(data, Offsets.of(offsets), base=33, limit=len(stream) - 1)
    with pytest.raises(CorruptChannelState, match="not inside"):
        read_chunk_extents(data, Offsets.of(offsets), base=33, limit=offsets[1] + 3)


def test_no_offsets_are_no_chunks_but_the_header_still_counts() -> None:
    starts, lengths = read_chunk_extents(struct.pack(">i", 0), Offsets())
    assert len(starts) == len(lengths) == 0
    with pytest.raises(CorruptChannelState, match="version 1"):
        read_chunk_extents(struct.pack(">i", 1), Offsets())


@pytest.mark.parametrize(
    ("data", "offsets", "what", "offset"),
    [
        (b"", [], "only 0 bytes", 0),
        (struct.pack(">iii", 7, 0, 0), [4], "version 7", 0),
        (struct.pack(">ii", 0, -1), [4], "length -1", 4),
        (struct.pack(">ii", 0, 1), [4], "beyond the end", 4),
        (struct.pack(">ii", 0, 2**31 - 1), [4], "beyond the end", 4),
        (struct.pack(">ii", 0, 0), [5], "not inside", 5),
        (struct.pack(">ii", 0, 0), [3], "not inside", 3),
        (struct.pack(">ii", 0, 0), [-4], "not inside", -4),
        (struct.pack(">ii", 0, 0), [2**63 - 1], "not inside", 2**63 - 1),
        (struct.pack(">iii", 0, 0, 0), [8, 4], "do not ascend", 4),
        (struct.pack(">iii", 0, 0, 0), [4, 4], "do not ascend", 4),
        (struct.pack(">iii", 0, 4, 0), [4, 8], "overlaps", 4),
        (struct.pack(">iii", 0, 0, 0), [4, 6], "overlaps", 4),
    ],
)
def test_bad_chunks_are_refused_with_place_and_offset(data: bytes, offsets: list[int], what: str, offset: int) -> None:
    where = Where(operator="slow", subtask=1, gate=0, channel=2)
    with pytest.raises(CorruptChannelState, match=what) as caught:
        read_chunk_extents(data, Offsets.of(offsets), where=where)
    place = caught.value.where
    assert (place.operator, place.subtask, place.gate, place.channel, place.offset) == ("slow", 1, 0, 2, offset)


@given(st.binary(max_size=80), st.lists(st.integers(-5, 90), max_size=6), st.integers(0, 20), st.integers(0, 90))
def test_any_bytes_are_refused_or_give_extents_inside_the_stream(
    data: bytes, offsets: list[int], base: int, limit: int
) -> None:
    try:
        starts, lengths = read_chunk_extents(data, Offsets.of(offsets), base=base, limit=limit)
    except CorruptChannelState:
        return
    ends = starts + lengths
    assert np.all(starts >= base + 8)
    assert np.all(ends <= min(len(data), base + limit))
    assert np.all(starts[1:] - 4 >= ends[:-1])


# --- real files ------------------------------------------------------------------------------------------------------


def test_chunks_of_real_channels_are_as_many_and_as_long_as_flink_reads(
    real_checkpoints: dict[str, RealCheckpoint],
) -> None:
    compared = 0
    for name, real in real_checkpoints.items():
        checkpoint = load_checkpoint(str(real.directory), real.metadata)
        inputs, outputs = (_sizes(real, checkpoint, side) for side in (Side.INPUT, Side.OUTPUT))
        if name.startswith("t_p3_timers"):
            assert not real.lines("channel"), "two exchanges into one gate: the oracle has read no element of them"
            continue
        for summary in real.lines("summary"):
            for sizes, side in ((inputs, "input"), (outputs, "output")):
                buffers = sum(count for count, _ in sizes.values())
                assert (buffers, sum(size for _, size in sizes.values())) == (
                    summary[f"{side}_buffers"],
                    summary[f"{side}_bytes"],
                ), name
        for line in real.lines("channel"):
            at = ChannelId(line["down"], line.get("gate", 0), line["up"])
            assert inputs.get(at, (0, 0)) == (line["input_buffers"], line["input_bytes"]), name
            compared += 1
    assert compared > 150


def _sizes(real: RealCheckpoint, checkpoint: Checkpoint, side: Side) -> dict[ChannelId, tuple[int, int]]:
    """Number and bytes of the chunks of each channel, over all operators."""
    sizes: dict[ChannelId, tuple[int, int]] = {}
    for state in checkpoint.metadata.operators:
        for at, piece in checkpoint.channels(state, side).items():
            location = checkpoint.resolve(piece.delegate)
            where = piece.where(checkpoint.directory)
            if isinstance(location, InlineLocation):
                _, lengths = read_chunk_extents(location.data, piece.offsets, where=where)
            else:
                data = np.memmap(real.file(location.uri), dtype=np.uint8, mode="r")
                assert isinstance(piece.delegate, FileSegment) or location.length == len(data)
                _, lengths = read_chunk_extents(
                    data, piece.offsets, base=location.base, limit=location.length, where=where
                )
            count, size = sizes.get(at, (0, 0))
            sizes[at] = (count + len(lengths), size + int(lengths.sum()))
    return sizes
