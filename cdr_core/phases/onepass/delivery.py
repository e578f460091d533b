"""The three paths at work: the router decides, here are the queue and the disk it decides between."""

from __future__ import annotations

from dataclasses import replace

from cdr_core.errors import IllegalState
from cdr_core.faults import reach
from cdr_core.flink.read_page import ReadPage
from cdr_core.phases.onepass.disk import DiskQueue
from cdr_core.phases.onepass.parcels import Parcel, ParcelQueue
from cdr_core.spill.router import Route, route


class Delivery:
    """Takes parcels in order and gives them to the consumer in that order.

    With a disk, ``put`` never waits. Without one it waits for room in the queue. Whoever waits holds no read page:
    a reader that waited with its page for a consumer that waits for the page would wait for ever.
    """

    def __init__(self, queue: ParcelQueue, disk: DiskQueue | None, page: ReadPage) -> None:
        self._queue, self._disk, self._page = queue, disk, page
        self._head: tuple[Parcel, int] | None = None
        self.bytes = dict.fromkeys(Route, 0)
        """By the path that they took."""

    def put(self, parcel: Parcel) -> None:
        """The next parcel; its bytes may be overwritten afterwards."""
        size = len(parcel.body)
        if self._disk is None:
            self._hold_nothing()
            self.bytes[Route.MEMORY] += size
            self._queue.hand_over(_own(parcel))
            return
        way = route(disk_non_empty=self._waits_on(self._disk), room=self._queue.has_room(size))
        self.bytes[way] += size
        if way.appends:
            self._disk.append(parcel)
            reach("onepass.spilled")
        else:
            handed = self._queue.offer(_own(parcel))
            assert handed == size, "room does not shrink"
        if way is Route.REPLAY:
            self._replay(self._disk)

    def drain(self) -> None:
        """After the last read: the rest on disk, with requests that wait."""
        self._hold_nothing()
        if self._disk is None:
            return
        reach("onepass.drain")
        while self._waits_on(self._disk):
            parcel, at = self._head or (self._disk.take(), 0)
            self._head = None
            self._queue.hand_over(parcel, at)

    def _replay(self, disk: DiskQueue) -> None:
        """From the head of the disk, as far as there is room."""
        while self._waits_on(disk) and self._queue.has_room(1):
            parcel, at = self._head or (disk.take(), 0)
            at = self._queue.offer(parcel, at)
            self._head = (parcel, at) if at < len(parcel.body) else None

    def _waits_on(self, disk: DiskQueue) -> bool:
        """Whether something older than the next parcel is not yet in the queue."""
        return self._head is not None or disk.waiting > 0

    def _hold_nothing(self) -> None:
        if self._page.in_use:
            raise IllegalState("a delivery would wait while the read page is held", hint="please report it")


def _own(parcel: Parcel) -> Parcel:
    """With bytes of its own: the reader's are overwritten by what it reads next."""
    return replace(parcel, body=parcel.body.copy())
