"""Recovery checkpoints as the drain's driver schedules them: which are under way, which may complete, which failed.

A checkpoint is made of the newest snapshot of every subtask, so it can complete at once. An aligned one first waits
until every running subtask has made a newer snapshot than it had when the checkpoint was asked for, or until its time
is over.

A pure state machine: files, rows and the clock belong to its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cdr_core.errors import CheckpointsFailed


@dataclass(frozen=True, slots=True)
class Rules:
    """When checkpoints are taken and given up: seconds between two (0 = only when asked), seconds one may take, and
    how many may fail one after another before the attempt does.
    """

    interval: float
    timeout: float
    tolerable: int


@dataclass(frozen=True, slots=True)
class Pending:
    """A checkpoint that was asked for. Until ``align_until`` it waits for every subtask in ``passed`` to have a newer
    snapshot than the number there.
    """

    deadline: float
    align_until: float
    passed: Mapping[int, int]


class RecoveryCheckpoints:
    """The checkpoints of one drain attempt. Numbers grow over all attempts of a recovery."""

    def __init__(self, last: int, rules: Rules, clock: Callable[[], float]) -> None:
        self._last, self._rules, self._clock = last, rules, clock
        self._failed = 0
        self._pending: dict[int, Pending] = {}
        self._next_at = clock() + rules.interval

    @property
    def pending(self) -> tuple[int, ...]:
        """Numbers of the checkpoints that are under way, ascending."""
        return tuple(self._pending)

    def is_due(self) -> bool:
        """Whether the interval asks for a new one; never while one is under way."""
        return self._rules.interval > 0 and not self._pending and self._clock() >= self._next_at

    def trigger(self, aligned_timeout: float | None = None, running: Mapping[int, int] | None = None) -> int:
        """A new checkpoint, possibly while older ones are under way; its number.

        ``running``: the number of the newest snapshot of every subtask that is at work.
        """
        self._last += 1
        now = self._clock()
        align_until = now + (aligned_timeout or 0.0)
        self._pending[self._last] = Pending(now + self._rules.timeout, align_until, dict(running or {}))
        self._next_at = now + self._rules.interval
        return self._last

    def ready(self, newest: Mapping[int, int]) -> int | None:
        """The newest checkpoint that waits for nothing any more, by the newest snapshots; it subsumes the older ones.

        A subtask that is finished is not among ``newest``.
        """
        now = self._clock()
        for number in reversed(self._pending):
            pending = self._pending[number]
            behind = any(newest.get(subtask, at + 1) <= at for subtask, at in pending.passed.items())
            if not behind or now >= pending.align_until:
                return number
        return None

    def overdue(self) -> list[int]:
        """Pending checkpoints whose time is over."""
        now = self._clock()
        return [number for number, pending in self._pending.items() if now >= pending.deadline]

    def complete(self, checkpoint: int) -> list[int]:
        """It is complete and durable. Returns the older ones that are thereby subsumed."""
        subsumed = [number for number in self._pending if number < checkpoint]
        for number in (*subsumed, checkpoint):
            del self._pending[number]
        self._failed = 0
        return subsumed

    def abort(self, checkpoint: int) -> None:
        """Give it up. Too many in a row fail the attempt."""
        del self._pending[checkpoint]
        self._failed += 1
        if self._failed > self._rules.tolerable:
            raise CheckpointsFailed(
                f"{self._failed} recovery checkpoints in a row failed, {self._rules.tolerable} are tolerated",
                hint="look at the reasons in cdr status, or raise CDR_TOLERABLE_FAILED_CHECKPOINTS",
            )
