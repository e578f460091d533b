"""Reading and writing the bytes of state, by functions that the caller passes in."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from cdr_core.errors import Corrupt, CorruptMetadata, Where
from cdr_core.flink.metadata import (
    AbsoluteFile,
    EmptySegment,
    FileSegment,
    InlineBytes,
    KeyGroupStream,
    RelativeFile,
    StreamHandle,
)

_NAMES: Final = uuid.UUID("2b1f5c8e-6f0d-5b0e-9a39-5c1d9cf0a7d4")

CHUNK: Final = 1 << 20
"""Bytes in memory at a time, whatever the size of the state."""

LEAVE_TO_FLINK: Final = "re-write it at the same parallelism and let Flink rescale when it restores"
"""The hint for state that only Flink can divide."""

COMPLETE: Final = "use a checkpoint that is complete, or recover to a table"
"""The hint where bytes of state are missing: in-flight records do not need them."""

StateFile = RelativeFile | AbsoluteFile | FileSegment
"""A handle whose bytes are outside ``_metadata``."""

Positions = npt.NDArray[np.int64]


class Read(Protocol):
    """Reads state. ``offset`` counts from the handle's first byte, which of a segment is not the file's.

    Returns ``length`` bytes, fewer only where the handle's bytes end.
    """

    def __call__(self, handle: StateFile, offset: int, length: int) -> bytes: ...


class Write(Protocol):
    """Stores bytes under a name that no other piece of state has, and returns where they are: inline or in a file.

    The name is the same whenever the same state is distributed in the same way. An inline handle must carry it: Flink
    identifies inline handles by their names.
    """

    def __call__(self, name: str, chunks: Iterable[bytes]) -> StreamHandle: ...


class Stream:
    """The bytes behind one handle, wherever they are."""

    def __init__(self, handle: StreamHandle | None, read: Read, where: Where) -> None:
        self._read = read
        self._where = where
        self._handle = self._stored(handle)
        self._size: int | None = None

    @property
    def size(self) -> int:
        """Return the number of bytes in all. A file whose size Flink could not tell is read once to find out."""
        if self._size is None:
            self._size = self._measure()
        return self._size

    def all(self, start: int, end: int) -> bytes:
        """Return these bytes, all in memory: for bytes that are known to be few."""
        return b"".join(self.chunks(start, end))

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the same, a chunk at a time. Fewer bytes than requested are an error, never a shorter state."""
        while start < end:
            chunk = self._at(start, min(CHUNK, end - start))
            if not chunk:
                raise self.corrupt(f"its bytes end where {end - start} more are needed", start)
            start += len(chunk)
            yield chunk

    def corrupt(self, what: str, offset: int | None = None) -> Corrupt:
        where = Where(operator=self._where.operator, subtask=self._where.subtask, offset=offset)
        return Corrupt(f"state in {_name(self._handle)}: {what}", where=where, hint="take another checkpoint")

    def _stored(self, handle: StreamHandle | None) -> InlineBytes | StateFile:
        if isinstance(handle, KeyGroupStream):
            return self._stored(handle.delegate)
        if handle is None:
            raise CorruptMetadata("a state handle names no stream", where=self._where)
        return InlineBytes("", b"") if isinstance(handle, EmptySegment) else handle

    def _at(self, offset: int, length: int) -> bytes:
        if isinstance(self._handle, InlineBytes):
            return self._handle.data[offset : offset + length]
        return self._read(self._handle, offset, length)

    def _measure(self) -> int:
        match self._handle:
            case InlineBytes():
                return len(self._handle.data)
            case FileSegment():
                return self._handle.length
        if self._handle.size >= 0:
            return self._handle.size
        size = 0
        while chunk := self._at(size, CHUNK):
            size += len(chunk)
        return size


def ends_of(starts: Positions, borders: Positions) -> Positions:
    """Return the end of each part: the next border behind its start. The last of the borders is the end of
    the bytes.
    """
    ends: Positions = borders[np.searchsorted(borders, starts, side="right").clip(max=len(borders) - 1)]
    return ends


def runs(starts: Positions, ends: Positions) -> Iterator[tuple[int, int]]:
    """Yield the same bytes in the same order, with adjacent ranges joined."""
    if not len(starts):
        return
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    for first, last in zip((0, *breaks), (*breaks, len(starts)), strict=True):
        yield int(starts[first]), int(ends[last - 1])


def _name(handle: InlineBytes | StateFile) -> str:
    return f"_metadata ({handle.name})" if isinstance(handle, InlineBytes) else handle.path


def name_of(operator_id: str, kind: str, index: int, parallelism: int) -> str:
    """Return a UUID as a file name, like Flink's; the same whenever the same state is distributed in the same way."""
    return str(uuid.uuid5(_NAMES, f"{operator_id}/{kind}/{index}/{parallelism}"))
