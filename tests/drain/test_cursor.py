"""Cursors and what is left of a set: one spelling per position, back and forth; what does not fit is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdr_core.drain.remaining import Remaining, Slice, merged, whole
from cdr_core.errors import Corrupt, Refused
from cdr_core.spill.cursor import Cursor, Position, cursor_at, end_of, position_of, start_of
from cdr_core.spill.segments import HEADER
from tests.drain.support import Part, bodies, frame, memory_set

SET: list[Part] = [(0, 1, frame(b"ab")), (2, 0, frame(b"c")), (0, 1, frame(b"defgh")), (0, 0, frame(b""))]


@pytest.mark.parametrize("file_size", [1, 20, 1000])
def test_every_position_has_one_cursor_and_comes_back(file_size: int) -> None:
    spill_set = memory_set(SET, file_size)
    seen = set()
    for index, segment in enumerate(spill_set.segments):
        for offset in range(segment.length):
            cursor = cursor_at(spill_set, Position(index, offset))
            assert position_of(spill_set, cursor) == Position(index, offset)
            assert (cursor.remaining == segment.length - offset) == (offset > 0)
            seen.add(cursor)
        assert cursor_at(spill_set, Position(index, segment.length)) == cursor_at(spill_set, Position(index + 1))
    assert len(seen) == sum(segment.length for segment in spill_set.segments)
    assert position_of(spill_set, end_of(spill_set)) == Position(len(SET))
    assert position_of(spill_set, start_of(spill_set)) == Position(0)


def test_a_set_whose_files_are_not_in_drain_order_has_a_start_of_its_own() -> None:
    """Where the first segment to drain lies in the second file, the start is not byte 0 of the first."""
    spill_set = memory_set(SET, 1)
    turned = replace(spill_set, segments=spill_set.segments[::-1])
    assert position_of(turned, start_of(turned)) == Position(0)
    assert position_of(turned, Cursor(0, 0)) == Position(len(SET) - 1)


@pytest.mark.parametrize(
    "wrong",
    [
        Cursor(0, 3),
        Cursor(0, 5, 0, 1, 4),
        Cursor(7, 0),
        Cursor(0, HEADER.size + 2, 0, 0, 4),
        Cursor(0, HEADER.size + 2, 0, 1, 3),
        Cursor(0, HEADER.size, 0, 1, 6),
        Cursor(0, HEADER.size + 2),
        Cursor(0, 0, 0, 1, 6),
    ],
)
def test_a_cursor_of_another_set_is_refused(wrong: Cursor) -> None:
    """E11, E23: inside a header, in another channel, with another rest, behind the end."""
    with pytest.raises(Corrupt, match="another spill set"):
        position_of(memory_set(SET), wrong)


@pytest.mark.parametrize("wrong", [Slice(4, 0, 1), Slice(-1, 0, 1), Slice(0, 3, 4), Slice(0, -1, 2), Slice(0, 2, -1)])
def test_a_slice_outside_the_set_is_refused(wrong: Slice) -> None:
    spill_set = memory_set(SET)
    with pytest.raises(Corrupt, match="another spill set"):
        list(Remaining((wrong,), end_of(spill_set)).parts(spill_set))


def test_what_is_left_survives_being_stored() -> None:
    """E60: the version is in it, and another one is refused."""
    spill_set = memory_set(SET)
    remaining = Remaining((Slice(0, 2, 3),), cursor_at(spill_set, Position(2, 4)))
    stored = remaining.to_json()
    assert Remaining.from_json(stored) == remaining
    with pytest.raises(Refused, match="version 99"):
        Remaining.from_json({**stored, "version": 99})


def test_the_whole_set_is_every_byte_once() -> None:
    spill_set = memory_set(SET)
    assert list(whole(spill_set).parts(spill_set)) == [Slice(i, 0, len(b)) for i, b in enumerate(bodies(SET))]
    assert whole(spill_set).bytes(spill_set) == sum(len(body) for body in bodies(SET))
    empty = memory_set([])
    assert list(whole(empty).parts(empty)) == []


def test_neighbouring_slices_are_joined_and_others_are_not() -> None:
    parts = [Slice(0, 0, 2), Slice(0, 2, 3), Slice(0, 5, 0), Slice(1, 0, 1), Slice(0, 6, 1)]
    assert merged(parts) == (Slice(0, 0, 5), Slice(1, 0, 1), Slice(0, 6, 1))
