"""The drainer: hands the pages of a sealed spill set to its channels, in order, and says where it is.

A page is asked for and filled from disk without the lock; *deliver it and advance the committed position* is one
critical section, and so is *mark every channel and copy the position*. Hence at a cut each page is either before a
marker or in the tail, never in both, never in neither, and a slow disk does not hold up a checkpoint.

Few pages are enough. Where the task waits for one gate while the pages lie in another's queues, those are parked: the
slice stays in its queue, its bytes go, because the set on disk still has them. The order of a channel is not touched.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from cdr_core.drain.channel import Key, RecoveredChannel
from cdr_core.drain.inbox import Inbox
from cdr_core.drain.pages import Bytes, Page, PagePool
from cdr_core.drain.remaining import Remaining, Slice
from cdr_core.drain.tail import Tail
from cdr_core.errors import Closed
from cdr_core.spill.reader import Reader

KEPT_SEGMENTS = 2
"""Segments kept after reading: the one the tail is in, and the one parked data is loaded from."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to put into the next page: the beginning of the tail, or (``parked``) of a channel's parked data.

    ``wanted``: the task waits for this very gate. ``waits``: it waits for another one.
    """

    channel: RecoveredChannel
    rest: Slice
    parked: bool
    wanted: bool
    waits: bool


class Drainer:
    """Driven by one thread, or step by step; only :meth:`snapshot_and_insert_markers` is for another one."""

    def __init__(self, reader: Reader, inbox: Inbox, pool: PagePool, tail: Tail) -> None:
        self._reader, self._inbox, self._pool, self._tail = reader, inbox, pool, tail
        self._parked: dict[Key, RecoveredChannel] = {}
        self._bodies: OrderedDict[int, Bytes] = OrderedDict()
        self._delivered = False

    @property
    def delivered(self) -> bool:
        """Every channel has been given all of its data, or where it lies, and its end marker."""
        return self._delivered

    @property
    def finished(self) -> bool:
        """Delivered, and nothing is parked: there is nothing left to do."""
        return self._delivered and not self._parked

    def run(self) -> None:
        """Drain to the end. An error becomes the subtask's failure, for its own thread to raise."""
        try:
            while self.step(blocking=True):
                pass
        except BaseException as error:
            self._inbox.fail(error)

    def step(self, blocking: bool) -> bool:
        """Deliver one page, or the end markers; ``False`` when there is nothing to do or (not blocking) no page."""
        while True:
            seen = self._pool.changes
            with self._inbox.changed:
                if self._inbox.closed:
                    return False
                if self._finish():
                    return True
                job = self._next_job()
            if job is None:
                return False
            if job.channel.is_parked and not job.parked:
                return self._park(job)
            page = self._request(job)
            if page is not None:
                self._deliver(self._fill(page, job), job)
                return True
            if job.waits and not job.parked:
                return self._park(job)
            if not blocking:
                return False
            self._pool.wait(seen)

    def snapshot_and_insert_markers(self, checkpoint: int) -> Remaining:
        """Mark every channel in recovery and copy the committed position, at one instant."""
        with self._inbox.changed:
            if self._inbox.closed:
                raise Closed("a subtask that was closed cannot say what is left of it")
            self._insert_markers(checkpoint)
            return self._tail.remaining()

    def _insert_markers(self, checkpoint: int) -> None:
        for channel in self._inbox.channels.values():
            if channel.in_recovery:
                channel.mark(checkpoint)

    def _next_job(self) -> Job | None:
        """Parked data before new data, unless the task waits for a gate that has none of it. Called with the lock."""
        demand = self._inbox.demand
        parked = [c for c in self._parked.values() if demand is None or c.gate in demand]
        head = self._tail.head()
        if head is None and not parked:
            parked = list(self._parked.values())
        if parked:
            channel = self._nearest(parked)
            rest = channel.first_parked()
            assert rest is not None
        elif head is not None:
            channel, rest = self._inbox.channels[self._tail.channel_of(head)], head
        else:
            return None
        wanted = demand is not None and channel.gate in demand
        return Job(channel, rest, bool(parked), wanted, demand is not None and not wanted)

    def _nearest(self, parked: Iterable[RecoveredChannel]) -> RecoveredChannel:
        """A channel whose parked data is in a segment that is still in memory, else the one that waits longest."""
        candidates = list(parked)
        for channel in candidates:
            rest = channel.first_parked()
            if rest is not None and rest.segment in self._bodies:
                return channel
        return candidates[0]

    def _request(self, job: Job) -> Page | None:
        page = self._pool.try_request()
        if page is None and job.wanted and self._reclaim():
            page = self._pool.try_request()
        return page

    def _reclaim(self) -> bool:
        """Park a page that lies in the queue of a gate nobody waits for."""
        with self._inbox.changed:
            demand = self._inbox.demand
            if demand is None:
                return False
            idle = (c for c in self._inbox.channels.values() if c.gate not in demand and c.pages)
            channel = next(idle, None)
            page = None if channel is None else channel.reclaim()
            if channel is None or page is None:
                return False
            self._parked[channel.key] = channel
        page.recycle()
        return True

    def _park(self, job: Job) -> bool:
        """Give a channel the place of its data instead of the data."""
        with self._inbox.changed:
            if self._inbox.closed:
                return False
            job.channel.park(job.rest)
            self._parked[job.channel.key] = job.channel
            self._tail.advance(job.rest)
        return True

    def _fill(self, page: Page, job: Job) -> Page:
        part = job.rest.take(self._pool.page_size)
        try:
            data = self._body(part.segment)[part.offset : part.end]
            return page.fill(data, job.channel.gate, job.channel.index, part)
        except BaseException:
            page.recycle()
            raise

    def _body(self, segment: int) -> Bytes:
        body = self._bodies.get(segment)
        if body is None:
            body = self._reader.body(segment)
            self._bodies[segment] = body
            if len(self._bodies) > KEPT_SEGMENTS:
                self._bodies.popitem(last=False)
        self._bodies.move_to_end(segment)
        return body

    def _deliver(self, page: Page, job: Job) -> None:
        """The critical section of a delivery. The channel owns the page from here on, also when this fails."""
        with self._inbox.changed:
            part = page.slice
            if job.parked:
                job.channel.load(page)
                if not job.channel.is_parked:
                    self._parked.pop(job.channel.key, None)
            else:
                job.channel.deliver(page)
                self._tail.advance(part)
            self._inbox.schedule(job.channel)

    def _finish(self) -> bool:
        """After the last delivery: the end marker on every channel, also an empty one. Called with the lock."""
        if self._delivered or self._tail.head() is not None:
            return False
        self._delivered = True
        for channel in self._inbox.channels.values():
            channel.end()
            self._inbox.schedule(channel)
        return True
