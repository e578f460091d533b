"""What travels from the reader to the consumer: parcels of whole elements, page by page through a bounded queue."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdr_core.drain.pages import Page, PagePool
from cdr_core.errors import Closed

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """Whole elements of one virtual channel, in order: their frames, never none, and the position of each."""

    number: int
    body: Bytes
    positions: Longs


@dataclass(frozen=True, slots=True, eq=False)
class Slip:
    """One page of a parcel. The positions of all of its elements come with the first page, ``last`` is the last one."""

    number: int
    page: Page
    positions: Longs | None
    last: bool


class ParcelQueue:
    """At most ``pages`` pages between one reader and one consumer.

    A page in it is a right to that many bytes, as everywhere; positions come on top, eight bytes an element. Whichever
    end fails, the other one does not wait for it: the consumer's failure is raised to the reader, and a reader that
    gives up ends the consumer with :class:`Closed`.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        self._pool = PagePool(pages, page_size)
        self._changed = threading.Condition()
        self._slips: deque[Slip] = deque()
        self._ended = self._abandoned = False
        self._failure: BaseException | None = None

    # --- the reader's end ---

    @property
    def pages(self) -> int:
        """Pages that went through it."""
        return self._pool.requested

    @property
    def most_in_use(self) -> int:
        return self._pool.most_in_use

    def has_room(self, size: int) -> bool:
        """Whether so many bytes fit now. They still do when the reader asks next: only the consumer changes it."""
        return -(-size // self._pool.page_size) <= self._pool.available

    def offer(self, parcel: Parcel, at: int = 0) -> int:
        """Hand over a parcel from byte ``at`` on, as far as there is room; where the next page begins."""
        while at < len(parcel.body):
            self._raise_failure()
            try:
                page = self._pool.try_request()
            except Closed:
                self._raise_failure()
                raise
            if page is None:
                break
            at = self._send(page, parcel, at)
        return at

    def hand_over(self, parcel: Parcel, at: int = 0) -> None:
        """All of a parcel from byte ``at`` on; waits for the consumer."""
        while at < len(parcel.body):
            self._raise_failure()
            try:
                page = self._pool.request()
            except Closed:
                self._raise_failure()
                raise
            at = self._send(page, parcel, at)

    def end(self) -> None:
        """Nothing more will come."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """The reader gives up: the consumer ends at once, without taking the rest for everything."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def _send(self, page: Page, parcel: Parcel, at: int) -> int:
        upto = min(at + self._pool.page_size, len(parcel.body))
        page.fill(parcel.body[at:upto], -1, -1, None)
        slip = Slip(parcel.number, page, parcel.positions if at == 0 else None, upto == len(parcel.body))
        with self._changed:
            self._slips.append(slip)
            self._changed.notify_all()
        return upto

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- the consumer's end ---

    def take(self) -> Slip | None:
        """The next page, as soon as there is one; whoever gets it recycles it. ``None`` at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._slips or self._ended or self._abandoned)
            if self._abandoned:
                raise Closed("the reader gave up")
            return self._slips.popleft() if self._slips else None

    def fail(self, error: BaseException) -> None:
        """The consumer cannot go on; a reader that waits wakes up."""
        self._failure = error
        self._pool.close()
