"""A subtask's segments on their way to its output: read or fetched ahead, verified, routed, in order.

A reader thread is a few segments ahead. What lies on this host is read in place when there is room for it. What has to
be fetched is fetched also while the output stalls: then it waits on scratch disk, and is replayed from there. The queue
has one entry per segment, in order, wherever its bytes are, so nothing overtakes. Between two segments is where a
recovery checkpoint cuts.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdr_core.channels.channel_layout import LayoutReader
from cdr_core.channels.remote_state import is_remote
from cdr_core.channels.source_index import source_changed
from cdr_core.errors import CdrError
from cdr_core.faults import reach
from cdr_core.log import with_fields
from cdr_core.planning.plan import Plan
from cdr_core.spill.router import Route, Routing, route
from cdr_core.spill.scratch_ring import Kept, Scratch
from cdr_core.spill.set_reader import Segment, as_segment, read_body
from cdr_core.spill.spill_set import SpillSet

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

MOST_AHEAD = 4
"""Segments read ahead: with so many the reader is ahead of the output, and what it reads is still in the cache."""


log = logging.getLogger(__name__)


class PlannedSource:
    """The source as spill sets refer to it; see :class:`~cdr_core.spill.set_reader.SourceBytes`."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._reader = plan, LayoutReader(plan)

    def channel(self, line: int) -> int:
        return int(self._plan.channels.of_lines(np.array([line]))[0])

    def read(self, line: int, starts: Longs, ends: Longs, target: memoryview) -> None:
        self._reader.read(self.channel(line), starts, ends, target)

    def changed(self, line: int) -> CdrError:
        return source_changed("its bytes have another CRC-32C", *self._reader.uris(self.channel(line)))

    def is_remote(self, line: int) -> bool:
        layout = self._reader.layout(self.channel(line))
        return layout is not None and any(map(is_remote, layout.uris))


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A segment that waits for the output, or where on scratch disk its bytes do."""

    number: int
    segment: Segment | None
    kept: Kept | None = None


class RoutedSegments:
    """The segments between reader and output, in order, wherever their bytes wait. For one thread at a time.

    ``made`` gives the segment of a number with these bytes.
    """

    def __init__(self, ahead: int, scratch: Scratch, routing: Routing, made: Callable[[int, Bytes], Segment]) -> None:
        self._ahead, self._scratch, self._routing, self._made = ahead, scratch, routing, made
        self.waiting: deque[Waiting] = deque()

    def has_room(self, length: int, *, is_fetched: bool) -> bool:
        """Whether the next segment may be read now. What lies on this host can wait where it lies."""
        return self.way() is Route.MEMORY or (is_fetched and self._scratch.fits(length))

    def way(self) -> Route:
        """The way of the next segment, by what waits before it."""
        on_disk = any(entry.segment is None for entry in self.waiting)
        return route(disk_non_empty=on_disk, room=len(self.waiting) < self._ahead)

    def add(self, number: int, segment: Segment) -> None:
        """The next segment, which had room: the output may have made more room since, and only this reader takes it."""
        if not self.way().appends:
            self.waiting.append(Waiting(number, segment))
            return
        log.debug(
            "to scratch disk", extra=with_fields(segment=number, bytes=len(segment.body), waiting=len(self.waiting))
        )
        self._routing.spilled += len(segment.body)
        self.waiting.append(Waiting(number, None, self._scratch.keep(segment.body)))

    def take(self) -> tuple[int, Segment | None]:
        """The oldest segment; ``None`` where scratch disk, which is a cache, has lost it."""
        entry = self.waiting.popleft()
        if entry.segment is not None:
            return entry.number, entry.segment
        assert entry.kept is not None, "it is on scratch disk"
        body = self._scratch.take(entry.kept)
        return entry.number, None if body is None else self._made(entry.number, body)


class SegmentQueue(AbstractContextManager["SegmentQueue"]):
    """The segments with these numbers, in order. An error of the reader is raised where its segment would be taken."""

    def __init__(
        self,
        spill_set: SpillSet,
        numbers: list[int],
        source: PlannedSource,
        budget: int,
        scratch: Scratch,
        routing: Routing,
        *,
        positions: bool,
    ) -> None:
        largest = int(spill_set.columns["length"].max(initial=1))
        self._set, self._numbers, self._source, self._positions = spill_set, numbers, source, positions
        self._stored = spill_set.stored_lengths
        self._scratch, self._routing = scratch, routing
        ahead = max(1, min(MOST_AHEAD, budget // (2 * largest)))
        self._segments = RoutedSegments(ahead, scratch, routing, self._made)
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="cdr-drain-reader", daemon=True)

    def __enter__(self) -> SegmentQueue:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._scratch.close()

    def __iter__(self) -> Iterator[tuple[int, Segment]]:
        for expected in self._numbers:
            with self._changed:
                self._changed.wait_for(lambda: self._segments.waiting or self._failure is not None)
                if not self._segments.waiting:
                    assert self._failure is not None, "the reader ends with every segment read, or fails"
                    raise self._failure
                is_replayed = self._segments.waiting[0].segment is None
                number, segment = self._segments.take()
                self._changed.notify_all()
            assert number == expected, "nothing overtakes"
            yield number, self._loaded(number) if segment is None else segment
            # It is delivered: a cut that was made before does not count it.
            self._count(number, is_replayed=is_replayed and segment is not None)

    def _count(self, number: int, *, is_replayed: bool) -> None:
        """What of a segment was on a disk of cdr, all of it if it waited on scratch disk, and what was not."""
        length, on_disk = int(self._set.columns["length"][number]), int(self._stored[number])
        if is_replayed:
            on_disk = length
        elif on_disk and self._set.files[int(self._set.columns["file"][number])].memory:
            on_disk = 0
        self._routing.by_reference += length - int(self._stored[number])
        self._routing.replayed += on_disk
        self._routing.handed_over += length - on_disk

    def _run(self) -> None:
        try:
            for number in self._numbers:
                length, is_fetched = int(self._set.columns["length"][number]), self._is_fetched(number)
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._closed or self._segments.has_room(length, is_fetched=is_fetched)  # noqa: B023 # waits here
                    )
                    if self._closed:
                        return
                segment = self._loaded(number)
                reach("drain.read")
                with self._changed:
                    self._segments.add(number, segment)
                    self._changed.notify_all()
        except Exception as error:  # belongs to the task's own thread
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _loaded(self, number: int) -> Segment:
        return self._made(number, read_body(self._set, number, self._source))

    def _made(self, number: int, body: Bytes) -> Segment:
        return as_segment(self._set, number, body, positions=self._positions)

    def _is_fetched(self, number: int) -> bool:
        """Whether a segment has bytes of an object store; the references of one segment are all there or all here."""
        mine = self._set.references(number)
        if mine.start == mine.stop:
            return False
        line = int(self._set.columns["line"][self._set.columns["reference_piece"][mine.start]])
        return self._source.is_remote(line)
