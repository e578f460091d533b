"""Channel-state handles of ``_metadata``: where they end, what they hold as columns, and finding a channel in these.

These kernels handle the common case only. In doubt they return DOUBT, and the caller uses the reader of
``flink/metadata``, which decides and words the error.
"""

# mypy: disable-error-code="untyped-decorator, misc, no-any-return"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from cdr_core.kernels.raw_memory import address_of, load_be16, load_be32, load_be64, load_byte

DOUBT = -1
"""Returned in place of a position: the reader of ``flink/metadata`` has to decide."""

ROWS, OFFSETS, RUNS = 0, 1, 2
"""Places in ``totals``."""

_NULL, _INLINE, _ABSOLUTE, _RELATIVE, _SEGMENT, _EMPTY = 0, 1, 2, 6, 15, 16
_SINGLE_HEAD = 12
_PART_HEAD = 16
_HELD_TIMES, _HELD_MORE = 4, 1024
"""A decoded handle takes at most this many times its bytes of memory, and this many bytes more."""

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


class Filled(NamedTuple):
    """The columns that :func:`fill_columns` fills. The rows of ``numbers`` are subtask, a, b, and the run of the
    handle's stream.

    Channel i lists ``offsets[first[i]:first[i + 1]]``. A run is a sequence of handles with the same stream; ``streams``
    has the begin and the end of its bytes. ``totals`` begins with zeros.
    """

    numbers: Ints
    sizes: Longs
    first: Longs
    offsets: Longs
    unsorted: npt.NDArray[np.bool_]
    streams: Longs
    totals: Longs


@njit(cache=True, nogil=True)
def end_of_handles(
    data: Bytes, at: int, count: int, single: int, merged: int, tagged: bool, room: int, totals: Longs
) -> int:
    """Return the position behind ``count`` handles from ``at`` on, or DOUBT; ``single`` and ``merged`` are their legal
    tags.

    Adds to ``totals`` how many channels and offsets they have. In DOUBT where decoding one could take more than
    ``room`` bytes of memory.
    """
    memory, end = address_of(data), np.int64(data.shape[0])
    for _ in range(count):
        start = at
        tag = single
        if tagged:
            if at >= end:
                return DOUBT
            tag = np.int64(load_byte(memory, at))
            at += 1
        if tag == merged:
            at = _end_of_merged(memory, at, end, totals)
        elif tag == single:
            at = _end_of_single(memory, at, end, totals)
        else:
            return DOUBT
        if at < 0 or _HELD_TIMES * (at - start) + _HELD_MORE > room:
            return DOUBT
    return at


@njit(cache=True, nogil=True)
def end_of_parts(data: Bytes, at: int, count: int, room: int) -> int:
    """Return the position behind ``count`` channels of a merged handle, or DOUBT, as :func:`end_of_handles`."""
    end = _end_of_parts(address_of(data), at, np.int64(data.shape[0]), count, np.zeros(2, np.int64))
    return end if _HELD_TIMES * (end - at) + _HELD_MORE <= room else DOUBT


@njit(cache=True, nogil=True)
def add_tags(data: Bytes, at: int, count: int, tag: int, tagged: Bytes) -> None:
    """Copy ``count`` untagged single handles, which :func:`end_of_handles` has passed, each behind its tag."""
    memory, end = address_of(data), np.int64(data.shape[0])
    totals, to = np.zeros(2, np.int64), 0
    for _ in range(count):
        stop = _end_of_single(memory, at, end, totals)
        tagged[to] = tag
        tagged[to + 1 : to + 1 + stop - at] = data[at:stop]
        to += 1 + stop - at
        at = stop


@njit(cache=True, nogil=True)
def remove_tags(tagged: Bytes, count: int, tag: int, data: Bytes) -> bool:
    """Undo :func:`add_tags`; return False, with ``data`` undefined, where a handle has another tag."""
    memory, end, at, to = address_of(tagged), np.int64(tagged.shape[0]), np.int64(0), np.int64(0)
    totals = np.zeros(2, np.int64)
    for _ in range(count):
        if at >= end or np.int64(load_byte(memory, at)) != tag:
            return False
        stop = _end_of_single(memory, at + 1, end, totals)
        if stop < 0:
            return False
        data[to : to + stop - at - 1] = tagged[at + 1 : stop]
        to += stop - at - 1
        at = stop
    return at == end


@njit(cache=True, nogil=True)
def fill_columns(data: Bytes, counts: Longs, indexes: Ints, merged: int, filled: Filled) -> bool:
    """Fill the columns with tagged handles of several subtasks, which :func:`end_of_handles` has passed. Return False
    in doubt.

    Subtask i has ``counts[i]`` handles and should have the index ``indexes[i]``.
    """
    memory, end, at = address_of(data), np.int64(data.shape[0]), np.int64(0)
    for number in range(counts.shape[0]):
        for _ in range(counts[number]):
            is_merged, single = np.int64(load_byte(memory, at)) == merged, at + 1 + _SINGLE_HEAD
            begin = at + 13 if is_merged else _end_of_offsets(memory, single, end) + 8
            stop = _end_of_stream(memory, begin, end)
            if _i32(memory, at + 1) != indexes[number] or load_byte(memory, begin) == _NULL:
                return False
            run = _note_stream(memory, begin, stop, filled)
            if not is_merged:
                if not _note_row(memory, at + 5, single, begin - 8, indexes[number], run, filled):
                    return False
                at = stop
                continue
            at = stop + 8
            for _ in range(_i32(memory, stop + 4)):
                if not _note_row(memory, at, at + _PART_HEAD, at + 8, indexes[number], run, filled):
                    return False
                at = _end_of_offsets(memory, at + _PART_HEAD, end)
    return True


@njit(cache=True, nogil=True)
def ascends(subtask: Ints, a: Ints, b: Ints) -> bool:
    """Return whether every (subtask, a, b) is greater than the one before it."""
    row, count = 1, subtask.shape[0]
    while row < count and _less(subtask, a, b, row - 1, subtask[row], a[row], b[row]):
        row += 1
    return row >= count


@njit(cache=True, nogil=True)
def find_rows(subtask: Ints, a: Ints, b: Ints, asked: Ints, rows: Longs) -> None:
    """Store the row of each wanted (subtask, a, b) in columns that ascend, -1 where there is none."""
    count, low = subtask.shape[0], 0
    for i in range(asked.shape[1]):
        s, x, y = asked[0, i], asked[1, i], asked[2, i]
        high = count
        if low >= count or not _same(subtask, a, b, low, s, x, y):  # callers mostly ask in order
            low = 0
            while low < high:
                middle = (low + high) // 2
                if _less(subtask, a, b, middle, s, x, y):
                    low = middle + 1
                else:
                    high = middle
        rows[i] = low if low < count and _same(subtask, a, b, low, s, x, y) else -1
        low = rows[i] + 1 if rows[i] >= 0 else low


@njit(forceinline=True)
def _less(subtask: Ints, a: Ints, b: Ints, row: int, s: int, x: int, y: int) -> bool:
    if subtask[row] != s:
        return subtask[row] < s
    return b[row] < y if a[row] == x else a[row] < x


@njit(forceinline=True)
def _same(subtask: Ints, a: Ints, b: Ints, row: int, s: int, x: int, y: int) -> bool:
    return subtask[row] == s and a[row] == x and b[row] == y


@njit(forceinline=True)
def _i32(memory: int, at: int) -> int:
    return np.int64(np.int32(load_be32(memory, at)))


@njit(nogil=True)
def _end_of_text(memory: int, at: int, end: int) -> int:
    """Return the end of a text; only ASCII without zeros is accepted, which every encoding writes alike."""
    if end - at < 2:
        return DOUBT
    length = np.int64(load_be16(memory, at))
    at += 2
    if length > end - at:
        return DOUBT
    for place in range(at, at + length):
        if not 0 < load_byte(memory, place) < 128:
            return DOUBT
    return at + length


@njit(nogil=True)
def _end_of_stream(memory: int, at: int, end: int) -> int:
    if at >= end:
        return DOUBT
    tag = load_byte(memory, at)
    at += 1
    if tag in (_NULL, _EMPTY):
        return at
    if tag == _RELATIVE:
        at = _end_of_text(memory, at, end)
        return at + 8 if 0 <= at <= end - 8 else DOUBT
    if tag == _ABSOLUTE:
        return _end_of_text(memory, at + 8, end)
    if tag == _INLINE:
        at = _end_of_text(memory, at, end)
        if at < 0 or end - at < 4:
            return DOUBT
        length = _i32(memory, at)
        return at + 4 + length if 0 <= length <= end - at - 4 else DOUBT
    if tag == _SEGMENT and end - at >= 20:
        if load_byte(memory, at) > 127 or load_byte(memory, at + 8) > 127 or load_be32(memory, at + 16) > 1:
            return DOUBT
        at = _end_of_text(memory, at + 20, end)
        return _end_of_text(memory, at, end) if at >= 0 else DOUBT
    return DOUBT


@njit(nogil=True)
def _end_of_offsets(memory: int, at: int, end: int) -> int:
    if end - at < 4:
        return DOUBT
    count = _i32(memory, at)
    return at + 4 + 8 * count if 0 <= 8 * count <= end - at - 4 else DOUBT


@njit(nogil=True)
def _end_of_single(memory: int, at: int, end: int, totals: Longs) -> int:
    listed = at + _SINGLE_HEAD
    at = _end_of_offsets(memory, listed, end)
    if at < 0 or end - at < 8:
        return DOUBT
    totals[ROWS] += 1
    totals[OFFSETS] += _i32(memory, listed)
    return _end_of_stream(memory, at + 8, end)


@njit(nogil=True)
def _end_of_merged(memory: int, at: int, end: int, totals: Longs) -> int:
    at = _end_of_stream(memory, at + 12, end)
    if at < 0 or end - at < 8:
        return DOUBT
    length, count = _i32(memory, at), _i32(memory, at + 4)
    if count < 0:
        return DOUBT
    stop = _end_of_parts(memory, at + 8, end, count, totals)
    return stop if stop == at + 4 + length else DOUBT


@njit(nogil=True)
def _end_of_parts(memory: int, at: int, end: int, count: int, totals: Longs) -> int:
    for _ in range(count):
        listed = at + _PART_HEAD
        at = _end_of_offsets(memory, listed, end)
        if at < 0:
            return DOUBT
        totals[ROWS] += 1
        totals[OFFSETS] += _i32(memory, listed)
    return at


@njit(nogil=True)
def _note_stream(memory: int, begin: int, stop: int, filled: Filled) -> int:
    """Return the number of the run that a handle with this stream belongs to; neighbours mostly have the same."""
    run, streams = filled.totals[RUNS], filled.streams
    if run and streams[1, run - 1] - streams[0, run - 1] == stop - begin:
        last, same = streams[0, run - 1], True
        for i in range(stop - begin):
            same &= load_byte(memory, last + i) == load_byte(memory, begin + i)
        if same:
            return run - 1
    streams[0, run], streams[1, run] = begin, stop
    filled.totals[RUNS] = run + 1
    return run


@njit(nogil=True)
def _note_row(memory: int, at: int, listed: int, size_at: int, subtask: int, run: int, filled: Filled) -> bool:
    """Store one channel, whose (a, b), offsets and size are at these places; return False where an index is
    negative.
    """
    row, to = filled.totals[ROWS], filled.totals[OFFSETS]
    a, b, count = _i32(memory, at), _i32(memory, at + 4), _i32(memory, listed)
    numbers, offsets = filled.numbers, filled.offsets
    numbers[0, row], numbers[1, row], numbers[2, row], numbers[3, row] = subtask, a, b, run
    filled.sizes[row] = np.int64(load_be64(memory, size_at))
    for i in range(count):
        offsets[to + i] = np.int64(load_be64(memory, listed + 4 + 8 * i))
        if i and offsets[to + i] <= offsets[to + i - 1]:
            filled.unsorted[row] = True
    filled.totals[ROWS], filled.totals[OFFSETS] = row + 1, to + count
    filled.first[row + 1] = to + count
    return a >= 0 and b >= 0
