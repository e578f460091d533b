"""When recovery checkpoints of a drain are taken, what they wait for, and when they are given up."""

from __future__ import annotations

import pytest

from cdr_core.drain.checkpoint_schedule import RecoveryCheckpoints, Rules
from cdr_core.errors import CheckpointsFailed


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def fresh(*, interval: float = 0, timeout: float = 10, tolerable: int = 1) -> tuple[Clock, RecoveryCheckpoints]:
    clock = Clock()
    return clock, RecoveryCheckpoints(4, Rules(interval, timeout, tolerable), clock)


def test_a_checkpoint_is_ready_at_once_and_numbers_go_on() -> None:
    _, checkpoints = fresh()
    assert checkpoints.trigger() == 5
    assert checkpoints.ready({0: 7, 1: 3}) == 5
    assert checkpoints.complete(5) == []
    assert checkpoints.pending == ()
    assert checkpoints.ready({0: 7}) is None


def test_an_aligned_one_waits_for_newer_snapshots_of_all_that_were_running() -> None:
    """002-38: a subtask that finished meanwhile, and so runs no more, is not waited for."""
    clock, checkpoints = fresh()
    number = checkpoints.trigger(3.0, {0: 7, 1: 3})
    assert checkpoints.ready({0: 7, 1: 3}) is None
    assert checkpoints.ready({0: 8, 1: 3}) is None
    assert checkpoints.ready({0: 8, 1: 4, 2: 1}) == number
    assert checkpoints.ready({0: 8}) == number
    clock.now = 3.0
    assert checkpoints.ready({0: 7, 1: 3}) == number, "its time to wait is over"


def test_completing_one_subsumes_the_older_ones() -> None:
    """E33: a plain request after an aligned one that still waits."""
    _, checkpoints = fresh()
    first, second = checkpoints.trigger(5.0, {0: 1}), checkpoints.trigger()
    assert checkpoints.pending == (first, second)
    assert checkpoints.ready({0: 1}) == second
    assert checkpoints.complete(second) == [first]
    assert checkpoints.pending == ()
    third, fourth = checkpoints.trigger(), checkpoints.trigger()
    assert checkpoints.ready({0: 1}) == fourth, "the newest of those that wait for nothing"
    assert checkpoints.complete(fourth) == [third]


def test_the_interval_asks_for_one_at_a_time() -> None:
    clock, checkpoints = fresh(interval=5)
    assert not checkpoints.is_due()
    clock.now = 5.0
    assert checkpoints.is_due()
    number = checkpoints.trigger()
    clock.now = 100.0
    assert not checkpoints.is_due(), "one is under way"
    checkpoints.complete(number)
    assert checkpoints.is_due()


def test_failures_in_a_row_are_counted_and_a_success_forgets_them() -> None:
    """002-41"""
    clock, checkpoints = fresh(timeout=10, tolerable=1)
    first = checkpoints.trigger()
    assert checkpoints.overdue() == []
    clock.now = 10.0
    assert checkpoints.overdue() == [first]
    checkpoints.abort(first)
    checkpoints.complete(checkpoints.trigger())
    checkpoints.abort(checkpoints.trigger())
    with pytest.raises(CheckpointsFailed, match="2 recovery checkpoints in a row failed, 1 are tolerated"):
        checkpoints.abort(checkpoints.trigger())
