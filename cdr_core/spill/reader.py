"""Reading a sealed spill set, every segment checked against its CRC before anybody sees a record of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt

from cdr_core.errors import SpillLost, StorageError, Unreadable, Where
from cdr_core.spill.buffers import Buffers
from cdr_core.spill.segments import HEADER, POSITION_BYTES, Segment, SpillSet
from cdr_core.storage import is_local, storage_for
from cdr_core.storage.local import local_path, read_into

_REDO = "the spill is a cache and the source checkpoint is untouched: redo the spill of this subtask"

BLOCK = 128 * 1024
"""Records whose positions are fetched at once where they do not lie on a disk: 1 MiB."""

Bytes = npt.NDArray[np.uint8]

_BUFFERS = Buffers()
"""Of the process: a worker drains one set after another."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentBody:
    """A segment with its body and the position of each of its records."""

    segment: Segment
    body: Bytes
    positions: npt.NDArray[np.int64]


class Reader(Protocol):
    """Bodies of a set's segments by number."""

    def body(self, index: int) -> Bytes: ...


class SegmentReader:
    """Reads segments whole, in any order, and keeps no file open."""

    def __init__(self, spill_set: SpillSet) -> None:
        self._set = spill_set

    def body(self, index: int) -> Bytes:
        """The body of a segment, verified. Truncated, altered or missing bytes are :class:`SpillLost`, never fewer."""
        segment = self._set.segments[index]
        return read_segment(self._set.files[segment.file].path, segment, self._set.subtask, _BUFFERS)


def read_segment(path: str, segment: Segment, subtask: int, buffers: Buffers | None = None) -> Bytes:
    """The body of a segment in a file, verified; see :meth:`SegmentReader.body`."""
    where = Where(subtask=subtask, gate=segment.gate, channel=segment.channel, offset=segment.offset)
    try:
        data = _read(path, segment.offset, HEADER.size + segment.length, buffers)
    except (StorageError, Unreadable) as error:
        raise SpillLost(f"spill file {path} cannot be read: {error.what}", where=where, hint=_REDO) from error
    if HEADER.unpack_from(data.data) != (segment.gate, segment.channel, segment.length):
        raise SpillLost(f"spill file {path} has another header", where=where, hint=_REDO)
    found = data[HEADER.size :]
    if google_crc32c.value(found) != segment.crc32c:
        raise SpillLost(f"spill file {path} is damaged", where=where, hint=_REDO)
    return found


def _read(path: str, offset: int, size: int, buffers: Buffers | None) -> Bytes:
    """So many bytes, read-only."""
    if buffers is None or not is_local(path):
        return np.frombuffer(storage_for(path).read(path, offset, size), np.uint8)
    return buffers.filled(size, lambda target: read_into(local_path(path), offset, target))


def read_segments(spill_set: SpillSet) -> Iterator[SegmentBody]:
    """All segments in drain order, with the positions of their records."""
    reader = SegmentReader(spill_set)
    record = 0
    for index, segment in enumerate(spill_set.segments):
        body = reader.body(index)
        yield SegmentBody(segment, body, read_positions(spill_set, segment, record))
        record += segment.records


def read_positions(spill_set: SpillSet, segment: Segment, first: int) -> npt.NDArray[np.int64]:
    """The positions of a segment's records, of which the first is record ``first`` of the set; verified like a body."""
    path, count = spill_set.positions, segment.records
    if path is None or count == 0:
        return np.zeros(0, dtype=np.int64)
    where = Where(subtask=spill_set.subtask, gate=segment.gate, channel=segment.channel)
    try:
        if is_local(path):
            data = storage_for(path).read(path, first * POSITION_BYTES, count * POSITION_BYTES)
        else:
            data = _from_blocks(spill_set, first, count)
    except (StorageError, Unreadable) as error:
        raise SpillLost(f"spill file {path} cannot be read: {error.what}", where=where, hint=_REDO) from error
    if segment.positions_crc32c not in (None, google_crc32c.value(data)):
        raise SpillLost(f"spill file {path} is damaged", where=where, hint=_REDO)
    return np.frombuffer(data, dtype="<i8").astype(np.int64, copy=False)


def _from_blocks(spill_set: SpillSet, first: int, count: int) -> bytes:
    """Positions are asked for segment by segment, a few kilobytes each: a request for every one would be too dear."""
    assert spill_set.positions is not None
    numbers = range(first // BLOCK, (first + count - 1) // BLOCK + 1)
    records = sum(segment.records for segment in spill_set.segments)
    blocks = b"".join(_block(spill_set.positions, number, min(BLOCK, records - number * BLOCK)) for number in numbers)
    start = (first - numbers[0] * BLOCK) * POSITION_BYTES
    return blocks[start : start + count * POSITION_BYTES]


@lru_cache(maxsize=4)
def _block(uri: str, number: int, records: int) -> bytes:
    return storage_for(uri).read(uri, number * BLOCK * POSITION_BYTES, records * POSITION_BYTES)
