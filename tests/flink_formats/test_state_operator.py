"""Operator state at another parallelism: split, union and broadcast, in one file per subtask."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import chain

import pytest

from cdr_core.errors import Corrupt, CorruptMetadata, Refused
from cdr_core.flink.metadata import (
    EMPTY_SEGMENT,
    FileSegment,
    FinishedSubtask,
    InlineBytes,
    MergedOperatorStateHandle,
    NamedState,
    Offsets,
    OperatorHandle,
    OperatorState,
    OperatorStateHandle,
    RelativeFile,
    SubtaskState,
)
from cdr_core.flink.state import CHUNK, redistribute
from tests.flink_formats.state_support import (
    BROADCAST,
    SPLIT,
    UNION,
    Memory,
    elements,
    entry,
    head,
    operator,
    operator_handle,
)

STATES = [("few", SPLIT), ("many", SPLIT), ("everyone", UNION), ("rules", BROADCAST)]
MOVES = [(3, 2), (3, 5), (1, 4), (4, 1), (7, 2), (2, 7)]


def _numbered(kind: str, subtask: int, count: int) -> list[bytes]:
    return [f"<{kind} {subtask}.{n}>".encode() * (1 + n % 3) for n in range(count)]


def _filled(memory: Memory, parallelism: int, *, compressed: bool = False) -> OperatorState:
    subtasks = []
    for i in range(parallelism):
        states = {
            ("few", SPLIT): _numbered("few", i, i % 2),
            ("many", SPLIT): _numbered("many", i, 10 + i),
            ("everyone", UNION): _numbered("everyone", i, 2 + i),
            ("rules", BROADCAST): [b"<the same rules for all>"],
        }
        handle = operator_handle(memory, f"old-{i}", head(STATES, compressed=compressed), states)
        subtasks.append(SubtaskState(i, managed_operator=handle))
    return operator(subtasks)


def _given(memory: Memory, moved: tuple[SubtaskState, ...], state: str) -> list[list[bytes]]:
    handles = [subtask.managed_operator for subtask in moved]
    assert all(isinstance(handle, OperatorStateHandle) for handle in handles)
    return [elements(memory, handle, state) for handle in handles if isinstance(handle, OperatorStateHandle)]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(("old", "new"), MOVES)
def test_split_elements_are_dealt_out_once_in_order_and_evenly(
    old: int, new: int, inline: bool, compressed: bool
) -> None:
    memory = Memory(inline=inline)
    moved = memory.moved(_filled(memory, old, compressed=compressed), new)
    assert [subtask.index for subtask in moved] == list(range(new))
    counts = {"few": [i % 2 for i in range(old)], "many": [10 + i for i in range(old)]}
    for state, filled in counts.items():
        given = _given(memory, moved, state)
        wanted = list(chain.from_iterable(_numbered(state, i, count) for i, count in enumerate(filled)))
        assert sorted(chain.from_iterable(given)) == sorted(wanted)
        assert max(map(len, given)) - min(map(len, given)) <= 1
        assert all(share == [each for each in wanted if each in share] for share in given)


@pytest.mark.parametrize(("old", "new"), MOVES)
def test_a_union_state_is_written_once_because_flink_gives_it_to_all(old: int, new: int) -> None:
    memory = Memory()
    given = _given(memory, memory.moved(_filled(memory, old), new), "everyone")
    assert list(chain.from_iterable(given)) == list(
        chain.from_iterable(_numbered("everyone", i, 2 + i) for i in range(old))
    )


@pytest.mark.parametrize(("old", "new"), MOVES)
def test_every_subtask_has_a_copy_of_a_broadcast_state(old: int, new: int) -> None:
    memory = Memory()
    given = _given(memory, memory.moved(_filled(memory, old), new), "rules")
    assert given == [[b"<the same rules for all>"]] * new


def test_copies_of_a_broadcast_state_are_taken_in_turn_as_flink_takes_them() -> None:
    """They are alike by contract; where a job breaks it, what Flink would do is done."""
    memory = Memory()
    handles = [operator_handle(memory, f"o{i}", head(STATES[3:]), {STATES[3]: [b"copy %d" % i]}) for i in range(2)]
    moved = memory.moved(operator([SubtaskState(i, managed_operator=each) for i, each in enumerate(handles)]), 3)
    assert _given(memory, moved, "rules") == [[b"copy 0"], [b"copy 1"], [b"copy 0"]]


def test_what_is_left_over_goes_to_another_subtask_with_each_state() -> None:
    memory = Memory()
    states = {(f"s{n}", SPLIT): [b"one"] for n in range(4)}
    subtask = SubtaskState(0, managed_operator=operator_handle(memory, "old", head(list(states)), states))
    moved = memory.moved(operator([subtask]), 2)
    held = [sum(len(given) for name, _ in states for given in [_given(memory, moved, name)[i]]) for i in range(2)]
    assert held == [2, 2]


def test_the_head_is_kept_byte_for_byte_where_all_wrote_the_same() -> None:
    memory = Memory()
    moved = memory.moved(_filled(memory, 3), 2)
    for subtask in moved:
        assert isinstance(subtask.managed_operator, OperatorStateHandle)
        assert memory.bytes(subtask.managed_operator.delegate).startswith(head(STATES))


def test_heads_that_list_different_states_are_merged_by_name() -> None:
    memory = Memory()
    ours: list[dict[tuple[str, int], list[bytes]]] = [
        {("a", SPLIT): [b"a0"], ("rules", BROADCAST): [b"rules"]},
        {("b", UNION): [b"b1"], ("a", SPLIT): [b"a1"], ("late", BROADCAST): [b"late"]},
        {},
    ]
    subtasks = [
        SubtaskState(i, managed_operator=operator_handle(memory, f"old-{i}", head(list(states)), states))
        for i, states in enumerate(ours)
    ]
    moved = memory.moved(operator(subtasks), 2)
    assert [sorted(each) for each in _given(memory, moved, "a")] == [[b"a0"], [b"a1"]]
    assert list(chain.from_iterable(_given(memory, moved, "b"))) == [b"b1"]
    assert _given(memory, moved, "late") == [[b"late"], [b"late"]]
    handle = moved[0].managed_operator
    assert isinstance(handle, OperatorStateHandle)
    every = [("a", SPLIT), ("b", UNION), ("rules", BROADCAST), ("late", BROADCAST)]
    assert memory.bytes(handle.delegate).startswith(head(every))


def test_a_state_that_is_described_in_two_ways_is_refused_with_its_name_and_subtasks() -> None:
    memory = Memory()
    states = {("a", SPLIT): [b"x"]}
    subtasks = [
        SubtaskState(
            i, managed_operator=operator_handle(memory, f"old-{i}", head([("a", SPLIT)], serializer=s), states)
        )
        for i, s in enumerate((b"one", b"two"))
    ]
    with pytest.raises(Refused, match=r"state 'a' of operator state .* by subtask 0 and in another by subtask 1"):
        memory.moved(operator(subtasks), 1)


def test_a_head_that_is_not_understood_is_refused_only_where_it_has_to_be_taken_apart() -> None:
    memory = Memory()
    states = {("a", SPLIT): [b"x"]}
    strange = struct.pack(">i", 99) + entry("a", SPLIT)
    alike = [SubtaskState(i, managed_operator=operator_handle(memory, f"o{i}", strange, states)) for i in range(2)]
    assert [len(each) for each in _given(memory, memory.moved(operator(alike), 1), "a")] == [2]
    other = SubtaskState(1, managed_operator=operator_handle(memory, "other", strange + b"!", states))
    with pytest.raises(Refused, match="version 99, which is not understood"):
        memory.moved(operator([alike[0], other]), 1)


def test_elements_that_are_larger_than_a_chunk_pass_in_chunks() -> None:
    memory = Memory()
    long = [bytes([n]) * (CHUNK + 17) for n in range(3)]
    handle = operator_handle(memory, "old", head([("a", SPLIT)]), {("a", SPLIT): long})
    moved = memory.moved(operator([SubtaskState(0, managed_operator=handle)]), 2)
    assert list(chain.from_iterable(_given(memory, moved, "a"))) == long


def test_offsets_need_not_ascend_and_states_may_lie_between_each_other() -> None:
    memory = Memory()
    first = head([("a", SPLIT), ("b", SPLIT)])
    at = len(first)
    states = (NamedState("a", SPLIT, Offsets.of([at + 6, at])), NamedState("b", SPLIT, Offsets.of([at + 3])))
    handle = OperatorStateHandle(states, memory.put("old", first + b"a1.b1.a0."))
    moved = memory.moved(operator([SubtaskState(0, managed_operator=handle)]), 3)
    assert list(chain.from_iterable(_given(memory, moved, "a"))) == [b"a0.", b"a1."]
    assert list(chain.from_iterable(_given(memory, moved, "b"))) == [b"b1."]


def test_state_in_a_segment_and_inline_is_read_where_it_is() -> None:
    memory = Memory()
    source = _filled(memory, 2)
    first, second = (each.managed_operator for each in source.subtasks if isinstance(each, SubtaskState))
    assert isinstance(first, OperatorStateHandle)
    assert isinstance(second, OperatorStateHandle)
    data = memory.bytes(first.delegate)
    memory.put("physical", b"others" + data + b"others")
    segment = FileSegment(6, len(data), 0, "physical", "logical")
    merged = MergedOperatorStateHandle(first.states, "t", "s", False, segment)
    inline = replace(second, delegate=InlineBytes("x", memory.bytes(second.delegate)))
    empty = MergedOperatorStateHandle((), "t", "s", True, EMPTY_SEGMENT)
    handles: tuple[OperatorHandle, ...] = (merged, inline, empty)
    subtasks = [SubtaskState(i, managed_operator=each) for i, each in enumerate(handles)]
    moved = memory.moved(operator(subtasks), 1)
    assert _given(memory, moved, "many") == [_numbered("many", 0, 10) + _numbered("many", 1, 11)]


def test_a_file_of_unknown_size_is_read_to_its_end() -> None:
    memory = Memory()
    source = _filled(memory, 1)
    (subtask,) = source.subtasks
    assert isinstance(subtask, SubtaskState)
    assert isinstance(subtask.managed_operator, OperatorStateHandle)
    unknown = replace(subtask.managed_operator, delegate=RelativeFile("old-0", -1))
    moved = memory.moved(operator([replace(subtask, managed_operator=unknown)]), 2)
    assert _given(memory, moved, "rules") == [[b"<the same rules for all>"]] * 2


def test_a_finished_subtask_has_nothing_to_give() -> None:
    memory = Memory()
    running = _filled(memory, 2)
    moved = memory.moved(replace(running, parallelism=3, subtasks=(*running.subtasks, FinishedSubtask(2))), 2)
    assert sum(map(len, _given(memory, moved, "many"))) == 21
    assert _given(memory, moved, "rules") == [[b"<the same rules for all>"]] * 2


def test_a_file_that_ends_too_early_is_not_a_shorter_state() -> None:
    memory = Memory()
    source = _filled(memory, 2)
    memory.files["old-1"] = memory.files["old-1"][:-30]  # all of the copy of a broadcast state, which nobody needs
    with pytest.raises(Corrupt, match="its bytes end where"):
        memory.moved(source, 1)


def test_an_offset_outside_of_the_file_is_corrupt() -> None:
    memory = Memory()
    handle = OperatorStateHandle((NamedState("a", SPLIT, Offsets.of([999])),), memory.put("old", head([("a", SPLIT)])))
    with pytest.raises(Corrupt, match="an element starts outside of its"):
        memory.moved(operator([SubtaskState(0, managed_operator=handle)]), 2)


def test_one_name_with_two_modes_is_corrupt() -> None:
    memory = Memory()
    subtasks = [
        SubtaskState(i, managed_operator=operator_handle(memory, f"o{i}", head([("a", SPLIT)]), {("a", mode): [b"x"]}))
        for i, mode in enumerate((SPLIT, UNION))
    ]
    with pytest.raises(CorruptMetadata, match="'a' is distributed in two ways"):
        memory.moved(operator(subtasks), 1)


def test_names_are_the_same_in_every_run_and_only_asked_subtasks_are_written() -> None:
    one, two = Memory(), Memory()
    whole = one.moved(_filled(one, 3), 4)
    part = redistribute(_filled(two, 3), 4, two.read, two.write, version=6, checkpoint_id=7, only=[2])
    assert part == whole[2:3]
    assert two.written == one.written[2:3]
    assert len(set(one.written)) == 4


def test_at_the_same_parallelism_nothing_is_read_or_written() -> None:
    memory = Memory()
    source = _filled(memory, 3)
    memory.files.clear()
    assert memory.moved(source, 3) == source.subtasks
    assert not memory.written
