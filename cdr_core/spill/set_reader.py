"""Reading a sealed spill set, every segment checked against its CRC-32C before anything of it is used."""

from __future__ import annotations

from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt

from cdr_core.errors import SpillLost, StorageError, Unreadable, Where
from cdr_core.kernels import frames
from cdr_core.spill.buffers import Buffers
from cdr_core.spill.sets import RUN_BYTES, SpillSet
from cdr_core.storage import is_local, storage_for
from cdr_core.storage.local import local_path, read_into

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_REDO = "the spill is a cache and the source checkpoint is untouched: redo the spill of this subtask"
_BUFFERS = Buffers()
"""Of the process: a worker drains one set after another."""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """The elements of a segment: its bytes and, piece by piece, whose they are.

    ``lines`` and ``ends`` (in the bytes) are per piece, ``elements`` how many each has; ``positions`` are per element.
    """

    body: Bytes
    lines: Longs
    ends: Longs
    elements: Longs
    positions: Longs


def read_segment(spill_set: SpillSet, number: int, *, positions: bool = True) -> Segment:
    """A segment, verified. Truncated, altered or missing bytes are :class:`SpillLost`, never fewer."""
    pieces = spill_set.pieces(number)
    columns = spill_set.columns
    places = _positions(spill_set, number, pieces) if positions else np.zeros(0, np.int64)
    ends = np.cumsum(columns["piece_length"][pieces])
    return Segment(_body(spill_set, number), columns["line"][pieces], ends, columns["piece_elements"][pieces], places)


def _body(spill_set: SpillSet, number: int) -> Bytes:
    place = (int(spill_set.columns[name][number]) for name in ("file", "offset", "length", "crc32c"))
    return _checked(spill_set, *place)


def _positions(spill_set: SpillSet, number: int, pieces: slice) -> Longs:
    """The position of every element of a segment, in order."""
    mine, elements = spill_set.runs_of(pieces), spill_set.columns["piece_elements"][pieces]
    if spill_set.runs is not None:
        position, count = (column[mine] for column in spill_set.runs)
    else:
        length, crc32c = RUN_BYTES * (mine.stop - mine.start), int(spill_set.columns["runs_crc32c"][number])
        data = _checked(spill_set, len(spill_set.files) - 1, RUN_BYTES * mine.start, length, crc32c)
        position, count = np.frombuffer(data, "<i8").astype(np.int64, copy=False).reshape(2, -1)
    if int(count.sum()) != int(elements.sum()):
        raise SpillLost("positions do not add up", where=Where(subtask=spill_set.subtask), hint=_REDO)
    found = np.empty(int(count.sum()), np.int64)
    frames.expand_positions(position, count, found)
    return found


def _checked(spill_set: SpillSet, file: int, offset: int, length: int, crc32c: int) -> Bytes:
    path = spill_set.files[file].path
    where = Where(subtask=spill_set.subtask, offset=offset)
    try:
        data = _read(path, offset, length)
    except (StorageError, Unreadable) as error:
        raise SpillLost(f"spill file {path} cannot be read: {error.what}", where=where, hint=_REDO) from error
    if google_crc32c.value(data) != crc32c:
        raise SpillLost(f"spill file {path} is damaged", where=where, hint=_REDO)
    return data


def _read(path: str, offset: int, size: int) -> Bytes:
    """So many bytes, read-only."""
    if not is_local(path):
        return np.frombuffer(storage_for(path).read(path, offset, size), np.uint8)
    return _BUFFERS.filled(size, lambda target: read_into(local_path(path), offset, target))
