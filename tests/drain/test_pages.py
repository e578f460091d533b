"""Pages: never more than the pool has, each given back once, and nobody waits for a pool that is closed."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from cdr_core.drain.pages import PagePool
from cdr_core.drain.remaining import Slice
from cdr_core.errors import Closed, IllegalState, SettingsRefused
from tests.drain.support import within

DATA = np.frombuffer(b"abc", np.uint8)


def test_a_pool_never_grows() -> None:
    """002-35, 000-01: exhausted means "none", not one more."""
    pool = PagePool(2, 8)
    first, second = pool.request(), pool.try_request()
    assert second is not None
    assert pool.try_request() is None
    assert (pool.in_use, pool.available) == (2, 0)
    first.recycle()
    assert pool.try_request() is not None
    assert (pool.requested, pool.recycled, pool.most_in_use) == (3, 1, 2)


def test_recycling_twice_is_an_error_and_frees_nobody_elses_page() -> None:
    """000-15, 001-04: loud, and the counters do not move."""
    pool = PagePool(1, 8)
    page = pool.request().fill(DATA, 0, 1, Slice(0, 0, 3))
    page.recycle()
    other = pool.request()
    with pytest.raises(IllegalState, match="recycled twice"):
        page.recycle()
    assert pool.in_use == 1
    other.recycle()


def test_a_recycled_page_cannot_be_read_but_a_view_taken_before_can() -> None:
    """000-15, 001-12: the view belongs to the segment, not to the page."""
    page = PagePool(1, 8).request().fill(DATA, 0, 1, Slice(0, 0, 3))
    view = page.data
    page.recycle()
    assert view.tobytes() == b"abc"
    with pytest.raises(IllegalState, match="holds nothing"):
        _ = page.data


def test_a_request_waits_for_a_page() -> None:
    pool = PagePool(1, 8)
    page = pool.request()
    threading.Timer(0.05, page.recycle).start()
    within(10, lambda: pool.request().recycle())
    assert (pool.requested, pool.in_use, pool.most_in_use) == (2, 0, 1), "the second came after the first was back"


def test_closing_wakes_whoever_waits_with_an_error_and_still_takes_pages_back() -> None:
    pool = PagePool(1, 8)
    page = pool.request()
    threading.Timer(0.05, pool.close).start()

    def wait() -> None:
        with pytest.raises(Closed):
            pool.request()

    within(10, wait)
    page.recycle()
    assert pool.in_use == 0
    with pytest.raises(Closed):
        pool.try_request()


def test_a_change_between_trying_and_waiting_is_not_missed() -> None:
    """003-13: no lost wake-up."""
    pool = PagePool(1, 8)
    page = pool.request()
    seen = pool.changes
    assert pool.try_request() is None
    page.recycle()
    within(10, lambda: pool.wait(seen))


def test_many_threads_share_a_small_pool() -> None:
    pool = PagePool(3, 8)

    def work() -> None:
        for _ in range(200):
            page = pool.request()
            time.sleep(0)
            page.recycle()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]

    def run() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    within(30, run)
    assert (pool.requested, pool.in_use) == (1600, 0)
    assert pool.most_in_use <= 3


@pytest.mark.parametrize(("pages", "size"), [(0, 8), (1, 0), (-1, 8)])
def test_a_pool_that_holds_nothing_is_refused(pages: int, size: int) -> None:
    with pytest.raises(SettingsRefused):
        PagePool(pages, size)
