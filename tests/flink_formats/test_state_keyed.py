"""Keyed state at another parallelism: key groups laid into one file where bytes allow it, else handles in a basket."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cdr_core.errors import Corrupt, CorruptMetadata, PlanRefused, Refused
from cdr_core.flink.keys import key_group_range
from cdr_core.flink.metadata import (
    Change,
    ChangeStream,
    CheckpointedChangelog,
    FinishedSubtask,
    IdentifiedIncremental,
    IdentifiedKeyGroups,
    InlineBytes,
    KeyedHandle,
    KeyGroupRange,
    KeyGroups,
    LocalFile,
    MemoryChanges,
    Offsets,
    OperatorState,
    RelativeFile,
    SavepointKeyGroups,
    StoredFileChanges,
    SubtaskState,
)
from cdr_core.flink.state import CHUNK
from tests.flink_formats.state_support import Memory, operator

GROUPS = 24
HEAD = b"the key's serializer, two states and their timers"
MOVES = [(3, 2), (3, 5), (1, 4), (4, 1), (7, 2), (2, 7), (5, 24), (24, 5)]


def _group(number: int) -> bytes:
    """As the heap writes it: the key group's number, then its state."""
    return struct.pack(">i", number) + f"<state of {number}>".encode() * (number % 4)


def _snapshot(memory: Memory, name: str, groups: Sequence[int], *, head: bytes = HEAD) -> IdentifiedKeyGroups:
    data, offsets = bytearray(head), []
    for number in groups:
        offsets.append(len(data))
        data += _group(number)
    return IdentifiedKeyGroups(groups[0], Offsets.of(offsets), memory.put(name, bytes(data)), f"id of {name}")


def _range(index: int, parallelism: int) -> range:
    first, last = key_group_range(index, parallelism, GROUPS)
    return range(first, last + 1)


def _filled(memory: Memory, parallelism: int) -> OperatorState:
    handles = [_snapshot(memory, f"old-{i}", _range(i, parallelism)) for i in range(parallelism)]
    return _operator(handles)


def _operator(handles: Sequence[KeyedHandle | None]) -> OperatorState:
    return operator([SubtaskState(i, managed_keyed=each) for i, each in enumerate(handles)], max_parallelism=GROUPS)


def _found(memory: Memory, handle: KeyedHandle | None) -> dict[int, bytes]:
    """Each key group of a merged file, up to where the next begins."""
    assert isinstance(handle, KeyGroups | IdentifiedKeyGroups)
    data = memory.bytes(handle.delegate)
    borders = sorted({*handle.offsets, len(data)} - {0})
    return {
        handle.start + n: data[offset : next((b for b in borders if b > offset), offset)] if offset else b""
        for n, offset in enumerate(handle.offsets)
    }


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(("old", "new"), MOVES)
def test_each_new_subtask_has_its_key_groups_in_one_file(old: int, new: int, inline: bool) -> None:
    memory = Memory(inline=inline)
    for index, subtask in enumerate(memory.moved(_filled(memory, old), new)):
        assert isinstance(subtask.managed_keyed, IdentifiedKeyGroups)
        assert memory.bytes(subtask.managed_keyed.delegate).startswith(HEAD)
        assert _found(memory, subtask.managed_keyed) == {number: _group(number) for number in _range(index, new)}


def test_every_written_handle_has_an_id_of_its_own_that_is_the_same_in_every_run() -> None:
    ids = []
    for _ in range(2):
        memory = Memory()
        handles = [each.managed_keyed for each in memory.moved(_filled(memory, 3), 5)]
        ids.append([each.handle_id for each in handles if isinstance(each, IdentifiedKeyGroups)])
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 5


@pytest.mark.parametrize("kind", [KeyGroups, SavepointKeyGroups])
def test_the_kind_of_a_full_snapshot_stays(kind: type[KeyGroups]) -> None:
    memory = Memory()
    source = [_snapshot(memory, f"old-{i}", _range(i, 3)) for i in range(3)]
    old = [kind(each.start, each.offsets, each.delegate) for each in source]
    for index, subtask in enumerate(memory.moved(_operator(old), 2, version=3)):
        assert type(subtask.managed_keyed) is kind
        assert _found(memory, subtask.managed_keyed) == {number: _group(number) for number in _range(index, 2)}


def test_a_key_group_for_which_nothing_was_written_stays_one() -> None:
    """RocksDB's full snapshots: the offset is 0, and a reader that went there would read the head."""
    memory = Memory()
    full = _snapshot(memory, "old-0", [0, 2, 4])
    offsets = [full.offsets[0], 0, full.offsets[1], 0, full.offsets[2], *([0] * 7)]
    one = replace(full, offsets=Offsets.of(offsets))
    two = replace(full, start=12, offsets=Offsets.of([0] * 12), delegate=memory.put("old-1", HEAD), handle_id="2")
    (subtask,) = memory.moved(_operator([one, two]), 1)
    wanted = {number: _group(number) if number in (0, 2, 4) else b"" for number in range(GROUPS)}
    assert _found(memory, subtask.managed_keyed) == wanted


def test_key_groups_larger_than_a_chunk_pass_in_chunks() -> None:
    memory = Memory()
    data = HEAD + b"x" * (2 * CHUNK + 5) + b"y" * CHUNK
    offsets = Offsets.of([len(HEAD), len(HEAD) + 2 * CHUNK + 5])
    handle = IdentifiedKeyGroups(0, offsets, memory.put("old", data), "id")
    moved = memory.moved(operator([SubtaskState(0, managed_keyed=handle)], max_parallelism=2), 2)
    found = [_found(memory, each.managed_keyed) for each in moved]
    assert found == [{0: b"x" * (2 * CHUNK + 5)}, {1: b"y" * CHUNK}]


def test_files_with_other_heads_are_not_merged_but_put_into_a_basket() -> None:
    memory = Memory()
    one = _snapshot(memory, "old-0", range(12))
    two = _snapshot(memory, "old-1", range(12, 24), head=HEAD + b" and a third state")
    low, middle, high = (each.managed_keyed for each in memory.moved(_operator([one, two]), 3))
    assert isinstance(low, CheckpointedChangelog)
    assert isinstance(middle, CheckpointedChangelog)
    assert isinstance(high, CheckpointedChangelog)
    assert [middle.key_groups, middle.checkpoint_id, middle.changes] == [KeyGroupRange(8, 8), 7, ()]
    assert [[each.start for each in basket.materialized if isinstance(each, IdentifiedKeyGroups)]
            for basket in (low, middle, high)] == [[0], [8, 12], [16]]  # fmt: skip
    part = middle.materialized[0]
    assert part == replace(one, start=8, offsets=Offsets.of(list(one.offsets)[8:]))
    assert not memory.written


def test_before_flink_1_16_files_with_other_heads_are_refused() -> None:
    memory = Memory()
    handles = [_snapshot(memory, "a", range(12)), _snapshot(memory, "b", range(12, 24), head=b"another head")]
    with pytest.raises(Refused, match="needs keyed state of 2 old ones whose files cannot be merged"):
        memory.moved(_operator(handles), 1, version=3)


def test_subtasks_without_keyed_state_leave_a_gap_and_no_key_group_is_made_up() -> None:
    memory = Memory()
    handles = [_snapshot(memory, "a", range(6)), None, _snapshot(memory, "c", range(12, 18)), None]
    one, two = (each.managed_keyed for each in memory.moved(_operator(handles), 2))
    assert _found(memory, one) == {number: _group(number) for number in range(6)}
    assert _found(memory, two) == {number: _group(number) for number in range(12, 18)}
    (all_in_one,) = memory.moved(_operator(handles), 1)
    assert isinstance(all_in_one.managed_keyed, CheckpointedChangelog)
    assert all_in_one.managed_keyed.materialized == (handles[0], handles[2])
    assert [each.managed_keyed for each in memory.moved(_operator([None, None]), 3)] == [None] * 3


def _incremental(first: int, count: int) -> IdentifiedIncremental:
    files = (LocalFile("1.sst", RelativeFile(f"sst-{first}", 3)),)
    return IdentifiedIncremental(
        7, "b", KeyGroupRange(first, count), 9, InlineBytes("m", b"a head"), files, (), f"id {first}"
    )


def test_an_incremental_snapshot_serves_ranges_inside_its_own_as_it_is() -> None:
    memory, handles = Memory(), [_incremental(0, 12), _incremental(12, 12)]
    moved = memory.moved(_operator(handles), 4)
    assert [each.managed_keyed for each in moved] == [handles[0], handles[0], handles[1], handles[1]]
    again = memory.moved(operator(moved, max_parallelism=GROUPS), 2)
    assert [each.managed_keyed for each in again] == handles


def test_no_handle_stands_alone_in_one_subtask_and_is_in_the_basket_of_another() -> None:
    """From 2 to 3 only the middle one needs both; Flink refuses to claim a checkpoint with one id in two ways."""
    memory, handles = Memory(), [_incremental(0, 12), _incremental(12, 12)]
    moved = [each.managed_keyed for each in memory.moved(_operator(handles), 3)]
    inside = [list(each.materialized) for each in moved if isinstance(each, CheckpointedChangelog)]
    assert inside == [handles[:1], handles, handles[1:]]


def test_incremental_snapshots_are_merged_in_a_basket_also_from_baskets() -> None:
    memory, handles = Memory(), [_incremental(0, 8), _incremental(8, 8), _incremental(16, 8)]
    moved = memory.moved(_operator(handles), 2)
    for subtask, inside in zip(moved, (handles[:2], handles[1:]), strict=True):
        assert isinstance(subtask.managed_keyed, CheckpointedChangelog)
        assert list(subtask.managed_keyed.materialized) == inside
    (one,) = memory.moved(operator(moved, max_parallelism=GROUPS), 1)
    assert isinstance(one.managed_keyed, CheckpointedChangelog)
    assert list(one.managed_keyed.materialized) == handles, "the middle one is in both baskets, and counts once"


def test_before_flink_1_16_only_ranges_inside_of_an_incremental_snapshot_are_possible() -> None:
    memory, handles = Memory(), [_incremental(0, 12), _incremental(12, 12)]
    assert len(memory.moved(_operator(handles), 4, version=3)) == 4
    with pytest.raises(PlanRefused, match="new subtask 0 needs key groups of 2 old ones in an incremental snapshot"):
        memory.moved(_operator(handles), 1, version=3)


def _changelog(first: int, materialized: tuple[KeyedHandle, ...]) -> CheckpointedChangelog:
    groups = KeyGroupRange(first, 12)
    files = StoredFileChanges(groups, (ChangeStream(4, RelativeFile(f"log-{first}", 3)),), 3, 3, f"log {first}", "fs")
    in_memory = MemoryChanges(
        groups, 0, 3, (Change(-1, b"state"), Change(first, b"low"), Change(first + 11, b"high")), f"memory {first}"
    )
    return CheckpointedChangelog(groups, 5, materialized, (files, in_memory), first, 7, f"changelog {first}")


def test_changelogs_are_cut_and_merged_with_their_changes_in_order() -> None:
    memory = Memory()
    one = _changelog(0, (_snapshot(memory, "old-0", range(12)),))
    two = _changelog(12, (_incremental(12, 12),))
    low, middle, high = (each.managed_keyed for each in memory.moved(_operator([one, two]), 3))
    assert isinstance(low, CheckpointedChangelog)
    assert isinstance(middle, CheckpointedChangelog)
    assert isinstance(high, CheckpointedChangelog)
    assert [each.data for each in _changes(low)] == [b"state", b"low"]
    assert [each.data for each in _changes(middle)] == [b"state", b"high", b"state", b"low"]
    assert [each.data for each in _changes(high)] == [b"state", b"high"]
    assert [each.key_groups for each in middle.changes if isinstance(each, StoredFileChanges)] == [
        KeyGroupRange(8, 4),
        KeyGroupRange(12, 4),
    ]
    assert middle.materialization_id == 12
    assert middle.materialized[1] == two.materialized[0]


def _changes(handle: CheckpointedChangelog) -> list[Change]:
    return [change for each in handle.changes if isinstance(each, MemoryChanges) for change in each.changes]


@pytest.mark.parametrize(("old", "new"), MOVES)
def test_raw_keyed_state_has_no_head_and_its_gaps_are_kept(old: int, new: int) -> None:
    """Key groups that were not written have the offset -1; one subtask in three has no raw state at all."""
    memory, subtasks, wanted = Memory(), [], {}
    for index in range(old):
        groups = _range(index, old)
        written = [number for number in groups if number % 5]
        if index % 3 == 2 or not written:
            subtasks.append(SubtaskState(index))
            continue
        snapshot = _snapshot(memory, f"raw-{index}", written, head=b"")
        offsets = dict(zip(written, snapshot.offsets, strict=True))
        handle = replace(snapshot, start=groups[0], offsets=Offsets.of([offsets.get(each, -1) for each in groups]))
        subtasks.append(SubtaskState(index, raw_keyed=handle))
        wanted.update({number: _group(number) for number in written})
    found: dict[int, bytes] = {}
    for subtask in memory.moved(operator(subtasks, max_parallelism=GROUPS), new):
        handle_found = subtask.raw_keyed
        if handle_found is None:
            continue
        assert isinstance(handle_found, IdentifiedKeyGroups)
        data = memory.bytes(handle_found.delegate)
        borders = sorted({*handle_found.offsets, len(data)} - {-1})
        for number, offset in enumerate(handle_found.offsets, handle_found.start):
            assert number in _range(subtask.index, new)
            if offset >= 0:
                assert number not in found
                found[number] = data[offset : next(border for border in borders if border > offset)]
    assert found == wanted


def test_bytes_of_raw_keyed_state_that_belong_to_no_key_group_are_nobodys() -> None:
    memory = Memory()
    handle = IdentifiedKeyGroups(0, Offsets.of([-1] * GROUPS), memory.put("raw", b"before any key group"), "id")
    for subtask in memory.moved(operator([SubtaskState(0, raw_keyed=handle)], max_parallelism=GROUPS), 2):
        assert isinstance(subtask.raw_keyed, IdentifiedKeyGroups)
        assert memory.bytes(subtask.raw_keyed.delegate) == b""


def test_a_finished_subtask_has_no_keyed_state() -> None:
    memory = Memory()
    source = operator([], parallelism=2, max_parallelism=GROUPS)
    running = SubtaskState(1, managed_keyed=_snapshot(memory, "old", range(12, 24)))
    moved = memory.moved(replace(source, subtasks=(FinishedSubtask(0), running)), 4)
    assert [each.managed_keyed is None for each in moved] == [True, True, False, False]


def test_a_key_group_in_two_places_is_corrupt() -> None:
    memory = Memory()
    handles = [_snapshot(memory, "a", range(13)), _snapshot(memory, "b", range(12, 24))]
    with pytest.raises(CorruptMetadata, match="key group 12 is in the state of two subtasks"):
        memory.moved(_operator(handles), 1)


def test_a_file_that_ends_too_early_is_not_less_state() -> None:
    memory = Memory()
    source = _filled(memory, 2)
    memory.files["old-1"] = memory.files["old-1"][:-1]
    with pytest.raises(Corrupt, match="its bytes end where 1 more are needed"):
        memory.moved(source, 1)


def test_an_offset_outside_of_the_file_is_corrupt() -> None:
    memory = Memory()
    handle = replace(_snapshot(memory, "a", [0]), offsets=Offsets.of([10_000]))
    with pytest.raises(Corrupt, match="a key group starts outside of its"):
        memory.moved(operator([SubtaskState(0, managed_keyed=handle)], max_parallelism=4), 2)


def test_handles_that_begin_elsewhere_need_no_basket_where_each_subtask_needs_only_one() -> None:
    """An old subtask without keyed state: no range of a new one touches two handles, so every Flink can take them."""
    memory, handles = Memory(), [_incremental(0, 8), None, _incremental(16, 8)]
    moved = [each.managed_keyed for each in memory.moved(_operator(handles), 4, version=3)]
    assert moved == [handles[0], handles[0], handles[2], handles[2]]
