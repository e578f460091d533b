"""All channels of a recovering subtask behind one lock: which have something, and what the task is waiting for.

Lock order: the inbox's lock first, then a pool's or a live view's, which are leaves. It is held only to change these
structures; disk reads and waits for pages happen without it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from functools import partial

from cdr_core.drain.channel import END, Key, RecoveredChannel
from cdr_core.drain.live import LiveView
from cdr_core.drain.pages import Page, PagePool


class Inbox:
    """Every method but those that say so is called with ``changed`` held.

    ``demand`` is the set of gates that the task waits for in vain; ``None`` when it does not wait. It is what lets a
    drain with few pages serve a task that reads one input first.
    """

    def __init__(self, pool: PagePool, lock: threading.Lock | None = None, *, opens_by_gate: bool = False) -> None:
        self.changed = threading.Condition(lock or threading.Lock())
        self.pool = pool
        self.channels: dict[Key, RecoveredChannel] = {}
        self.demand: frozenset[int] | None = None
        self.closed = False
        self.failure: BaseException | None = None
        self._opens_by_gate = opens_by_gate
        self._ready: deque[RecoveredChannel] = deque()
        self._announced: dict[Key, RecoveredChannel] = {}
        self._in_recovery: Counter[int] = Counter()

    @property
    def in_recovery(self) -> int:
        """Channels that have not consumed their end marker."""
        return self._in_recovery.total()

    def add(self, keys: Iterable[Key], view: Callable[[int, int], LiveView]) -> None:
        """Make the channels and connect their live views. Called without the lock, before anything else."""
        for gate, index in keys:
            channel = RecoveredChannel(gate, index, view(gate, index))
            self.channels[gate, index] = channel
            self._in_recovery[gate] += 1
            channel.live.attach(gate, index, partial(self._came, channel), partial(self._announce, channel), self.fail)

    def gates(self) -> frozenset[int]:
        return frozenset(gate for gate, _ in self.channels)

    def schedule(self, channel: RecoveredChannel) -> None:
        """A channel may have become available: it is in line once, and whoever waits for it is woken."""
        if not channel.is_available:
            return
        if not channel.scheduled:
            channel.scheduled = True
            self._ready.append(channel)
        if self.demand is not None and channel.gate in self.demand:
            self.demand = None
        self.changed.notify_all()

    def take(self, gates: Collection[int] | None) -> Page | None:
        """The next page of the selected gates (``None`` = any), each channel with data in its turn."""
        for _ in range(len(self._ready)):
            channel = self._ready.popleft()
            if gates is not None and channel.gate not in gates:
                self._ready.append(channel)
                continue
            channel.scheduled = False
            page = self._take_from(channel)
            self.schedule(channel)
            if page is not None:
                self.demand = None
                return page
        return None

    def take_announced(self) -> list[RecoveredChannel]:
        """The channels that announced a priority event since the last call, in their own order. Asked for before every
        page, so it must not look at the channels that announced nothing.
        """
        return [self._announced.pop(key) for key in sorted(self._announced)]

    def is_over(self, gates: Collection[int] | None) -> bool:
        """Whether nothing will ever come from the selected gates."""
        selected = (c for c in self.channels.values() if gates is None or c.gate in gates)
        return all(channel.is_finished for channel in selected)

    def want(self, gates: Collection[int] | None) -> None:
        """The task found nothing there: the drainer should see to it."""
        self.demand = self.gates() if gates is None else frozenset(gates)
        self.pool.nudge()

    def fail(self, error: BaseException) -> None:
        """The first failure is the one that the task will see. Takes the lock itself."""
        with self.changed:
            if self.failure is None:
                self.failure = error
            self.changed.notify_all()

    def open_live(self) -> None:
        """There is nothing to recover: every channel is live at once. Takes the lock itself."""
        with self.changed:
            for channel in self.channels.values():
                channel.in_recovery = False
                channel.live.open()
                self.schedule(channel)
            self._in_recovery.clear()

    def close(self) -> list[Page]:
        """Release every channel; the pages are for whoever calls, to recycle. Takes the lock itself."""
        with self.changed:
            self.closed = True
            self._ready.clear()
            pages = [page for channel in self.channels.values() for page in channel.release()]
            self.changed.notify_all()
        return pages

    def _take_from(self, channel: RecoveredChannel) -> Page | None:
        taken = channel.take()
        if taken is END:
            self._in_recovery[channel.gate] -= 1
            for each in self._to_open(channel):
                each.live.open()
            # No live data can be there yet: it needs the credit just given. What comes announces itself.
            return None
        assert taken is None or isinstance(taken, Page)
        return taken

    def _to_open(self, channel: RecoveredChannel) -> list[RecoveredChannel]:
        """A channel goes live by itself; where gates are converted whole, with the last one of its gate."""
        if not self._opens_by_gate:
            return [channel]
        if self._in_recovery[channel.gate]:
            return []
        return [each for each in self.channels.values() if each.gate == channel.gate]

    def _came(self, channel: RecoveredChannel) -> None:
        """From the upstream's thread: something is in the live view."""
        with self.changed:
            self.schedule(channel)
            self.changed.notify_all()

    def _announce(self, channel: RecoveredChannel) -> None:
        """From the upstream's thread: a priority event. It passes a channel that is blocked."""
        with self.changed:
            channel.has_priority = True
            self._announced[channel.key] = channel
            self.changed.notify_all()
