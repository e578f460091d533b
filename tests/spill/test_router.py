"""The router: three paths, one order, whatever room there is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdr_core.spill.router import Route, route


class Deliveries:
    """A consumer with a bounded queue, and a disk: does what the router says and nothing of its own."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.queue: deque[int] = deque()
        self.disk: deque[int] = deque()
        self.consumed: list[int] = []
        self.taken: list[Route] = []
        self.spilled = 0

    @property
    def room(self) -> bool:
        return len(self.queue) < self.limit

    def page(self, number: int) -> None:
        path = route(disk_non_empty=bool(self.disk), room=self.room)
        self.taken.append(path)
        if path.appends:
            self.disk.append(number)
            self.spilled += 1
        else:
            assert self.room, "a page went to memory without room"
            self.queue.append(number)
        if path is Route.REPLAY:
            self.replay()

    def replay(self) -> None:
        while self.disk and self.room:
            self.queue.append(self.disk.popleft())

    def consume(self, count: int) -> None:
        for _ in range(min(count, len(self.queue))):
            self.consumed.append(self.queue.popleft())

    def drain(self) -> None:
        """After the last page: blocking requests, nothing else is held."""
        while self.disk or self.queue:
            self.replay()
            self.consume(1)


def run(limit: int, consumed_between: Sequence[int]) -> Deliveries:
    deliveries = Deliveries(limit)
    for number, count in enumerate(consumed_between):
        deliveries.page(number)
        deliveries.consume(count)
    deliveries.drain()
    return deliveries


@pytest.mark.seed("000-06", "000-07")
@given(st.integers(1, 5), st.lists(st.integers(0, 4), max_size=200))
def test_whatever_room_there_is_pages_come_out_in_the_order_they_came_in(limit: int, between: list[int]) -> None:
    """Over random availability the output sequence is the input sequence."""
    assert run(limit, between).consumed == list(range(len(between)))


@pytest.mark.seed("000-06")
@pytest.mark.parametrize(
    ("disk_non_empty", "room", "path"),
    [
        (False, True, Route.MEMORY),
        (False, False, Route.DISK),
        (True, True, Route.REPLAY),
        (True, False, Route.REPLAY),
    ],
)
def test_what_lies_on_disk_wins_then_room_decides(disk_non_empty: bool, room: bool, path: Route) -> None:
    """A pure function of two facts, over all of their values."""
    assert route(disk_non_empty=disk_non_empty, room=room) is path


@pytest.mark.seed("000-03")
def test_what_fits_never_touches_the_disk() -> None:
    """A recovery whose consumer keeps up spills nothing."""
    deliveries = run(2, [1] * 50)
    assert set(deliveries.taken) == {Route.MEMORY}
    assert deliveries.spilled == 0


@pytest.mark.seed("000-04")
def test_a_stalled_consumer_does_not_stop_the_reader() -> None:
    """Every page is taken, and what has no room lies on disk."""
    deliveries = Deliveries(2)
    for number in range(50):
        deliveries.page(number)
    assert (len(deliveries.queue), len(deliveries.disk), deliveries.spilled) == (2, 48, 48)
    assert deliveries.taken[:3] == [Route.MEMORY, Route.MEMORY, Route.DISK]


@pytest.mark.seed("000-05")
def test_a_consumer_that_moves_again_gets_the_disk_first() -> None:
    """New pages queue behind the disk until it is empty, then memory is used again."""
    deliveries = run(2, [0] * 10 + [3] * 20)
    assert deliveries.consumed == list(range(30))
    assert deliveries.taken[10] is Route.REPLAY
    assert deliveries.taken[-1] is Route.MEMORY
