"""Owners of every record of the shipped checkpoints, equal to what a second, naive reckoning makes of the oracle."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cdr_core.channels.channel_scan import scan_channel
from cdr_core.channels.channel_selection import Selector
from cdr_core.channels.channel_source import open_channel, open_checkpoint
from cdr_core.channels.element_reader import element_batches
from cdr_core.channels.filter_context import FilterContext
from cdr_core.channels.record_counts import count_records
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import Plan, make_plan
from cdr_core.verify.checkpoint import Channel
from cdr_core.verify.checkpoint import Checkpoint as SecondReader
from cdr_core.verify.spec import read_spec as read_independently
from tests.rescale.inflight import select
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.oracle import Element

NEW = {3: (1, 2, 3, 4, 5), 4: (3, 6), 7: (2, 7, 16)}
CHECKPOINTS = [
    (name, number, int(name.split("_p")[1][0]))
    for name in ("a_p3_thr0", "a_p3_thr1mb", "b_p3_thr0", "c_p7_thr0", "d_p4_thr0", "f_p3_thr0", "g_p7_thr0")
    for number in (1, 2)
] + [("e_p4_seg32k", 2, 4), ("r_p3_rocks_inc_true", 2, 3), ("v5_a_p3_thr0", 1, 3)]
RESCALES = [(name, number, old, new) for name, number, old in CHECKPOINTS for new in NEW[old]]
WANTED = frozenset({"gate", "up", "down", "pos", "kind", "owner"})


def plan_of(checkpoint: FixtureCheckpoint, spec: str, parallelism: str) -> Plan:
    return make_plan(open_checkpoint(str(checkpoint.path)), parse_spec(spec), parse_parallelism(parallelism), 1 << 62)


def naive_owner(element: Element, keyed: bool, old: int, new: int) -> int:
    """By counting through the key groups, as long as it takes; without a key by dealing out whole subtasks."""
    if not keyed:
        return list(range(new))[element.channel.down % new] if old != new else element.channel.down
    owners = [subtask for subtask in range(new) for group in range(128) if group * new // 128 == subtask]
    assert element.key_group is not None
    return owners[element.key_group]


@pytest.mark.parametrize(("name", "number", "old", "new"), RESCALES)
def test_every_record_of_a_real_checkpoint_gets_the_owner_of_its_key_group(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str, number: int, old: int, new: int
) -> None:
    """By the owners of rows, by the counts of a what-if, and by the selection of the filter."""
    checkpoint = fixture_checkpoint(name, number)
    plan = plan_of(checkpoint, checkpoint.spec.read_text(), str(new))
    keyed = plan.exchanges[0].partitioner == "hash"
    expected = {
        (e.channel.gate, e.channel.up, e.channel.down, e.pos): naive_owner(e, keyed, old, new)
        for e in checkpoint.oracle.records
    }
    rows = [
        row
        for n in range(len(plan.channels))
        for batch in element_batches(plan, n, WANTED)
        for row in batch.to_pylist()
    ]
    found = {(r["gate"], r["up"], r["down"], r["pos"]): r["owner"] for r in rows if r["kind"] == "record"}
    assert found == expected
    assert all(row["owner"] is None for row in rows if row["kind"] != "record")
    counted, counts = count_records(plan), Counter[int]()
    for line, subtask in enumerate(plan.channels.subtask_of_lines(np.arange(len(counted.records))).tolist()):
        counts[plan.subtasks[subtask].index] += int(counted.records[line])
    assert +counts == Counter(expected.values())
    context = FilterContext(enabled=True, page_size=4096, spill_dirs=(str(tmp_path),))
    with closing(Selector(plan, context)) as selector:
        selected = [
            ((plan.exchanges[channel.exchange].gate, channel.up, channel.down, position), owner)
            for n, channel in enumerate(plan.channels)
            for owner, positions in select(selector, plan, n).items()
            for position in positions
        ]
    records = [(at, owner) for at, owner in selected if at in expected]
    assert dict(records) == expected
    assert len(records) == len(expected)


IDENTICAL = [("a_p3_thr0", 2), ("a_p3_thr1mb", 2), ("e_p4_seg32k", 2), ("f_p3_thr0", 2), ("r_p3_rocks_inc_true", 2)]


@pytest.mark.parametrize(("name", "number"), [*IDENTICAL, ("d_p4_thr0", 2), ("g_p7_thr0", 2), ("v5_a_p3_thr0", 1)])
def test_at_the_same_parallelism_every_channel_is_selected_byte_for_byte(
    fixture_checkpoint: FixtureCheckpoints, name: str, number: int
) -> None:
    """In files, inline, in small segments, of older metadata: all bytes, as the second reader finds them, in order, to
    the same subtask and channel.
    """
    checkpoint = fixture_checkpoint(name, number)
    plan = plan_of(checkpoint, checkpoint.spec.read_text(), "same")
    described = {each.name: each for each in read_independently(str(checkpoint.spec))}
    assert plan.channels
    with closing(Selector(plan, FilterContext.disabled())) as selector, SecondReader(str(checkpoint.path)) as second:
        for n, channel in enumerate(plan.channels):
            assert (channel.new_up, [plan.subtasks[s].index for s in channel.subtasks]) == (channel.up, [channel.down])
            source, taken = open_channel(plan, n), bytearray()
            name_of = plan.exchanges[channel.exchange].name
            elements = second.elements(described[name_of], Channel(name_of, channel.up, channel.down)).whole()
            for place, split in enumerate(scan_channel(plan, n)["splits"]):
                selection = selector.select({"channel": n, "number": place, "damaged": False, **split})
                starts, ends, _, _ = selection.of_lane(0)
                piece = np.empty(int((ends - starts).sum()), np.uint8)
                source.gather(starts, ends, piece)
                taken += piece.tobytes()
            assert bytes(taken) == elements.data


@pytest.mark.seed("001-22")
@pytest.mark.parametrize("name", ["a_p3_thr0", "b_p3_thr0", "g_p7_thr0"])
def test_a_record_that_begins_in_input_and_ends_in_output_state_has_its_owner_too(
    fixture_checkpoint: FixtureCheckpoints, name: str
) -> None:
    """A record may begin in input state and end in the output state of the same virtual channel."""
    checkpoint = fixture_checkpoint(name, 2)
    plan = plan_of(checkpoint, checkpoint.spec.read_text(), "2")
    across = {
        (e.channel.gate, e.channel.up, e.channel.down, e.pos): e.owner(2)
        for e in checkpoint.oracle.records
        if e.from_state == "input+output"
    }
    found = {
        (row["gate"], row["up"], row["down"], row["pos"]): row["owner"]
        for number in range(len(plan.channels))
        for batch in element_batches(plan, number, WANTED | {"from_state"})
        for row in batch.to_pylist()
        if row["from_state"] == "input+output" and row["kind"] == "record"
    }
    assert len(across) >= 3
    assert found == across


@pytest.mark.parametrize("new", [1, 2, 4, 5])
def test_a_custom_exchange_of_a_real_checkpoint_is_owned_as_its_function_says(
    fixture_checkpoint: FixtureCheckpoints, new: int
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    spec = checkpoint.spec.read_text().replace("key: [f0]", "owner: tests.rescale.routing:by_key")
    plan = plan_of(checkpoint, spec.replace("hash", "custom"), str(new))
    assert all(len(channel.subtasks) == new for channel in plan.channels)
    expected = {(e.channel.up, e.channel.down, e.pos): (e.key or 0) % new for e in checkpoint.oracle.records}
    rows = [
        row
        for n in range(len(plan.channels))
        for batch in element_batches(plan, n, WANTED)
        for row in batch.to_pylist()
    ]
    assert {(r["up"], r["down"], r["pos"]): r["owner"] for r in rows if r["kind"] == "record"} == expected


def test_a_custom_exchange_at_the_same_parallelism_passes_through_and_calls_nobody(
    fixture_checkpoint: FixtureCheckpoints,
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    spec = checkpoint.spec.read_text().replace("key: [f0]", "owner: tests.rescale.routing:broken")
    plan = plan_of(checkpoint, spec.replace("hash", "custom"), "gen=2")
    for number, channel in enumerate(plan.channels):
        assert channel.subtasks == (channel.down,)
        assert {row for batch in element_batches(plan, number, WANTED) for row in batch["owner"].to_pylist()} <= {
            None,
            channel.down,
        }


@pytest.mark.phases
def test_a_recovery_of_a_custom_exchange_puts_every_record_where_its_function_says(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    from cdr_core.recovery.recovery_request import RecoveryRequest
    from tests.support import inline, output

    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    spec = checkpoint.spec.read_text().replace("key: [f0]", "owner: tests.rescale.routing:by_key_numpy")
    request = RecoveryRequest(str(checkpoint.path), spec.replace("hash", "custom"), "2", f"parquet:{tmp_path / 'out'}")
    repository, recovery, settings = inline.start(request)
    with repository:
        assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"
    rows = output.rows(tmp_path / "out")
    expected = {(e.channel.up, e.channel.down, e.pos): (e.key or 0) % 2 for e in checkpoint.oracle.records}
    assert {(row["up"], row["down"], row["pos"]): row["new_down"] for row in rows} == expected
    assert len(rows) == len(expected)
