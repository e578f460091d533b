"""The live side of a channel: what the upstream sends now, withheld while recovered data comes first.

While withheld there is no credit, so data must not arrive; what needs none (the end of the input, a checkpoint
request) waits here or, if it has priority, passes. A view whose input ended before it was made stands for an
upstream that does not exist, as in the recovery pipeline.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cdr_core.drain.pages import Page
from cdr_core.errors import CdrError, IllegalState, Where


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A priority event: the upstream asks for a checkpoint, before everything that waits."""

    checkpoint: int


class LiveView:
    """Written by the upstream's thread, read by the task's. Its lock is a leaf: listeners are called without it."""

    def __init__(self, credit: int = 2, *, ended: bool = False) -> None:
        self._lock = threading.Lock()
        self._initial_credit = credit
        self._credit = 0
        self._open = False
        self._released = False
        self._data: deque[bytes] = deque()
        self._priority: deque[CheckpointRequest] = deque()
        self._ended = ended
        self._where = Where()
        self._on_change: Callable[[], None] = _ignore
        self._on_priority: Callable[[], None] = _ignore
        self._on_failure: Callable[[CdrError], None] = _ignore_error

    # --- the upstream's side ---

    @property
    def credit(self) -> int:
        """How many pages may be sent now; none while the channel is in recovery."""
        return self._credit

    def send(self, data: bytes) -> None:
        """One page of live data; without credit it is a fault that fails the subtask, and is raised here as well."""
        with self._lock:
            allowed = self._credit > 0 and not self._ended
            if self._released:
                return
            if allowed:
                self._credit -= 1
                self._data.append(data)
        if not allowed:
            what = "live data arrived after its end" if self._ended else "live data arrived during recovery"
            error = IllegalState(what, where=self._where)
            self._on_failure(error)
            raise error
        self._on_change()

    def send_priority(self, request: CheckpointRequest) -> None:
        """Needs no credit and passes everything. Only the first one waiting is announced; the rest follow it."""
        with self._lock:
            self._priority.append(request)
            first = len(self._priority) == 1
        if first:
            self._on_priority()

    def finish(self) -> None:
        """The input ends here. In recovery this waits like data: the recovered records come first."""
        with self._lock:
            self._ended = True
        self._on_change()

    # --- the channel's side ---

    def attach(
        self,
        gate: int,
        channel: int,
        on_change: Callable[[], None],
        on_priority: Callable[[], None],
        on_failure: Callable[[CdrError], None],
    ) -> None:
        """Connect to a channel: still without credit."""
        self._where = Where(gate=gate, channel=channel)
        self._on_change, self._on_priority, self._on_failure = on_change, on_priority, on_failure
        if self.has_priority:
            on_priority()

    def open(self) -> None:
        """The channel left recovery: credit flows."""
        with self._lock:
            assert not self._open, "a channel leaves recovery once"
            self._open = True
            self._credit = self._initial_credit

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def backlog(self) -> int:
        """Pages sent and not yet taken."""
        return len(self._data)

    @property
    def is_exhausted(self) -> bool:
        """The input has ended and all of it was taken."""
        with self._lock:
            return self._ended and not self._data

    @property
    def has_priority(self) -> bool:
        return bool(self._priority)

    def take(self) -> Page | None:
        """The next live page, if the view is open and has one; recycling it returns its credit."""
        with self._lock:
            if not self._open or not self._data:
                return None
            data = self._data.popleft()
        gate, channel = self._where.gate, self._where.channel
        assert gate is not None
        assert channel is not None
        return Page(self).fill(np.frombuffer(data, dtype=np.uint8), gate, channel, None)

    def take_priority(self) -> CheckpointRequest | None:
        with self._lock:
            return self._priority.popleft() if self._priority else None

    def waiting(self) -> tuple[bytes, ...]:
        """Live pages that a checkpoint overtakes."""
        with self._lock:
            return tuple(self._data)

    def recycle(self, page: Page) -> None:
        with self._lock:
            page.end()
            self._credit += 1

    def release(self) -> None:
        """The subtask is gone; what is sent from now on goes nowhere."""
        with self._lock:
            self._released = True
            self._credit = 0
            self._data.clear()
            self._priority.clear()


def _ignore() -> None:
    """Not attached yet."""


def _ignore_error(_: CdrError) -> None:
    """Not attached yet."""
