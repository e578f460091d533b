"""Cursors into a sealed spill set: a place in a file for whoever stores it, a segment and an offset for whoever reads.

A cursor is never inside a segment's header. Between two segments it has one spelling only: the start of the next one
(at the end of the set: the start of the file after the last), so that equal positions are equal values.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdr_core.errors import Corrupt, Where
from cdr_core.spill.segments import HEADER, Segment, SpillSet


@dataclass(frozen=True, slots=True)
class Cursor:
    """What has been delivered: everything before ``offset`` of ``file``.

    ``gate`` and ``channel`` name the open segment, of which ``remaining`` bytes are left; ``None`` between segments.
    """

    file: int
    offset: int
    gate: int | None = None
    channel: int | None = None
    remaining: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """The next byte to deliver: ``offset`` within the body of ``segment``; the number of segments at the end."""

    segment: int
    offset: int = 0


def end_of(spill_set: SpillSet) -> Cursor:
    """Everything has been delivered."""
    return Cursor(len(spill_set.files), 0)


def cursor_at(spill_set: SpillSet, position: Position) -> Cursor:
    """The cursor of a position."""
    if position.segment >= len(spill_set.segments):
        return end_of(spill_set)
    segment = spill_set.segments[position.segment]
    if position.offset >= segment.length:
        return cursor_at(spill_set, Position(position.segment + 1))
    if position.offset == 0:
        return Cursor(segment.file, segment.offset)
    return Cursor(
        segment.file,
        segment.offset + HEADER.size + position.offset,
        segment.gate,
        segment.channel,
        segment.length - position.offset,
    )


def start_of(spill_set: SpillSet) -> Cursor:
    """Nothing has been delivered."""
    return cursor_at(spill_set, Position(0))


def position_of(spill_set: SpillSet, cursor: Cursor) -> Position:
    """The position of a cursor; one that does not fit the set is of another set, and an error."""
    # A walk, because segments are in the order of the drain, which need not be that of the files.
    for index, segment in enumerate(spill_set.segments):
        if _place(segment) == (cursor.file, cursor.offset):
            position = Position(index)
        elif _place(segment) < (cursor.file, cursor.offset) < _end(segment):
            position = Position(index, cursor.offset - segment.offset - HEADER.size)
        else:
            continue
        if position.offset >= 0 and cursor == cursor_at(spill_set, position):
            return position
    if cursor == end_of(spill_set):
        return Position(len(spill_set.segments))
    raise Corrupt(
        f"a cursor points to offset {cursor.offset} of file {cursor.file}, where the spill set has no such segment",
        where=Where(subtask=spill_set.subtask, gate=cursor.gate, channel=cursor.channel, offset=cursor.offset),
        hint="it belongs to another spill set",
    )


def _place(segment: Segment) -> tuple[int, int]:
    return segment.file, segment.offset


def _end(segment: Segment) -> tuple[int, int]:
    return segment.file, segment.offset + HEADER.size + segment.length
