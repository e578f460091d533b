"""Channel state on S3: the cells of every object, and the fetched ones, each fetched once to a local disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cdr_core.channels.fetch_ranges import CELL, EXACT, LONGEST_GAP, Cells, Extent, Longs, cells_of, requests
from cdr_core.channels.source_index import SourceObject, index_of, source_changed
from cdr_core.errors import Unreadable, Where
from cdr_core.flink.checkpoint import Checkpoint, FileLocation
from cdr_core.flink.metadata import OperatorState, Side
from cdr_core.flink.partial_stream import Spans
from cdr_core.storage import storage_for
from cdr_core.storage.mapped_arena import Arena

AT_ONCE = 4
"""Concurrent requests for one channel: hides their latency, and limits the bytes that wait to be stored."""


COMPLETE = "use a checkpoint that is complete"


def is_remote(uri: str) -> bool:
    """Return whether bytes have to be fetched before they can be read."""
    return uri.startswith("s3://")


class RemoteState:
    """All channel state of a checkpoint that is not on this host, by object; nothing of it is read here."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._sha256 = checkpoint.sha256
        self._streams: dict[str, list[tuple[FileLocation, Longs]]] = {}
        for location, chunks in _remote_streams(checkpoint):
            self._streams.setdefault(location.uri, []).append((location, chunks))

    def stat(self, uri: str) -> SourceObject:
        """Return an object as `read` found it, else as it is."""
        known = index_of(self._sha256).objects.get(uri)
        if known is not None:
            return known
        found = storage_for(uri).stat(uri)
        return SourceObject(found.size, found.tag)

    def cells(self, uri: str, found: SourceObject, cell: int = CELL) -> Cells:
        """Return the cells of an object, as far as it goes: it may be shorter than its handles state."""
        extents = (
            Extent(location.base, location.base + stream_size(location, found.size), chunks + location.base)
            for location, chunks in self._streams[uri]
        )
        return cells_of(extents, cell)


def _remote_streams(checkpoint: Checkpoint) -> Iterator[tuple[FileLocation, Longs]]:
    for operator in checkpoint.metadata.operators:
        for side in Side:
            for stream, chunks in checkpoint.columns(operator, side).by_stream():
                location = checkpoint.resolve(stream)
                if isinstance(location, FileLocation) and is_remote(location.uri):
                    yield location, chunks


def state_files(checkpoint: Checkpoint, operator: OperatorState) -> list[str]:
    """Return the addresses of the files that hold channel state of an operator, each once, in order."""
    streams = [stream for side in Side for stream in checkpoint.columns(operator, side).streams]
    locations = [checkpoint.resolve(stream) for stream in streams]
    return list(dict.fromkeys(each.uri for each in locations if isinstance(each, FileLocation)))


def stream_size(location: FileLocation, size: int) -> int:
    """Return the number of existing bytes of a stream in an object of this size."""
    there = max(size - location.base, 0)
    return there if location.length is None else min(location.length, there)


def is_short(location: FileLocation, there: int) -> bool:
    """Return whether a stream should have more bytes than are there."""
    return location.length is not None and there < location.length


def too_short(location: FileLocation, size: int) -> str:
    """Return the sentence for an object that ends too early."""
    return f"{location.uri} has {size} bytes where {location.base + (location.length or 0)} are needed"


class FetchedObjects:
    """Fetches requested ranges by few requests, and keeps them: no byte of an object is fetched twice.

    ``exact`` fetches no byte of another channel, which takes more requests.
    """

    def __init__(self, state: RemoteState, directory: Path, *, exact: bool = False) -> None:
        self._state = state
        self._cell, self._gap = (EXACT, 0) if exact else (CELL, LONGEST_GAP)
        self._arena = Arena(directory)
        self._objects: dict[str, _Fetched] = {}

    @property
    def bytes(self) -> int:
        """Return the number of fetched bytes."""
        return sum(each.bytes for each in self._objects.values())

    def size(self, uri: str) -> int:
        """Return the number of bytes of an object."""
        return self._object(uri).stat.size

    def spans(self, location: FileLocation, chunks: Longs, where: Where) -> Spans:
        """Return the stretches of the object that hold the header and these chunks of a stream, and maybe more."""
        positions = np.append(0, chunks) + location.base
        return self._object(location.uri).spans(positions, where)

    def _object(self, uri: str) -> _Fetched:
        if uri not in self._objects:
            found = self._state.stat(uri)
            cells = self._state.cells(uri, found, self._cell)
            self._objects[uri] = _Fetched(uri, found, cells, self._gap, self._arena)
        return self._objects[uri]


class _Fetched:
    def __init__(self, uri: str, stat: SourceObject, cells: Cells, gap: int, arena: Arena) -> None:
        self.stat, self._uri, self._cells, self._arena = stat, uri, cells, arena
        self._gap = gap
        self.bytes = 0
        self._present = np.zeros(len(cells.starts), dtype=np.bool_)
        self._arrays: dict[int, npt.NDArray[np.uint8]] = {}

    def spans(self, positions: Longs, where: Where) -> Spans:
        for (first, last), data in self._answers(self._cells.holding(positions)):
            self.bytes += len(data)
            begin, kept = int(self._cells.starts[first]), self._arena.keep(data)
            for number in range(first, last + 1):
                start = int(self._cells.starts[number]) - begin
                self._arrays[number] = kept[start : start + int(self._cells.ends[number] - self._cells.starts[number])]
            self._present[first : last + 1] = True
        return Spans(self._cells.starts, self._cells.ends, self._arrays.__getitem__, where)

    def _answers(self, wanted: Longs) -> Iterator[tuple[tuple[int, int], bytes]]:
        """Yield the answers of all necessary requests: long ones one by one, the short ones of exact ranges several at
        once.
        """
        runs = requests(self._cells, wanted, self._present, self._gap)
        at_once = 1 if self._gap else AT_ONCE
        with ThreadPoolExecutor(max_workers=at_once) as pool:
            for at in range(0, len(runs), at_once):
                group = runs[at : at + at_once]
                yield from zip(group, pool.map(self._read, group), strict=True)

    def _read(self, run: tuple[int, int]) -> bytes:
        begin, end = int(self._cells.starts[run[0]]), int(self._cells.ends[run[1]])
        try:
            return storage_for(self._uri).read(self._uri, begin, end - begin, tag=self.stat.tag)
        except Unreadable as error:  # it was there when it was looked at
            raise source_changed(error.what, self._uri) from None


class Fetches:
    """The bytes that one unit of work fetches of a checkpoint: exactly its channels, counted, and removed with the
    unit.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._objects: dict[str, FetchedObjects] = {}
        self._streamed: list[int] = []

    def count(self, size: int) -> None:
        """Count bytes that were fetched and not kept; safe for any thread."""
        self._streamed.append(size)

    def objects(self, metadata_sha256: str, state: Callable[[], RemoteState]) -> FetchedObjects:
        """Return the fetched objects of one checkpoint; ``state`` is called at its first use."""
        if metadata_sha256 not in self._objects:
            self._objects[metadata_sha256] = FetchedObjects(state(), self._directory, exact=True)
        return self._objects[metadata_sha256]

    @property
    def bytes(self) -> int:
        return sum(self._streamed) + sum(objects.bytes for objects in self._objects.values())


_of_unit: ContextVar[Fetches | None] = ContextVar("cdr_fetches", default=None)


@contextmanager
def fetching(directory: Path) -> Iterator[Fetches]:
    """While the block runs, its thread reads channels on S3 by exact ranges, which are kept in ``directory``."""
    fetches = Fetches(directory)
    token = _of_unit.set(fetches)
    try:
        yield fetches
    finally:
        _of_unit.reset(token)


def unit_fetches() -> Fetches | None:
    """Return the fetches of this thread's unit, if that reads the source in place."""
    return _of_unit.get()
