"""Reading a sealed spill set in order, every segment checked against its CRC before anybody sees a record of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt

from cdr_core.errors import StorageError
from cdr_core.spill.segments import HEADER, POSITION_BYTES, Segment, SpillSet
from cdr_core.storage.local import LocalStorage

_LOST = "the source checkpoint is untouched: recover it to another target"


@dataclass(frozen=True, slots=True, eq=False)
class SegmentBody:
    """A segment with its body and the position of each of its records."""

    segment: Segment
    body: npt.NDArray[np.uint8]
    positions: npt.NDArray[np.int64]


def read_segments(spill_set: SpillSet) -> Iterator[SegmentBody]:
    """All segments in drain order. A truncated or altered file is an error: the spill is a cache and can be redone."""
    storage = LocalStorage()
    record = 0
    for segment in spill_set.segments:
        path = spill_set.files[segment.file].path
        data = storage.read(path, segment.offset, HEADER.size + segment.length)
        if HEADER.unpack_from(data) != (segment.gate, segment.channel, segment.length):
            raise StorageError(f"spill file {path} has another header at offset {segment.offset}", hint=_LOST)
        body = memoryview(data)[HEADER.size :]
        if google_crc32c.value(bytes(body)) != segment.crc32c:
            raise StorageError(f"spill file {path} is damaged at offset {segment.offset}", hint=_LOST)
        yield SegmentBody(segment, np.frombuffer(body, dtype=np.uint8), _positions(spill_set, record, segment.records))
        record += segment.records


def _positions(spill_set: SpillSet, first: int, count: int) -> npt.NDArray[np.int64]:
    if spill_set.positions is None or count == 0:
        return np.zeros(0, dtype=np.int64)
    data = LocalStorage().read(spill_set.positions, first * POSITION_BYTES, count * POSITION_BYTES)
    return np.frombuffer(data, dtype="<i8").astype(np.int64, copy=False)
