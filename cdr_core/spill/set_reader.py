"""Reading a sealed spill set, every segment checked against its CRC-32C before anything of it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt

from cdr_core.errors import CdrError, SpillLost, StorageError, Unreadable, Where
from cdr_core.kernels import frames
from cdr_core.spill.buffer_pool import Buffers
from cdr_core.spill.spill_set import RUN_BYTES, SpillSet
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


class SourceBytes(Protocol):
    """Reads virtual channels where they lie in the source."""

    def read(self, line: int, starts: Longs, ends: Longs, target: memoryview) -> None:
        """Fill the target with ranges of a line's channel, one behind another, or raise what is wrong with it."""

    def changed(self, line: int) -> CdrError:
        """The error for bytes that are not the ones that were selected."""


def read_segment(spill_set: SpillSet, number: int, source: SourceBytes, *, positions: bool = True) -> Segment:
    """A segment, every piece verified."""
    return as_segment(spill_set, number, read_body(spill_set, number, source), positions=positions)


def as_segment(spill_set: SpillSet, number: int, body: Bytes, *, positions: bool) -> Segment:
    """The segment with these bytes, which were verified."""
    pieces, columns = spill_set.pieces(number), spill_set.columns
    places = _positions(spill_set, number, pieces) if positions else np.zeros(0, np.int64)
    ends = np.cumsum(columns["piece_length"][pieces])
    return Segment(body, columns["line"][pieces], ends, columns["piece_elements"][pieces], places)


def read_body(spill_set: SpillSet, number: int, source: SourceBytes) -> Bytes:
    """The bytes of a segment. Truncated, altered or missing ones of the set are :class:`SpillLost`, never fewer; those
    of the source are its own error.
    """
    columns, mine = spill_set.columns, spill_set.references(number)
    ends = np.cumsum(columns["piece_length"][spill_set.pieces(number)])
    file, offset, length, crc32c = (int(columns[name][number]) for name in ("file", "offset", "length", "crc32c"))
    if mine.start == mine.stop:
        return _checked(spill_set, file, offset, length, crc32c)
    rows = columns["reference_piece"][mine] - spill_set.pieces(number).start
    lines = columns["line"][columns["reference_piece"][mine]].tolist()
    stretches = list(zip(np.append(0, ends)[rows].tolist(), ends[rows].tolist(), strict=True))
    borders = zip([0, *(end for _, end in stretches)], [*(begin for begin, _ in stretches), length], strict=True)
    gaps = [(begin, end) for begin, end in borders if begin < end]

    def fill(target: memoryview) -> None:
        if gaps:
            stored = _checked(spill_set, file, offset, sum(e - b for b, e in gaps), crc32c).data
            at = 0
            for begin, end in gaps:
                target[begin:end] = stored[at : at + end - begin]
                at += end - begin
        for row, line, (begin, end) in zip(range(mine.start, mine.stop), lines, stretches, strict=True):
            ranges = slice(int(columns["range_first"][row]), int(columns["range_first"][row + 1]))
            source.read(line, columns["range_start"][ranges], columns["range_end"][ranges], target[begin:end])
            if google_crc32c.value(np.frombuffer(target[begin:end], np.uint8)) != columns["reference_crc32c"][row]:
                raise source.changed(line)

    return _BUFFERS.filled(length, fill)


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
