"""One channel: recovered pages first, markers in their place, the end marker once, live data afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from cdr_core.drain.channel import END, RecoveredChannel
from cdr_core.drain.live import CheckpointRequest, LiveView
from cdr_core.drain.pages import Page, PagePool
from cdr_core.drain.remaining import Slice
from cdr_core.errors import Declined, IllegalState

POOL_PAGES = 10


@pytest.fixture
def pool() -> PagePool:
    return PagePool(POOL_PAGES, 4)


def page(pool: PagePool, number: int) -> Page:
    part = Slice(number, 0, 4)
    return pool.request().fill(np.full(4, number, np.uint8), 1, 2, part)


def channel(live: LiveView | None = None) -> RecoveredChannel:
    made = RecoveredChannel(1, 2, live or LiveView(ended=True))
    made.live.attach(1, 2, lambda: None, lambda: setattr(made, "has_priority", True), lambda _: None)
    return made


def numbers(parts: tuple[Slice, ...]) -> list[int]:
    return [part.segment for part in parts]


def test_a_checkpoint_holds_the_pages_before_its_marker(pool: PagePool) -> None:
    """003-02: and they stay in the queue for the consumer."""
    one = channel()
    for number in (0, 1):
        one.deliver(page(pool, number))
    one.mark(7)
    one.deliver(page(pool, 2))
    assert numbers(one.collect(7)) == [0, 1]
    taken = [one.take() for _ in range(3)]
    assert [each.slice.segment for each in taken if isinstance(each, Page)] == [0, 1, 2]


def test_nested_checkpoints_hold_what_was_before_their_own_marker(pool: PagePool) -> None:
    one = channel()
    one.deliver(page(pool, 0))
    one.mark(1)
    one.deliver(page(pool, 1))
    one.mark(2)
    assert numbers(one.collect(1)) == [0]
    assert numbers(one.collect(2)) == [0, 1]


def test_a_newer_checkpoint_subsumes_the_markers_of_older_ones(pool: PagePool) -> None:
    """E33: the older one can never complete afterwards."""
    one = channel()
    one.mark(1)
    one.deliver(page(pool, 0))
    one.mark(2)
    assert numbers(one.collect(2)) == [0]
    with pytest.raises(Declined, match="marker of checkpoint 1 is missing"):
        one.collect(1)


def test_a_later_marker_before_the_own_one_is_declined(pool: PagePool) -> None:
    """002-41: a fault that must be counted, not "not ready"; nothing is lost by it."""
    one = channel()
    one.mark(2)
    one.deliver(page(pool, 0))
    one.mark(1)
    with pytest.raises(Declined, match="comes before"):
        one.collect(1)
    assert isinstance(one.take(), Page)


def test_a_missing_marker_is_declined_and_the_page_neither_lost_nor_stored(pool: PagePool) -> None:
    """002-10, 002-41."""
    one = channel()
    one.deliver(page(pool, 0))
    with pytest.raises(Declined, match="missing"):
        one.collect(1)
    one.mark(2)
    assert numbers(one.collect(2)) == [0]
    assert isinstance(one.take(), Page)


def test_pages_consumed_while_a_checkpoint_is_open_are_not_stored_again(pool: PagePool) -> None:
    """003-02: two pages stay two."""
    one = channel()
    one.deliver(page(pool, 0))
    one.deliver(page(pool, 1))
    one.mark(1)
    stored = one.collect(1)
    for _ in range(2):
        taken = one.take()
        assert isinstance(taken, Page)
        taken.recycle()
    assert numbers(stored) == [0, 1]
    one.mark(2)
    assert one.collect(2) == ()


def test_a_marker_behind_the_end_marker_is_found(pool: PagePool) -> None:
    one = channel()
    one.deliver(page(pool, 0))
    one.end()
    one.mark(1)
    assert numbers(one.collect(1)) == [0]
    assert isinstance(one.take(), Page)
    assert one.take() is END
    assert not one.in_recovery


def test_the_end_marker_takes_the_channel_out_of_recovery_also_an_empty_one() -> None:
    """002-23, 002-31: "empty for now" is not the end."""
    one = channel()
    assert one.take() is None
    assert one.in_recovery
    one.end()
    assert one.is_available
    assert one.take() is END
    assert not one.in_recovery


def test_nothing_follows_the_end_marker(pool: PagePool) -> None:
    """A page that is refused is given back, once, by the channel that took it."""
    one = channel()
    one.end()
    late = page(pool, 0)
    with pytest.raises(IllegalState, match="after the end marker"):
        one.deliver(late)
    assert pool.in_use == 0
    with pytest.raises(IllegalState, match="after the end marker"):
        one.end()


def test_no_page_overtakes_parked_data(pool: PagePool) -> None:
    """000-05: what lies on disk comes first."""
    one = channel()
    one.park(Slice(0, 0, 10))
    with pytest.raises(IllegalState, match="behind parked data"):
        one.deliver(page(pool, 1))
    assert pool.in_use == 0


def test_parked_data_keeps_its_place_and_is_part_of_a_cut(pool: PagePool) -> None:
    one = channel()
    one.deliver(page(pool, 0))
    one.park(Slice(1, 0, 6))
    one.mark(1)
    assert one.collect(1) == (Slice(0, 0, 4), Slice(1, 0, 6))
    one.load(page(pool, 1))
    one.mark(2)
    assert one.collect(2) == (Slice(0, 0, 4), Slice(1, 0, 4), Slice(1, 4, 2))
    reclaimed = one.reclaim()
    assert reclaimed is not None
    assert reclaimed.slice == Slice(1, 0, 4)
    assert (one.pages, one.parked_bytes) == (1, 6)
    assert isinstance(one.take(), Page)
    assert one.take() is None
    assert not one.is_available


def test_loading_what_was_not_parked_is_an_error_and_gives_the_page_back(pool: PagePool) -> None:
    one = channel()
    one.park(Slice(3, 4, 6))
    with pytest.raises(IllegalState, match="not parked"):
        one.load(page(pool, 3))
    assert pool.in_use == 0


def test_a_released_channel_silently_gives_pages_back(pool: PagePool) -> None:
    """002-21: release while a delivery is under way."""
    one = channel()
    one.deliver(page(pool, 0))
    for held in one.release():
        held.recycle()
    one.deliver(page(pool, 1))
    one.park(Slice(2, 0, 4))
    one.load(page(pool, 2))
    assert pool.in_use == 0
    assert one.first_parked() is None


def test_a_channel_out_of_recovery_takes_no_marker() -> None:
    """002-22: recovered data and live data of one channel are never in the same checkpoint."""
    one = channel()
    one.end()
    one.take()
    with pytest.raises(IllegalState, match="out of recovery"):
        one.mark(1)


def test_live_data_in_recovery_is_a_fault() -> None:
    failures: list[Exception] = []
    view = LiveView()
    view.attach(0, 0, lambda: None, lambda: None, failures.append)
    assert view.credit == 0
    with pytest.raises(IllegalState, match="during recovery"):
        view.send(b"too early")
    assert len(failures) == 1
    assert view.backlog == 0


def test_live_data_flows_after_the_end_marker_and_credit_comes_back() -> None:
    """002-01: no credit until the recovered data is consumed."""
    one = channel(LiveView(credit=1))
    one.end()
    assert one.take() is END
    one.live.open()
    one.live.send(b"live")
    assert one.live.credit == 0
    taken = one.take()
    assert isinstance(taken, Page)
    assert taken.is_live
    assert taken.data.tobytes() == b"live"
    taken.recycle()
    assert one.live.credit == 1
    with pytest.raises(IllegalState, match="no place"):
        _ = taken.slice


def test_a_priority_event_passes_recovered_pages(pool: PagePool) -> None:
    """003-03, 003-06: the first one waiting is announced, and the flag goes when none is left."""
    one = channel(LiveView())
    one.deliver(page(pool, 0))
    one.live.send_priority(CheckpointRequest(5))
    one.live.send_priority(CheckpointRequest(6))
    assert one.has_priority
    assert one.take_priority() == CheckpointRequest(5)
    assert one.has_priority
    assert one.take_priority() == CheckpointRequest(6)
    assert not one.has_priority
    assert isinstance(one.take(), Page)


def test_only_the_first_waiting_priority_event_is_announced() -> None:
    """003-06: exactly one notification until it is taken."""
    announced: list[int] = []
    view = LiveView()
    view.attach(0, 0, lambda: None, lambda: announced.append(1), lambda _: None)
    view.send_priority(CheckpointRequest(1))
    view.send_priority(CheckpointRequest(2))
    assert len(announced) == 1
    view.take_priority()
    view.take_priority()
    view.send_priority(CheckpointRequest(3))
    assert len(announced) == 2


def test_a_priority_event_sent_before_the_channel_existed_is_announced() -> None:
    view = LiveView()
    view.send_priority(CheckpointRequest(1))
    assert channel(view).has_priority


class WrongView(LiveView):
    """Announces and then has something else, or nothing."""

    def __init__(self, event: object) -> None:
        super().__init__()
        self._event = event

    def take_priority(self) -> CheckpointRequest | None:
        return self._event  # type: ignore[return-value]  # the fault under test


@pytest.mark.parametrize("event", [None, "data"])
def test_a_priority_event_that_was_announced_and_is_not_there_fails_at_once(event: object) -> None:
    """003-04."""
    one = channel(WrongView(event))
    one.has_priority = True
    with pytest.raises(IllegalState, match="was announced"):
        one.take_priority()
