"""Every record has exactly one owner, nobody is left out, order is kept: for every old and new parallelism."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdr_core.channels import channel_scan as scanning
from cdr_core.channels import channel_selection as selection
from cdr_core.channels.channel_selection import Selector
from cdr_core.channels.filter_context import FilterContext
from cdr_core.channels.record_owners import lanes_of_groups, record_owners, window_owners
from cdr_core.errors import Where
from cdr_core.flink.types import parse_type
from cdr_core.flink.virtual_channel import ChannelBytes, Part, Window
from cdr_core.planning.job_spec import Partitioner
from cdr_core.planning.plan import Plan
from cdr_core.planning.subtask_mapping import new_owners
from tests.flink_formats.types import naive
from tests.rescale.inflight import (
    RECORD,
    At,
    Op,
    checkpoint_of,
    exchange,
    frame,
    plan_of,
    runs_of,
    select,
    spec_of,
    values_of,
    watermark,
    window_of,
)

TYPE = parse_type(RECORD)
UPS = 3
RECORDS = 300
MOVABLE = ("hash", "rebalance", "shuffle", "global", "custom")
Channels = Mapping[tuple[int, int], bytes]


def key_group(key: int, max_parallelism: int) -> int:
    """By the naive hash of the format's tests, which shares no code with the kernels."""
    return naive.key_group(naive.java_hash("LONG", key), max_parallelism)


def range_owner(group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask whose range holds the group, found by looking at all ranges."""
    for index in range(parallelism):
        first = -(-index * max_parallelism // parallelism)
        last = -(-(index + 1) * max_parallelism // parallelism) - 1
        if first <= group <= last:
            return index
    raise AssertionError("a group that nobody owns")


def place(how: str, key: int, number: int, parallelism: int, max_parallelism: int) -> int:
    """Where the job itself sends a record."""
    if how == "hash":
        return range_owner(key_group(key, max_parallelism), parallelism, max_parallelism)
    if how == "custom":
        return key % parallelism
    return 0 if how == "global" else (number * 7 + key) % parallelism


def moved(how: str, key: int, down: int, new: int, old: int, max_parallelism: int) -> int:
    """Where a record on its way to ``down`` belongs afterwards."""
    if old == new:
        return down
    if how in ("hash", "custom"):
        return place(how, key, 0, new, max_parallelism)
    return 0 if how == "global" else down % new


def in_flight(how: str, old: int, max_parallelism: int) -> Channels:
    """Records from several upstream subtasks, with watermarks between them."""
    rng = np.random.default_rng([old, MOVABLE.index(how)])
    channels: dict[tuple[int, int], list[bytes]] = {}
    for number, key in enumerate(rng.integers(-(2**62), 2**62, RECORDS).tolist()):
        down = place(how, key, number, old, max_parallelism)
        elements = channels.setdefault((number % UPS, down), [])
        elements.append(frame(key, number))
        if number % 11 == 0:
            elements.append(watermark(number))
    return {at: b"".join(elements) for at, elements in channels.items()}


def plans(how: str, old: int, channels: Channels, news: Iterator[int] | range, max_parallelism: int) -> Iterator[Plan]:
    """The shipped plan for each new parallelism of both ends; a record may lie across both sides' state."""
    cuts = {at: len(data) // 2 + 3 for at, data in channels.items()}
    up = Op("gen", UPS, outputs={At(u, 0, d): data[cuts[u, d] :] for (u, d), data in channels.items()})
    down = Op("slow", old, max_parallelism, {At(d, 0, u): data[: cuts[u, d]] for (u, d), data in channels.items()})
    checkpoint = checkpoint_of(up, down)
    more = "owner: tests.rescale.routing:by_key_numpy" if how == "custom" else ""
    for new in news:
        yield plan_of(checkpoint, spec_of(exchange(how=how, more=more)), f"gen={1 + new % 4},slow={new}")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int], bytes]:
    """Channels that scan and filter find here instead of in a file; cut in two where a record may lie across."""
    held: dict[tuple[int, int], bytes] = {}

    def open_held(plan: Plan, number: int, *_: bool) -> ChannelBytes:
        channel = plan.channels[number]
        data = np.frombuffer(held[channel.up, channel.down], np.uint8)
        cut = len(data) // 2 + 3
        sides = [(Part(data, np.array([a]), np.array([b - a])),) for a, b in ((0, cut), (cut, len(data)))]
        return ChannelBytes(sides[0], sides[1], Where(subtask=channel.down, channel=channel.up))

    monkeypatch.setattr(scanning, "open_whole", open_held)
    monkeypatch.setattr(selection, "open_again", open_held)
    return held


@pytest.mark.parametrize("how", MOVABLE)
@pytest.mark.parametrize("old", range(1, 17))
def test_every_record_has_one_owner_and_keeps_its_order_for_all_parallelisms_to_16(
    opened: dict[tuple[int, int], bytes], tmp_path: Path, how: str, old: int
) -> None:
    """Evaluated with the new layout, every record is kept by exactly one new task, on exactly one new channel.

    Both by the owners that are reckoned for a window, and by the selection of the filter, which finds a hash key where
    it lies.
    """
    channels = in_flight(how, old, 128)
    opened.update(channels)
    context = FilterContext(enabled=True, page_size=4096, spill_dirs=(str(tmp_path),))
    windows = {at: window_of(data) for at, data in channels.items()}
    for plan in plans(how, old, channels, range(1, 17), 128):
        (bound,) = plan.exchanges
        assert {(channel.up, channel.down) for channel in plan.channels} == channels.keys()
        seen: list[int] = []
        selector = Selector(plan, context)
        for place_in_plan, channel in enumerate(plan.channels):
            assert channel.new_up == channel.up % bound.new_up
            possible = [plan.subtasks[number].index for number in channel.subtasks]
            window = windows[channel.up, channel.down]
            owners = window_owners(bound, TYPE, window, Where(subtask=channel.down, channel=channel.up))
            expected = {
                position: moved(how, key, channel.down, bound.new_down, old, 128)
                for position, key, _ in values_of(window)
            }
            assert {i: owner for i, owner in enumerate(owners.tolist()) if owner >= 0} == expected
            assert set(expected.values()) <= set(possible)
            seen += _selected(window, owners, possible)
            # Only a hash key has a way of its own through the filter; of the others some show that theirs is the same.
            if (how == "hash" and len(possible) > 1) or bound.new_down % 5 == old % 5:
                taken = select(selector, plan, place_in_plan)
                found = {p: owner for owner, positions in taken.items() for p in positions if p in expected}
                assert found == expected
                assert sum(p in expected for positions in taken.values() for p in positions) == len(expected)
        selector.close()
        assert sorted(seen) == list(range(RECORDS))


def _selected(window: Window, owners: np.ndarray, possible: list[int]) -> list[int]:
    """Numbers of the records that the runs hold, checked to be in order per owner and to be whole frames."""
    lanes = np.where(owners >= 0, owners - possible[0], -1)
    numbers = {position: number for position, _, number in values_of(window)}
    last = dict.fromkeys(range(len(possible)), -1)
    selected = []
    for lane, start, end, position, count in runs_of(window, lanes, len(possible)):
        assert last[lane] < position
        last[lane] = position + count - 1
        assert start == window.starts[position] - 4
        assert end == window.ends[position + count - 1]
        selected += [numbers[p] for p in range(position, position + count)]
    return selected


def needed(new: int, old: int, parallelism: int, max_parallelism: int) -> set[int]:
    """Old subtasks that hold a key group of new subtask ``new``."""
    groups = np.arange(max_parallelism, dtype=np.int64)
    mine = groups[groups * parallelism // max_parallelism == new]
    return set((mine * old // max_parallelism).tolist())


def flinks_range(new: int, old: int, parallelism: int) -> set[int]:
    """Flink's own range mapping, which reckons with 32768 key groups whatever the operator has."""
    universe = 32768
    start = -(-new * universe // parallelism)
    end = ((new + 1) * universe - 1) // parallelism
    return set(range(start * old // universe, end * old // universe + 1))


def test_where_flinks_own_mapping_misses_an_old_subtask_the_plan_does_not() -> None:
    """Max parallelism 252, 252 → 233: new subtask 183 needs old 198 and 199."""
    assert needed(183, 252, 233, 252) == {198, 199}
    assert flinks_range(183, 252, 233) == {197, 198}
    keys = [key for key in range(20_000) if key_group(key, 252) == 199][:5]
    data = b"".join(frame(key, number) for number, key in enumerate(keys))
    down = Op("slow", 252, 252, {At(199, 0, 0): data})
    plan = plan_of(checkpoint_of(Op("gen", 1), down), spec_of(exchange()), "slow=233")
    (channel,) = plan.channels
    assert 183 in [plan.subtasks[number].index for number in channel.subtasks]
    owners = window_owners(plan.exchanges[0], TYPE, window_of(data), Where(subtask=199, channel=0))
    assert owners.tolist() == [183] * 5


def test_the_plan_misses_nobody_wherever_flinks_mapping_does() -> None:
    """All new subtasks of that case, and how often Flink's mapping goes wrong in it."""
    readers: dict[int, set[int]] = {}
    for old in range(252):
        for new in new_owners(Partitioner.HASH, old, 252, 233, 252):
            readers.setdefault(new, set()).add(old)
    assert all(readers[new] == needed(new, 252, 233, 252) for new in range(233))
    assert any(not needed(new, 252, 233, 252) <= flinks_range(new, 252, 233) for new in range(233))


@st.composite
def rescales(draw: st.DrawFn) -> tuple[int, int, int]:
    old, new = draw(st.integers(1, 256)), draw(st.integers(1, 256))
    return old, new, draw(st.integers(max(old, new), 32768))


@given(rescales())
@settings(derandomize=True, max_examples=300, deadline=None)
def test_possible_owners_are_exactly_those_of_the_key_groups(numbers: tuple[int, int, int]) -> None:
    old, new, max_parallelism = numbers
    groups = np.arange(max_parallelism, dtype=np.int64)
    before, after = groups * old // max_parallelism, groups * new // max_parallelism
    for down in range(old):
        mine = np.unique(after[np.searchsorted(before, down) : np.searchsorted(before, down, side="right")]).tolist()
        expected = mine if old != new else [down]
        assert list(new_owners(Partitioner.HASH, down, old, new, max_parallelism)) == expected


@given(rescales(), st.sampled_from(MOVABLE), st.integers(0, 2**32 - 1))
@settings(derandomize=True, max_examples=150, deadline=None)
def test_a_plan_of_any_size_sends_each_record_to_its_one_owner(
    numbers: tuple[int, int, int], how: str, seed: int
) -> None:
    old, new, max_parallelism = numbers
    rng = np.random.default_rng(seed)
    key = int(rng.integers(-(2**63), 2**63))
    down = place(how, key, 0, old, max_parallelism)
    data = frame(key, 0) * 3
    ((plan),) = plans(how, old, {(1, down): data}, range(new, new + 1), max_parallelism)
    (channel,) = plan.channels
    window = window_of(data)
    owners = record_owners(
        plan.exchanges[0], TYPE, window.data, window.starts + 1, window.ends, Where(subtask=down, channel=1)
    )
    assert owners.tolist() == [moved(how, key, down, new, old, max_parallelism)] * 3
    possible = [plan.subtasks[number].index for number in channel.subtasks]
    assert owners[0] in possible
    if how == "hash" and old != new:
        lanes = lanes_of_groups(plan.exchanges[0], down, range(possible[0], possible[-1] + 1))
        assert possible[lanes[key_group(key, max_parallelism)]] == owners[0]
