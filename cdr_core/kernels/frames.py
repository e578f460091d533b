"""Frames of a virtual channel: finding them, and selecting, copying and gathering byte ranges.

A frame is ``i32 length`` and that many bytes, which are one stream element: a tag byte and its body. Nothing here knows
about types; nothing allocates per record.
"""

# mypy: disable-error-code="untyped-decorator, misc"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cdr_core.kernels.byte_copy import copy_bytes
from cdr_core.kernels.raw_memory import address_of, load_be32, load_be64, load_byte

TAG_RECORD_WITH_TIMESTAMP = 0
TAG_RECORD = 1
TAG_WATERMARK = 2
TAG_LATENCY_MARKER = 3
TAG_WATERMARK_STATUS = 4
TAG_RECORD_ATTRIBUTES = 5
TAG_INTERNAL_WATERMARK = 6
TAGS = 7

NO_TIMESTAMP = np.iinfo(np.int64).min
LENGTH_BYTES = 4
SMALLEST_FRAME = LENGTH_BYTES + 1

OK, FULL, BAD_LENGTH, BAD_TAG, BAD_ELEMENT, CUT_SHORT, BAD_STATUS, BAD_ATTRIBUTES = 0, 1, 2, 3, 4, 5, 6, 7
"""Results of a scan: input used up, output arrays full, or the first frame that is impossible."""

ACTIVE, IDLE = 0, -1
"""The values of a watermark status; Flink has no others."""

Memory = Any
"""An array of bytes, or its address."""

_FIXED_BODY = np.array([-1, -1, 9, 29, 5, 2, 13], dtype=np.int64)
"""Bytes of an element with its tag, where the kind fixes them; −1 = the value's own length."""


@njit(forceinline=True)
def check_element(data: Memory, start: int, tag: int, length: int) -> int:
    """Return whether an element with this tag can have this length and these contents."""
    if tag >= TAGS:
        return BAD_TAG
    fixed = _FIXED_BODY[tag]
    if (fixed >= 0 and length != fixed) or (tag == TAG_RECORD_WITH_TIMESTAMP and length < 9):
        return BAD_ELEMENT
    if tag == TAG_WATERMARK_STATUS and np.int32(load_be32(data, start + 1)) not in (ACTIVE, IDLE):
        return BAD_STATUS
    if tag == TAG_RECORD_ATTRIBUTES and load_byte(data, start + 1) > 1:
        return BAD_ATTRIBUTES
    return OK


@njit(cache=True, nogil=True)
def scan_frames(
    data: npt.NDArray[np.uint8],
    size: int,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    tags: npt.NDArray[np.int8],
    limit: int,
) -> tuple[int, int, int]:
    """Find whole frames in ``data[:size]``: element i is ``data[starts[i]:ends[i]]``, its length field 4 bytes before.

    Returns (frames, bytes used, how it ended). With OK the rest is the head of a frame that continues after ``size``.
    A frame that reaches beyond ``limit`` is cut short: the channel does not hold that many more bytes.
    """
    at = 0
    count = 0
    memory = address_of(data)
    while at + 4 <= size:
        length: Any = np.int64(np.int32(load_be32(memory, at)))
        if length < 1:
            return count, at, BAD_LENGTH
        if at + 4 + length > limit:
            return count, at, CUT_SHORT
        if at + 4 + length > size:
            break
        if count == starts.shape[0]:
            return count, at, FULL
        tag = load_byte(memory, at + 4)
        outcome = check_element(memory, at + 4, tag, length)
        if outcome != OK:
            return count, at, outcome
        starts[count] = at + 4
        ends[count] = at + 4 + length
        tags[count] = tag
        count += 1
        at += 4 + length
    return count, at, OK


@njit(cache=True, nogil=True)
def element_times(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    tags: npt.NDArray[np.int8],
    times: npt.NDArray[np.int64],
    values: npt.NDArray[np.int64],
) -> None:
    """Fill each element's timestamp (a record's or a watermark's, else NO_TIMESTAMP) and where its value starts."""
    for i in range(starts.shape[0]):
        tag = tags[i]
        if tag in (TAG_RECORD_WITH_TIMESTAMP, TAG_WATERMARK):
            times[i] = np.int64(load_be64(data, starts[i] + 1))
            values[i] = starts[i] + 9
        else:
            times[i] = NO_TIMESTAMP
            values[i] = starts[i] + 1


@njit(cache=True, nogil=True)
def copy_range(
    source: npt.NDArray[np.uint8],
    chunk_starts: npt.NDArray[np.int64],
    logical_starts: npt.NDArray[np.int64],
    begin: int,
    end: int,
    target: npt.NDArray[np.uint8],
    target_at: int,
) -> None:
    """Copy the logical bytes [begin, end) of chunks lying anywhere in ``source`` to ``target[target_at:]``.

    ``logical_starts`` has one entry more than ``chunk_starts``: chunk i holds [logical_starts[i], logical_starts[i+1]).
    """
    chunk = np.searchsorted(logical_starts, begin, side="right") - 1
    at = begin
    while at < end:
        upto = min(end, logical_starts[chunk + 1])
        count = upto - at
        if count > 0:
            source_at = chunk_starts[chunk] + (at - logical_starts[chunk])
            copy_bytes(target, target_at, source, source_at, count)
            target_at += count
            at = upto
        chunk += 1


@njit(cache=True, nogil=True)
def gather_runs(
    source: npt.NDArray[np.uint8],
    base: int,
    run_start: npt.NDArray[np.int64],
    run_end: npt.NDArray[np.int64],
    target: npt.NDArray[np.uint8],
) -> int:
    """Copy the runs, which lie in ``source`` (its first byte is logical ``base``), one after another; bytes copied."""
    at = 0
    for i in range(run_start.shape[0]):
        count = run_end[i] - run_start[i]
        begin = run_start[i] - base
        if count < 0 or begin < 0 or begin + count > source.shape[0] or at + count > target.shape[0]:
            raise ValueError("a run does not lie in its source, or does not fit its target")
        copy_bytes(target, at, source, begin, count)
        at += count
    return at


@njit(cache=True, nogil=True)
def gather_chunks(
    source: npt.NDArray[np.uint8],
    chunk_starts: npt.NDArray[np.int64],
    logical_starts: npt.NDArray[np.int64],
    first: int,
    run_start: npt.NDArray[np.int64],
    run_end: npt.NDArray[np.int64],
    target: npt.NDArray[np.uint8],
    at: int,
) -> int:
    """Copy runs, in ascending order, one after another to ``target[at:]``; where the last one ends there.

    As :func:`copy_range` for each of them, and the chunks, whose first byte is logical ``first``, are walked only once.
    """
    if run_start.shape[0] == 0:
        return at
    size = logical_starts[-1]
    chunk = max(np.searchsorted(logical_starts, run_start[0] - first, side="right") - 1, 0)
    upto, shift = logical_starts[chunk + 1], chunk_starts[chunk] - logical_starts[chunk]
    before = np.int64(0)
    for i in range(run_start.shape[0]):
        begin, end = run_start[i] - first, run_end[i] - first
        if begin < before or end < begin or end > size or at + end - begin > target.shape[0]:
            raise ValueError("a run does not lie in its source, or does not fit its target")
        before = end
        while begin < end:
            while upto <= begin:
                chunk += 1
                upto, shift = logical_starts[chunk + 1], chunk_starts[chunk] - logical_starts[chunk]
            count = min(end, upto) - begin
            copy_bytes(target, at, source, begin + shift, count)
            begin += count
            at += count
    return at


@njit(cache=True, nogil=True)
def expand_positions(
    run_position: npt.NDArray[np.int64], run_count: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
) -> None:
    """Store the position of every record of the runs, in order."""
    at = 0
    for i in range(run_position.shape[0]):
        for j in range(run_count[i]):
            positions[at] = run_position[i] + j
            at += 1
