"""Planning works on columns: the same numbers as one channel at a time, and few Python objects for many channels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cdr_core.channels.channel_source import open_checkpoint, sides
from cdr_core.channels.fetch_ranges import EXACT
from cdr_core.channels.handle_checks import refuse_shared_chunks
from cdr_core.channels.remote_state import RemoteState
from cdr_core.channels.source_index import SourceObject
from cdr_core.errors import CorruptChannelState
from cdr_core.evidence.sampling import MOST_CHANNELS
from cdr_core.flink import channel_columns as columns_module
from cdr_core.flink.channel_columns import ChannelColumns
from cdr_core.flink.channel_state import ChannelId, ChannelSlice
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.metadata import (
    AbsoluteFile,
    CheckpointMetadata,
    InlineBytes,
    Offsets,
    OperatorState,
    RelativeFile,
    Side,
    SingleChannelHandle,
    StreamHandle,
    SubtaskState,
    channels,
)
from cdr_core.inspection import checkpoint_view, what_if
from cdr_core.planning.estimate import SEGMENT_HEADER, estimated
from cdr_core.planning.exchange_binding import announced_sizes
from cdr_core.planning.handle_sizes import LARGEST_STREAM, UNKNOWN, believable_sizes, payload_size, payload_sizes
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import Plan, PlanChannels, Subtask, VirtualChannel, make_plan
from cdr_core.settings import load
from tests.flink_formats.generate.made import exchange, make, spec_of
from tests.support.checkpoints import FixtureCheckpoints

SPEC = spec_of(exchange("main", "gen", "slow", "TUPLE<LONG, STRING>"))
SOUND = InlineBytes("", bytes(4) + b"\x00\x00\x00\x02ab")


def _checkpoint(*handles: tuple[StreamHandle, int, list[int]]) -> Checkpoint:
    singles = [
        SingleChannelHandle(0, 0, b, Offsets.of(offsets), size, stream)
        for b, (stream, size, offsets) in enumerate(handles)
    ]
    operator = OperatorState("00" * 16, 1, 8, subtasks=(SubtaskState(0, input_channels=singles),))
    return Checkpoint("/chk-1", CheckpointMetadata(6, 1, (operator,)), "")


def _columns(checkpoint: Checkpoint) -> ChannelColumns:
    return checkpoint.columns(checkpoint.metadata.operators[0], Side.INPUT)


def test_sizes_in_columns_are_those_of_single_channels() -> None:
    file, unknown = RelativeFile("file", 100), RelativeFile("other", -1)
    handles = [(file, size, [4, 20]) for size in (-(2**63), -1, 0, 7, 8, 50, 96, 97, 2**63 - 1)]
    handles += [(unknown, size, [4]) for size in (9, LARGEST_STREAM - 4, LARGEST_STREAM - 3, 2**63 - 1)]
    checkpoint = _checkpoint(*handles, (SOUND, 99, [4]))
    columns = _columns(checkpoint)
    expected = [payload_size(checkpoint, columns.slice(row)) for row in range(len(columns))]
    assert payload_sizes(checkpoint, columns).tolist() == [UNKNOWN if each is None else each for each in expected]
    assert [expected[0], expected[4], expected[6], expected[7], expected[-2], expected[-1]] == [
        None,
        0,
        88,
        None,
        None,
        2,
    ]
    held = believable_sizes(checkpoint, columns, np.arange(len(columns))).tolist()
    assert held == [0, 0, 0, 7, 8, 50, 96, 97, 100, 9, LARGEST_STREAM - 4, LARGEST_STREAM - 3, LARGEST_STREAM, 10]


def test_damaged_inline_state_is_an_error_or_not_known() -> None:
    checkpoint = _checkpoint((SOUND, 10, [4]), (SOUND, 10, [9]))
    columns = _columns(checkpoint)
    with pytest.raises(CorruptChannelState, match="channel 1"):
        payload_sizes(checkpoint, columns)
    assert payload_sizes(checkpoint, columns, damage_is_fine=True).tolist() == [2, UNKNOWN]
    assert payload_sizes(checkpoint, columns, np.array([0])).tolist() == [2]


def test_offsets_by_stream_are_those_of_its_channels() -> None:
    first, second = RelativeFile("first", 100), RelativeFile("second", 100)
    columns = _columns(_checkpoint((first, 8, [4, 12]), (second, 8, [4]), (first, 8, [40]), (second, 8, [])))
    assert {stream: offsets.tolist() for stream, offsets in columns.by_stream()} == {first: [4, 12, 40], second: [4]}


def test_a_chunk_that_both_sides_list_is_refused_and_the_same_place_in_two_files_is_not() -> None:
    checkpoint = _checkpoint((RelativeFile("first", 100), 8, [4]), (RelativeFile("second", 100), 8, [4]))
    refuse_shared_chunks(checkpoint)
    (operator,) = checkpoint.metadata.operators
    sent = SingleChannelHandle(0, 3, 5, Offsets.of([4]), 8, RelativeFile("second", 100))
    assert isinstance(operator.subtasks[0], SubtaskState)
    both = replace(operator, subtasks=(replace(operator.subtasks[0], output_channels=[sent]),))
    with pytest.raises(CorruptChannelState, match=r"listed by another channel, too .*channel 1") as caught:
        refuse_shared_chunks(replace(checkpoint, metadata=CheckpointMetadata(6, 1, (both,))))
    assert (caught.value.where.gate, caught.value.where.channel) == (3, 5)


def test_remote_state_has_the_chunks_of_both_sides() -> None:
    here, there = RelativeFile("local", 100), AbsoluteFile("s3://bucket/state", 100)
    (operator,) = _checkpoint((there, 8, [4, 50]), (here, 8, [4]), (there, 8, [30])).metadata.operators
    assert isinstance(operator.subtasks[0], SubtaskState)
    sent = SingleChannelHandle(0, 0, 0, Offsets.of([70]), 8, there)
    both = replace(operator, subtasks=(replace(operator.subtasks[0], output_channels=[sent]),))
    state = RemoteState(Checkpoint("/chk-1", CheckpointMetadata(6, 1, (both,)), ""))
    cells = state.cells("s3://bucket/state", SourceObject(100, ""), EXACT)
    assert (cells.starts.tolist(), cells.ends.tolist()) == ([0, 4, 30, 50, 70], [4, 30, 50, 70, 100])


def _plan(owners: list[tuple[int, int]], subtasks: int) -> Plan:
    rows = [
        VirtualChannel(0, n, 0, 0, 0, tuple(range(first, first + count))) for n, (first, count) in enumerate(owners)
    ]
    return Plan(4, "", "", "", 1, (), tuple(Subtask("op", n) for n in range(subtasks)), PlanChannels.of(rows))


def test_an_estimate_adds_up_what_each_channel_gives_each_owner() -> None:
    rng = np.random.default_rng(7)
    counts = rng.integers(1, 6, 200)
    owners = [(int(rng.integers(0, 9 - count)), int(count)) for count in counts]
    sizes = rng.integers(0, 1000, 200)
    found = estimated(_plan(owners, 8), sizes, 100)
    shares = found.shares(_plan(owners, 8)).tolist()
    expected = np.zeros((8, 5), np.int64)
    for (first, count), size in zip(owners, sizes.tolist(), strict=True):
        for place in range(count):
            share = size // count + (place < size % count)
            assert shares.pop(0) == share
            spilled = share + SEGMENT_HEADER * -(-share // 100)
            expected[first + place] += [1, size if count == 1 else 0, share, size, spilled]
    numbers = [(each.channels, each.low, each.bytes, each.high, each.spill) for each in found.subtasks]
    assert numbers == list(map(tuple, expected.tolist()))


@pytest.mark.parametrize("name", ["a_p3_thr0", "g_p7_thr0"])
def test_a_plan_has_the_connections_and_bytes_of_its_handles(fixture_checkpoint: FixtureCheckpoints, name: str) -> None:
    real = fixture_checkpoint(name, 2)
    checkpoint = open_checkpoint(str(real.path))
    planned = make_plan(checkpoint, parse_spec(real.spec.read_text()), parse_parallelism("same"), 1 << 24)
    for number, of in enumerate(planned.exchanges):
        expected: dict[tuple[int, int], int] = {}
        for side in Side:
            for at, piece in checkpoint.channels(of.end(side)[0], side).items():
                if at.a == of.end(side)[1]:
                    ends = (at.b, at.subtask) if side is Side.INPUT else (at.subtask, at.b)
                    expected[ends] = expected.get(ends, 0) + piece.size
        sizes = announced_sizes(checkpoint, of)
        found = dict(zip(zip(sizes.up.tolist(), sizes.down.tolist(), strict=True), sizes.bytes.tolist(), strict=True))
        assert list(found.items()) == sorted(expected.items())
        mine = [channel for channel in planned.channels if channel.exchange == number]
        assert [((c.up, c.down), c.bytes) for c in mine] == sorted(expected.items())
    for number, channel in enumerate(planned.channels):
        of = planned.exchanges[channel.exchange]
        for side, planned_piece in zip(Side, sides(planned, number), strict=True):
            subtask, place = of.ends_at(side, np.array([channel.up]), np.array([channel.down]))
            operator, a = of.end(side)
            where = ChannelId(int(subtask[0]), a, int(place[0]))
            assert planned_piece == checkpoint.channels(operator, side).get(where)


@pytest.fixture(scope="module")
def many_channels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("made") / "chk-1", SPEC, size="1MiB", parallelism="64").path


@pytest.fixture
def made_values(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many channels became Python values of their own."""
    made = {"slices": 0, "virtual channels": 0}
    slice_of, channel_of = ChannelColumns.slice, PlanChannels.__getitem__

    def count_slice(self: ChannelColumns, row: int) -> ChannelSlice:
        made["slices"] += 1
        return slice_of(self, row)

    def count_channel(self: PlanChannels, place: int) -> VirtualChannel:
        made["virtual channels"] += 1
        return channel_of(self, place)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("every handle was decoded")

    monkeypatch.setattr(channels, "KERNELS_FROM", 0)
    monkeypatch.setattr(columns_module, "channel_slices", refuse)
    monkeypatch.setattr(ChannelColumns, "slice", count_slice)
    monkeypatch.setattr(PlanChannels, "__getitem__", count_channel)
    return made


def test_inspect_and_plan_make_no_value_for_each_of_many_channels(
    many_channels: Path, made_values: dict[str, int]
) -> None:
    value = checkpoint_view.inspect_checkpoint(str(many_channels))
    assert sum(len(operator["channels"]) for operator in value["operators"]) > 5000
    assert made_values == {"slices": 0, "virtual channels": 0}
    found = what_if.what_if(str(many_channels), SPEC, "48", "", load(), exact=False, speed=None)
    assert not found.refusals
    assert found.value["totals"]["channels"] > 10 * MOST_CHANNELS
    assert 0 < made_values["slices"] <= 2 * MOST_CHANNELS, "of the sample"
    assert made_values["virtual channels"] <= 6 * MOST_CHANNELS
