"""Columns hold what the slices hold, and refuse what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdr_core.errors import CdrError, CorruptChannelState
from cdr_core.flink import channel_columns as module
from cdr_core.flink.channel_columns import ChannelColumns, channel_columns
from cdr_core.flink.channel_state import ChannelSlice, channel_slices
from cdr_core.flink.checkpoint import load_checkpoint
from cdr_core.flink.metadata import (
    EMPTY_SEGMENT,
    ChannelHandle,
    FinishedSubtask,
    InlineBytes,
    MergedChannel,
    MergedChannelHandle,
    Offsets,
    OperatorState,
    RelativeFile,
    Side,
    SingleChannelHandle,
    StreamHandle,
    SubtaskState,
    channels,
    cursor,
    read_metadata,
    write_metadata,
)
from tests.flink_formats.metadata.conftest import RealCheckpoint
from tests.flink_formats.metadata.samples import ABSOLUTE, NESTED, RELATIVE, SEGMENT, metadata, operator

USUAL: list[Any] = [
    ABSOLUTE,
    RELATIVE,
    SEGMENT,
    EMPTY_SEGMENT,
    InlineBytes("name", b"bytes"),
    RelativeFile("cccc-eeee", -1),
]
UNUSUAL: list[Any] = [NESTED, RelativeFile("größe", 7), None]


@pytest.fixture(autouse=True, scope="module")
def kernels_for_small_files() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels, "KERNELS_FROM", 0)
        yield


SINGLE = SingleChannelHandle(1, 0, 0, Offsets.of([4]), 9, RELATIVE)


def _same(columns: ChannelColumns, of: OperatorState, side: Side) -> None:
    slices = channel_slices(of, side)
    assert _rows(columns) == list(slices.values())
    asked = [(at.subtask, at.a, at.b) for at in slices]
    subtask, a, b = np.array([*asked, (99, 0, 0)], np.int32).T
    assert columns.find(subtask, a, b).tolist() == [*range(len(slices)), -1]
    assert columns.find(subtask[::-1], a[::-1], b[::-1]).tolist() == [-1, *reversed(range(len(slices)))]


def _outcome(read: Callable[[], Sequence[ChannelSlice]]) -> Sequence[ChannelSlice] | str:
    try:
        return read()
    except CdrError as error:
        return f"{type(error)}: {error}"


def _rows(columns: ChannelColumns) -> list[ChannelSlice]:
    return [columns.slice(row) for row in range(len(columns))]


def _handles(streams: st.SearchStrategy[StreamHandle | None]) -> st.SearchStrategy[ChannelHandle]:
    index, size = st.integers(-1, 3), st.integers(-(2**63), 2**63 - 1)
    offsets = st.lists(st.integers(0, 2**40), max_size=4).map(Offsets.of)
    subtask = st.sampled_from([1, 1, 1, 1, 2])
    parts = st.lists(st.builds(MergedChannel, index, index, size, offsets), max_size=4)
    single = st.builds(SingleChannelHandle, subtask, index, index, offsets, size, streams)
    return single | st.builds(MergedChannelHandle, subtask, size, streams, parts)


@settings(deadline=None)  # the first example compiles the kernels
@given(
    first=st.lists(_handles(st.sampled_from(USUAL + UNUSUAL)), max_size=6),
    second=st.lists(_handles(st.sampled_from(USUAL)), max_size=4),
    side=st.sampled_from(Side),
)
def test_any_handles_give_the_same_channels_or_the_same_error(
    first: list[ChannelHandle], second: list[ChannelHandle], side: Side
) -> None:
    name = f"{side}_channels"
    moved = [replace(handle, subtask=0) for handle in second]
    subtasks = (SubtaskState(1, **{name: first}), FinishedSubtask(2), SubtaskState(0, **{name: moved}))  # type: ignore[arg-type]
    of = operator(*subtasks)
    expected = _outcome(lambda: list(channel_slices(of, side, checkpoint="chk-1").values()))
    assert _outcome(lambda: _rows(channel_columns(of, side, checkpoint="chk-1"))) == expected


@pytest.mark.parametrize("version", [3, 6])
def test_usual_handles_are_read_by_kernels_alone(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = [
        SingleChannelHandle(1, 0, b, Offsets.of(offsets), 9, stream)
        for b, (stream, offsets) in enumerate(zip(USUAL, ([], [4], [9, 4], [5], [4, 8], [7]), strict=True))
    ]
    parts = [MergedChannel(1, 1, 5, Offsets.of([4])), MergedChannel(1, 0, 6, Offsets.of([44, 60]))]
    merged = [MergedChannelHandle(1, 11, RELATIVE, parts)] if version == 6 else []
    data = write_metadata(metadata(operator(SubtaskState(1, input_channels=[*handles, *merged])), version=version))
    expected = read_metadata(data).operators[0]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a handle was read one by one")

    with monkeypatch.context() as patch:
        patch.setattr(SingleChannelHandle, "read", refuse)
        patch.setattr(MergedChannelHandle, "read", refuse)
        patch.setattr(module, "channel_slices", refuse)
        read = load_checkpoint("chk-1", data)
        columns = read.columns(expected.operator_id, Side.INPUT)
    assert read.metadata.operators[0] == expected
    assert len(columns) == len(handles) + 2 * len(merged)
    assert read.columns(expected, Side.INPUT) is columns, "made once"
    _same(columns, expected, Side.INPUT)
    assert len(columns.streams) == len(set(USUAL))


def test_real_checkpoints_have_the_same_channels_in_columns(real_checkpoints: dict[str, RealCheckpoint]) -> None:
    rows = 0
    for real in real_checkpoints.values():
        loaded = load_checkpoint(str(real.directory), real.metadata)
        for state in loaded.metadata.operators:
            for side in Side:
                _same(loaded.columns(state, side), state, side)
                rows += len(loaded.columns(state, side))
    assert rows > 500


@pytest.mark.parametrize(
    ("handles", "what"),
    [
        ([SINGLE, SINGLE], "two handles describe one input channel"),
        ([SINGLE, replace(SINGLE, delegate=ABSOLUTE)], "two handles describe one input channel"),
        ([MergedChannelHandle(1, 0, RELATIVE, [MergedChannel(0, 0, 9, Offsets.of([4]))]), SINGLE], "two handles"),
        ([replace(SINGLE, delegate=None)], "names no stream"),
        ([replace(SINGLE, offsets=Offsets.of([9, 4, 9]))], "lists one chunk twice"),
        ([replace(SINGLE, subtask=2)], "is stored under 1"),
        ([replace(SINGLE, a=-1)], "negative index"),
    ],
)
def test_a_contradiction_between_handles_is_refused(handles: list[ChannelHandle], what: str) -> None:
    with pytest.raises(CorruptChannelState, match=what):
        channel_columns(operator(SubtaskState(1, input_channels=handles)), Side.INPUT)


@pytest.mark.parametrize("version", [5, 6])
def test_damaged_handles_are_refused_in_the_same_words_with_and_without_kernels(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [MergedChannel(1, 1, 5, Offsets.of([4])), MergedChannel(1, 0, 6, Offsets.of([44, 60]))]
    handles: list[ChannelHandle] = [SingleChannelHandle(1, 0, b, Offsets.of([4, 9]), 9, s) for b, s in enumerate(USUAL)]
    handles += [MergedChannelHandle(1, 11, RELATIVE, parts)] * (version == 6)
    data = write_metadata(metadata(operator(SubtaskState(1, output_channels=handles)), version=version))
    damaged = [data[:length] for length in range(len(data))]
    damaged += [data[:i] + bytes([value]) + data[i + 1 :] for i in range(len(data)) for value in (0, 1, 4, 127, 255)]
    with_kernels = [_read(each) for each in damaged] + [_read(data, allowance) for allowance in range(0, 4000, 50)]
    for name in ("end_of_handles", "end_of_parts"):
        monkeypatch.setattr(channels, name, lambda *_: -1)
    found = [_read(each) for each in damaged] + [_read(data, allowance) for allowance in range(0, 4000, 50)]
    different = [pair for pair in zip(with_kernels, found, strict=True) if pair[0] != pair[1]]
    assert not different
    assert any("in memory" in str(each) for each in found)


def _read(data: bytes, allowance: int = 1 << 20) -> object:
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cursor, "MEMORY_ABOVE_INPUT", allowance)
            return read_metadata(data)
    except CdrError as error:
        return str(error)


def test_a_small_file_is_read_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    state = operator(SubtaskState(1, input_channels=[SINGLE]))
    data = write_metadata(metadata(state))
    monkeypatch.setattr(channels, "KERNELS_FROM", 1 << 20)
    monkeypatch.setattr(channels, "end_of_handles", None)
    monkeypatch.setattr(module, "kernel", None)
    loaded = load_checkpoint("chk-1", data)
    assert _rows(loaded.columns(state, Side.INPUT)) == list(channel_slices(state, Side.INPUT).values())
