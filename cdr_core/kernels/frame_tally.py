"""Frames that are found and fingerprinted in one pass: for bytes that are read once and then released.

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

from cdr_core.kernels.fingerprint import LONG_RECORD, add_record, hash_two, hash_words
from cdr_core.kernels.frames import (
    LENGTH_BYTES,
    OK,
    TAG_RECORD,
    TAG_WATERMARK,
    TAG_WATERMARK_STATUS,
    check_element,
)
from cdr_core.kernels.raw_memory import address_of, load_be32, load_byte

NONE = -1

Memory = Any
"""The address of bytes, inside a kernel."""


@njit(forceinline=True)
def _end_of(data: Memory, at: int, size: int) -> int:
    """Return where the frame at ``at`` ends; NONE where there is no whole frame that can be one. As `scan_frames`
    decides.
    """
    if at + LENGTH_BYTES > size:
        return NONE
    length: Any = np.int64(np.int32(load_be32(data, at)))
    start = at + LENGTH_BYTES
    if length < 1 or start + length > size:
        return NONE
    return start + length if check_element(data, start, load_byte(data, start), length) == OK else NONE


@njit(cache=True, nogil=True)
def tally_frames(
    data: npt.NDArray[np.uint8], size: int, most: int, sums: npt.NDArray[np.uint64], kinds: npt.NDArray[np.int64]
) -> tuple[int, int, int, int]:
    """Fold the whole frames at the head of ``data[:size]``, at most so many: what `scan_frames` finds and
    `fold_elements` adds.

    Returns (elements, bytes they take, where the last watermark begins, where the last watermark status begins): of
    these the element, not its length field; NONE where there is none. Callers that want all bytes compare the second.
    """
    memory, row = address_of(data), address_of(sums)
    at, count, watermark, status = 0, 0, NONE, NONE
    end = _end_of(memory, 0, size)
    while end >= 0 and count < most:
        start, tag = at + LENGTH_BYTES, load_byte(memory, at + LENGTH_BYTES)
        at, end = end, _end_of(memory, end, size)
        count += 1
        kinds[tag] += 1
        if tag > TAG_RECORD:
            if tag == TAG_WATERMARK:
                watermark = start
            elif tag == TAG_WATERMARK_STATUS:
                status = start
        elif (
            count < most
            and min(end - at - LENGTH_BYTES, at - start) >= LONG_RECORD  # of no frame the end is negative
            and load_byte(memory, at + LENGTH_BYTES) <= TAG_RECORD
        ):
            following = at + LENGTH_BYTES
            first, second, third, fourth = hash_two(memory, start, at, following, end)
            add_record(row, first, second, at - start)
            add_record(row, third, fourth, end - following)
            kinds[load_byte(memory, following)] += 1
            count += 1
            at, end = end, _end_of(memory, end, size)
        else:
            first, second = hash_words(memory, start, at)
            add_record(row, first, second, at - start)
    return count, at, watermark, status
