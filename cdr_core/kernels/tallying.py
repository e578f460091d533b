"""Frames that are found and fingerprinted in one pass: for bytes that are looked at once and then let go.

Two passes would read a record's head, wait for memory, go on to the next one, and come back for the rest later. In one
pass the bytes are read in order, so that the processor fetches them before they are needed, and no list of places is
made.
"""

# mypy: disable-error-code="untyped-decorator, misc"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cdr_core.kernels.fingerprint import _LONG, _hash_two, add_record, hash_words
from cdr_core.kernels.frames import (
    _FIXED_BODY,
    ACTIVE,
    IDLE,
    LENGTH_BYTES,
    TAG_RECORD,
    TAG_RECORD_ATTRIBUTES,
    TAG_RECORD_WITH_TIMESTAMP,
    TAG_WATERMARK,
    TAG_WATERMARK_STATUS,
    TAGS,
)
from cdr_core.kernels.memory import load_be32

NONE = -1


@njit(forceinline=True)
def _is_other(data: npt.NDArray[np.uint8], at: int, length: int) -> bool:
    """Whether an element that is no record can be one: its kind is known, and its body what that kind has."""
    tag = data[at + 4]
    if tag >= TAGS or length != _FIXED_BODY[tag]:
        return False
    if tag == TAG_WATERMARK_STATUS:
        return np.int32(load_be32(data, at + 5)) in (ACTIVE, IDLE)
    return tag != TAG_RECORD_ATTRIBUTES or data[at + 5] <= 1


@njit(forceinline=True)
def _end_of(data: npt.NDArray[np.uint8], at: int, size: int) -> int:
    """Where the frame at ``at`` ends; NONE where there is no whole frame that can be one. As `scan_frames` decides."""
    if at + LENGTH_BYTES > size:
        return NONE
    length: Any = np.int64(np.int32(load_be32(data, at)))
    if length < 1 or at + LENGTH_BYTES + length > size:
        return NONE
    if data[at + 4] > TAG_RECORD:
        return at + LENGTH_BYTES + length if _is_other(data, at, length) else NONE
    return NONE if data[at + 4] == TAG_RECORD_WITH_TIMESTAMP and length < 9 else at + LENGTH_BYTES + length


@njit(cache=True, nogil=True)
def tally_frames(
    data: npt.NDArray[np.uint8], size: int, most: int, sums: npt.NDArray[np.uint64], kinds: npt.NDArray[np.int64]
) -> tuple[int, int, int, int]:
    """Fold the whole frames at the head of ``data[:size]``, at most so many: what `scan_frames` finds and
    `fold_elements` adds.

    Returns (elements, bytes they take, where the last watermark begins, where the last watermark status begins): of
    these the element, not its length field; NONE where there is none. Who wants all of the bytes compares the second.
    """
    at, count, watermark, status = 0, 0, NONE, NONE
    end = _end_of(data, 0, size)
    while end >= 0 and count < most:
        start, tag = at + LENGTH_BYTES, data[at + LENGTH_BYTES]
        at, end = end, _end_of(data, end, size)
        count += 1
        kinds[tag] += 1
        if tag > TAG_RECORD:
            if tag == TAG_WATERMARK:
                watermark = start
            elif tag == TAG_WATERMARK_STATUS:
                status = start
        elif (
            count < most
            and min(end - at - LENGTH_BYTES, at - start) >= _LONG  # of no frame the end is negative
            and data[at + LENGTH_BYTES] <= TAG_RECORD
        ):
            following = at + LENGTH_BYTES
            first, second, third, fourth = _hash_two(data, start, at, following, end)
            add_record(sums, 0, first, second, at - start)
            add_record(sums, 0, third, fourth, end - following)
            kinds[data[following]] += 1
            count += 1
            at, end = end, _end_of(data, end, size)
        else:
            first, second = hash_words(data, start, at)
            add_record(sums, 0, first, second, at - start)
    return count, at, watermark, status
