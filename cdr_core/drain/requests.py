"""Checkpoint requests that wait for their time.

An unaligned request is due at once. An aligned one lets recovered data pass first: it is due when that is consumed,
or, turned unaligned, when its timeout passes.
"""

from __future__ import annotations

from collections.abc import Callable


class Requests:
    """Belongs to the task's thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: dict[int, float] = {}
        self._last = 0

    @property
    def last(self) -> int:
        """The newest checkpoint that was tried: nothing up to it can be asked for any more."""
        return self._last

    def add(self, checkpoint: int, aligned_timeout: float | None) -> None:
        """Asked twice, the earlier time counts; asked for what a newer one has subsumed, nothing happens."""
        if checkpoint <= self._last:
            return
        at = self._clock() + (aligned_timeout or 0.0)
        self._waiting[checkpoint] = min(at, self._waiting.get(checkpoint, at))

    def due(self, *, consumed: bool) -> tuple[int, ...]:
        """Ascending; all of them once the recovered data is consumed."""
        now = self._clock()
        return tuple(sorted(number for number, at in self._waiting.items() if consumed or at <= now))

    def settle(self, checkpoint: int) -> None:
        """This checkpoint was cut or declined: it and older ones are over."""
        self._last = max(self._last, checkpoint)
        self._waiting = {number: at for number, at in self._waiting.items() if number > checkpoint}
