"""Checkpoint requests that wait: which time counts, and what is over."""

from __future__ import annotations

import pytest

from cdr_core.drain.requests import Requests


@pytest.mark.parametrize("timeouts", [(5.0, 60.0), (60.0, 5.0)])
def test_asked_twice_the_earlier_time_counts(timeouts: tuple[float, float]) -> None:
    now = 0.0
    requests = Requests(lambda: now)
    for timeout in timeouts:
        requests.add(1, timeout)
    now = 4.9
    assert requests.due(consumed=False) == ()
    now = 5.0
    assert requests.due(consumed=False) == (1,)


def test_what_was_tried_is_not_asked_for_again() -> None:
    requests = Requests(lambda: 0.0)
    requests.add(3, None)
    requests.settle(3)
    for checkpoint in (2, 3):
        requests.add(checkpoint, None)
        assert requests.due(consumed=True) == ()
    requests.add(4, None)
    assert requests.due(consumed=True) == (4,)
