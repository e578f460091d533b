"""A segment whose sum is right but which does not hold the elements that it was sealed with is never drained."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from cdr_core.audit.ledger import NOTHING
from cdr_core.channels.channel_source import open_checkpoint
from cdr_core.drain.drain_state import Columns, DrainState
from cdr_core.drain.watermark_state import InputWatermark
from cdr_core.errors import Corrupt, CorruptChannelState
from cdr_core.kernels import frames
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import Plan, make_plan
from cdr_core.spill.set_reader import Segment
from cdr_core.spill.spill_set import SpillSet
from tests.support.checkpoints import FixtureCheckpoints

FRAME = b"\x00\x00\x00\x06\x01abcde"
"""A record without a timestamp, behind its length."""


@pytest.fixture
def plan(fixture_checkpoint: FixtureCheckpoints) -> Plan:
    real = fixture_checkpoint("a_p3_thr0", 2)
    spec = parse_spec(real.spec.read_text())
    return make_plan(open_checkpoint(str(real.path)), spec, parse_parallelism("2"), 1 << 24)


def segment(body: bytes, elements: int) -> Segment:
    data = np.frombuffer(body, np.uint8)
    return Segment(data, np.array([0]), np.array([len(data)]), np.array([elements]), np.arange(elements))


def state_of(plan: Plan, elements: int, before: Columns | None = None, line: int = 0) -> DrainState:
    columns = {"line": np.array([line]), "piece_elements": np.array([elements]), "piece_first": np.array([0, 1])}
    return DrainState(plan, SpillSet(0, (), columns, NOTHING), before)


@pytest.mark.parametrize(("body", "elements"), [(2 * FRAME, 1), (2 * FRAME, 3), (FRAME + FRAME[:-1], 2)])
@pytest.mark.parametrize("way", ["elements", "bytes", "skipping"])
def test_more_fewer_or_broken_elements_are_an_error(plan: Plan, way: str, body: bytes, elements: int) -> None:
    state, given = state_of(plan, elements), segment(body, elements)
    skip = np.array([1]) if way == "skipping" else None
    take = state.taken_as_bytes if way == "bytes" else state.taken
    with pytest.raises(CorruptChannelState, match="sealed with"):
        take(given, skip)


def test_a_whole_segment_gives_the_same_elements_in_one_pass_as_in_two(plan: Plan) -> None:
    given = segment(3 * FRAME, 3)
    whole, rest = state_of(plan, 3), state_of(plan, 3)
    one, two = whole.taken(given, None), rest.taken(given, np.array([1]))
    assert (one.starts.tolist(), two.starts.tolist()) == ([4, 14, 24], [14, 24])
    assert one.fingerprints[16:].tobytes() == two.fingerprints.tobytes()
    assert (whole.tally.records, rest.tally.records) == (3, 2)
    assert one.records.tolist() == [True] * 3


def test_elements_before_a_cut_are_counted_once(plan: Plan) -> None:
    """The set was made again, so that the cut lies inside of a segment."""
    first = state_of(plan, 1)
    first.taken(segment(FRAME, 1), None)
    second = state_of(plan, 3, first.to_columns())
    assert second.skip(0).tolist() == [1]
    second.taken(segment(3 * FRAME, 3), second.skip(0))
    assert second.to_columns()["delivered"].tolist() == [3]
    assert second.tally.records == 3


def test_a_cut_of_other_records_is_an_error(plan: Plan) -> None:
    state = state_of(plan, 3)
    state.taken(segment(3 * FRAME, 3), None)
    with pytest.raises(Corrupt, match="a cut counts records that the spill set of subtask 0 does not hold"):
        state_of(plan, 3, state.to_columns(), line=1)


@pytest.mark.parametrize("way", ["elements", "bytes"])
def test_watermarks_are_noticed_also_where_bytes_are_only_counted(plan: Plan, way: str) -> None:
    """The last one of a channel counts."""
    watermarks = b"".join(struct.pack(">ibq", 9, frames.TAG_WATERMARK, time) for time in (17, 19))
    state = state_of(plan, 3)
    take = state.taken_as_bytes if way == "bytes" else state.taken
    take(segment(FRAME + watermarks, 3), None)
    assert state.input_watermark == InputWatermark(19)
