"""Pages and the pool that bounds them.

A page is a right to have at most ``page_size`` recovered bytes in memory: its bytes are a view of a segment that was
read whole and verified. Whoever takes a page gives it back, once. The view itself may be kept: it is read-only and
belongs to the segment, which lives as long as somebody looks at it. So memory is bounded by the pool's pages plus one
segment per channel that is being read, plus what consumers keep on purpose.
"""

from __future__ import annotations

import threading
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cdr_core.drain.remaining import Slice
from cdr_core.errors import Closed, IllegalState, SettingsRefused, Where

Bytes = npt.NDArray[np.uint8]

ENOUGH_PAGES = 16
"""With so many the drainer is always ahead of the consumer; beyond that, larger pages serve better than more."""
ENOUGH_BYTES = 16 << 20
"""Further ahead, what was read would have left the processor's cache before somebody looks at it."""


class Owner(Protocol):
    """Where a page goes when it is recycled."""

    def recycle(self, page: Page) -> None: ...


class Page:
    """Bytes of one channel. Recovered ones have a ``slice``; live ones, which no sealed set holds, have none."""

    __slots__ = ("_data", "_owner", "_recycled", "_slice", "channel", "gate")

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._data: Bytes | None = None
        self._slice: Slice | None = None
        self._recycled = False
        self.gate = self.channel = -1

    def fill(self, data: Bytes, gate: int, channel: int, part: Slice | None) -> Page:
        """Give an empty page its content."""
        self._data, self._slice = data, part
        self.gate, self.channel = gate, channel
        return self

    @property
    def data(self) -> Bytes:
        """The bytes; asking a page that was recycled for them is an error."""
        if self._recycled or self._data is None:
            raise IllegalState("a page was read that holds nothing", where=self._where())
        return self._data

    @property
    def slice(self) -> Slice:
        """Where the bytes lie in the spill set."""
        if self._slice is None:
            raise IllegalState("a live page has no place in a spill set", where=self._where())
        return self._slice

    @property
    def is_live(self) -> bool:
        return self._slice is None

    def recycle(self) -> None:
        """Give the page back; a second time is an error."""
        self._owner.recycle(self)

    def end(self) -> None:
        """For owners: this page is gone. Twice is an error, because the second one would free somebody else's."""
        if self._recycled:
            raise IllegalState("a page was recycled twice", where=self._where())
        self._recycled = True
        self._data = None

    def _where(self) -> Where:
        return Where(gate=self.gate, channel=self.channel)


class PagePool:
    """At most ``pages`` pages at a time. Its lock is a leaf: nothing else is locked or called while it is held."""

    def __init__(self, pages: int, page_size: int, lock: threading.Lock | None = None) -> None:
        if pages < 1 or page_size < 1:
            raise SettingsRefused(f"a pool of {pages} pages of {page_size} bytes cannot hold anything")
        self.pages, self.page_size = pages, page_size
        self._changed = threading.Condition(lock or threading.Lock())
        self._changes = 0
        self._closed = False
        self.requested = self.recycled = self.most_in_use = 0

    @classmethod
    def of_budget(cls, budget: int, page_size: int, segment_size: int) -> PagePool:
        """As many pages as the budget allows and are of use, at least one. Where it allows plenty they are larger than
        asked for, up to a segment: each costs the same to hand over, whatever is in it.
        """
        size = max(page_size, min(segment_size, budget // ENOUGH_PAGES))
        return cls(max(min(budget, max(ENOUGH_BYTES, ENOUGH_PAGES * size)) // size, 1), size)

    @property
    def in_use(self) -> int:
        return self.requested - self.recycled

    @property
    def available(self) -> int:
        return self.pages - self.in_use

    @property
    def changes(self) -> int:
        """Grows whenever a request that failed may succeed; see :meth:`wait`."""
        return self._changes

    def request(self) -> Page:
        """An empty page, as soon as there is one."""
        while True:
            seen = self._changes
            page = self.try_request()
            if page is not None:
                return page
            self.wait(seen)

    def try_request(self) -> Page | None:
        """An empty page, or ``None`` when all are in use."""
        with self._changed:
            self._require_open()
            if self.in_use >= self.pages:
                return None
            self.requested += 1
            self.most_in_use = max(self.most_in_use, self.in_use)
            return Page(self)

    def recycle(self, page: Page) -> None:
        """Take a page back, also after the pool was closed."""
        with self._changed:
            page.end()
            self.recycled += 1
            assert self.recycled <= self.requested
            self._wake()

    def wait(self, seen: int) -> None:
        """Return when there was a change since ``seen``. Read ``changes``, try, then wait: no wake-up gets lost."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._changes != seen)
            self._require_open()

    def nudge(self) -> None:
        """Wake whoever waits, to look again whether something else changed."""
        with self._changed:
            self._wake()

    def close(self) -> None:
        """No more requests; whoever waits gets an error."""
        with self._changed:
            self._closed = True
            self._wake()

    def _wake(self) -> None:
        self._changes += 1
        self._changed.notify_all()

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("the page pool is closed")
