"""What a handle says of its channel's size: fewer bytes than that are a loss, more are not, and nonsense is ignored."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdr_core.channels import channel_source as source
from cdr_core.channels.channel_scan import salvage_channel, scan_channel
from cdr_core.channels.channel_source import announced_payload, chunks_of, neighbours, open_checkpoint, refuse_overlap
from cdr_core.channels.handle_checks import refuse_hidden_bytes, refuse_shared_chunks
from cdr_core.errors import CorruptChannelState, PlanRefused
from cdr_core.flink.checkpoint import FileLocation
from cdr_core.flink.metadata import MergedChannelHandle, Side, SubtaskState, read_metadata, write_metadata
from cdr_core.planning.handle_sizes import payload_size
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import Plan, PlanChannels, make_plan
from cdr_core.verify.checkpoint import Channel
from cdr_core.verify.checkpoint import Checkpoint as SecondReader
from cdr_core.verify.spec import read_spec as read_independently
from tests.support.checkpoints import SHIPPED, FixtureCheckpoints
from tests.support.written import SPEC, record, write_checkpoint

ONE, TWO = record(1, "a" * 50), record(1, "b" * 50)
REBALANCE = SPEC.format(partitioner="rebalance")


def plan_of(checkpoint: str) -> Plan:
    return make_plan(open_checkpoint(checkpoint), parse_spec(REBALANCE), parse_parallelism("same"), 1 << 24)


def shrunk(folder: Path) -> str:
    """Two records in one chunk, whose length field says that there is one."""
    checkpoint = write_checkpoint(folder, 1, 1, {(0, 0): (ONE + TWO, b"")})
    data = bytearray((folder / "in-0").read_bytes())
    assert data[7] == len(ONE + TWO)
    data[7] = len(ONE)
    (folder / "in-0").write_bytes(data)
    return checkpoint


def announcing(folder: Path, size: Callable[[int], int], data: bytes = ONE + TWO) -> str:
    """Sound chunks, of whose size the handle says something else."""
    checkpoint = write_checkpoint(folder, 1, 1, {(0, 0): (data, b"")})
    file = folder / "_metadata"
    metadata = read_metadata(file.read_bytes())

    def changed(handle: Any) -> Any:
        assert isinstance(handle, MergedChannelHandle)
        return replace(handle, channels=[replace(part, size=size(part.size)) for part in handle.channels])

    operators = [
        replace(
            operator,
            subtasks=tuple(
                replace(subtask, input_channels=tuple(map(changed, subtask.input_channels)))
                for subtask in operator.subtasks
                if isinstance(subtask, SubtaskState)
            ),
        )
        for operator in metadata.operators
    ]
    file.write_bytes(write_metadata(replace(metadata, operators=tuple(operators))))
    return checkpoint


def seen_independently(checkpoint: str) -> int:
    exchange = read_independently(REBALANCE)[0]
    with SecondReader(checkpoint) as found:
        return len(found.elements(exchange, Channel("main", 0, 0)).whole().starts)


def test_a_chunk_that_shrank_to_a_records_border_is_damage_and_not_a_smaller_channel(tmp_path: Path) -> None:
    checkpoint = shrunk(tmp_path / "chk")
    says = f"{len(ONE)} bytes where the handle states {len(ONE + TWO)}"
    with pytest.raises(CorruptChannelState, match=f"{says}.*quarantine") as caught:
        scan_channel(plan_of(checkpoint), 0)
    assert (caught.value.where.subtask, caught.value.where.channel) == (0, 0)
    with pytest.raises(CorruptChannelState, match=f"have {len(ONE) + 4} bytes, its handle states {len(ONE + TWO) + 4}"):
        seen_independently(checkpoint)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(lambda there: there - len(TWO), id="less than there is"),
        pytest.param(lambda _: 4, id="nothing but a length field"),
        pytest.param(lambda _: 0, id="nothing"),
        pytest.param(lambda _: -1, id="unknown"),
        pytest.param(lambda there: there + 1, id="more than the file holds"),
        pytest.param(lambda _: 1 << 40, id="far more than the file holds"),
    ],
)
def test_a_size_that_is_too_small_or_cannot_be_true_refuses_nothing(tmp_path: Path, size: Callable[[int], int]) -> None:
    checkpoint = announcing(tmp_path / "chk", size)
    plan = plan_of(checkpoint)
    scanned = scan_channel(plan, 0)
    assert scanned["entry"]["records"] == 2
    assert seen_independently(checkpoint) == 2
    salvaged, _, damage = salvage_channel(plan, 0)
    assert (salvaged, damage) == (scanned, None)


def test_more_bytes_than_announced_with_something_bad_among_them_are_not_believed_at_all(tmp_path: Path) -> None:
    """A chunk that swallowed bytes of another channel may frame for a while."""
    bad = ONE + TWO[:4] + b"\x09" + TWO[5:]
    plan = plan_of(announcing(tmp_path / "chk", lambda there: there - len(TWO), bad))
    scanned, salvaged, damage = salvage_channel(plan, 0)
    assert damage is not None
    assert (scanned["entry"]["records"], damage.offset, salvaged.channel.size) == (0, 0, len(bad))
    assert "where the handle states" in damage.reason
    plan = plan_of(announcing(tmp_path / "as noted", lambda there: there, bad))
    scanned, _, damage = salvage_channel(plan, 0)
    assert damage is not None
    assert (scanned["entry"]["records"], damage.offset) == (1, len(ONE))


def two_channels(folder: Path) -> str:
    """Two channels in one file: 0 → 0, and behind it 1 → 0."""
    return write_checkpoint(folder, 2, 1, {(0, 0): (ONE, b""), (1, 0): (TWO + ONE, b"")})


def test_a_chunk_that_grew_into_another_channels_is_damage_of_the_one_and_not_of_the_other(tmp_path: Path) -> None:
    """Its foreign end frames: the length field of the next chunk, taken for a record's, covers just what follows."""
    checkpoint = two_channels(tmp_path / "chk")
    data = bytearray((tmp_path / "chk" / "in-0").read_bytes())
    data[7] += 4 + len(TWO)
    struct.pack_into(">i", data, 8 + len(ONE), len(TWO))  # both chunks end where a record does
    (tmp_path / "chk" / "in-0").write_bytes(data)
    plan = plan_of(checkpoint)
    with pytest.raises(CorruptChannelState, match="a chunk at 4 reaches into bytes that belong to another") as caught:
        scan_channel(plan, 0)
    assert (caught.value.where.subtask, caught.value.where.channel) == (0, 0)
    scanned, _, damage = salvage_channel(plan, 0)
    assert damage is not None
    assert scanned["entry"]["records"] == 0


def test_a_chunk_that_two_channels_list_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "chk"
    two_channels(folder)
    refuse_shared_chunks(open_checkpoint(str(folder)))
    second = struct.pack(">iiqiq", 0, 1, 4 + len(TWO + ONE), 1, 8 + len(ONE))
    data = (folder / "_metadata").read_bytes()
    assert data.count(second) == 1
    (folder / "_metadata").write_bytes(data.replace(second, second[:-8] + struct.pack(">q", 4)))
    with pytest.raises(CorruptChannelState, match="a chunk is listed by another channel") as caught:
        refuse_shared_chunks(open_checkpoint(str(folder)))
    assert caught.value.where.channel == 1


def test_bytes_in_a_channel_that_its_handle_calls_empty_are_not_left_behind(tmp_path: Path) -> None:
    """Empty channels need no exchange; one that is empty in its handle only would be lost without a trace."""
    checkpoint = open_checkpoint(announcing(tmp_path / "chk", lambda _: 4))
    spec = parse_spec(REBALANCE.replace("gate: 0", "gate: 7"))
    plan = make_plan(checkpoint, spec, parse_parallelism("same"), 1 << 24)
    assert len(plan.channels) == 0
    with pytest.raises(PlanRefused, match="in-flight data on input 0, which its handles call empty"):
        refuse_hidden_bytes(checkpoint, plan, damage_is_fine=True)
    (tmp_path / "chk" / "in-0").unlink()
    source._mapped.cache_clear()
    refuse_hidden_bytes(checkpoint, plan, damage_is_fine=True)
    with pytest.raises(CorruptChannelState, match="missing"):
        refuse_hidden_bytes(checkpoint, plan, damage_is_fine=False)


OTHERS = ("a_p2_file_merging", "v4_a_p3_back_pressure", "v6_a_p3_back_pressure", "rw_a_3to2_keep", "t_p3_timers_1_20")


@pytest.mark.parametrize(("name", "number"), [*SHIPPED, *((name, 2) for name in OTHERS)])
def test_real_handles_say_exactly_what_their_chunks_hold(
    fixture_checkpoint: FixtureCheckpoints, name: str, number: int
) -> None:
    """Files, segments of merged files, single and merged handles, of Flink 1.20 to 2.3, and checkpoints of cdr."""
    checkpoint = open_checkpoint(str(fixture_checkpoint(name, number).path))
    plan = Plan(2, checkpoint.directory, checkpoint.sha256, "", 1, (), (), PlanChannels.of(()))
    for operator in checkpoint.metadata.operators:
        for side in Side:
            for piece in checkpoint.channels(operator, side).values():
                parts = chunks_of(plan, piece)
                found = sum(part.size for part in parts)
                assert payload_size(checkpoint, piece) == found
                location = checkpoint.resolve(piece.delegate)
                is_file = isinstance(location, FileLocation)
                assert announced_payload(plan, piece) == (found if is_file else None)
                if isinstance(location, FileLocation):
                    others = neighbours(plan, location.uri)
                    assert len(others) >= len(piece.offsets)
                    refuse_overlap(others, parts[0].chunk_starts, parts[0].chunk_lengths, piece.where())
    refuse_shared_chunks(checkpoint)
