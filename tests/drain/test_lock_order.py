"""Two threads that take two locks take them in the same order."""

from __future__ import annotations

import threading
import time
from random import Random

from cdr_core.drain.live import CheckpointRequest, LiveView
from cdr_core.drain.pages import Page, PagePool
from cdr_core.drain.remaining import whole
from cdr_core.drain.subtask import RecoveringSubtask
from tests.drain.support import (
    MemoryReader,
    bodies,
    keys,
    memory_set,
    within,
)
from tests.drain.test_threads import SECONDS, random_parts


class OrderedLock:
    """A lock that notes which others its thread holds when it takes this one."""

    held = threading.local()

    def __init__(self, name: str, edges: set[tuple[str, str]]) -> None:
        self._lock, self._name, self._edges = threading.Lock(), name, edges

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        mine = self.held.__dict__.setdefault("names", [])
        if blocking:
            self._edges.update((other, self._name) for other in mine)
        if not self._lock.acquire(blocking, timeout):
            return False
        mine.append(self._name)
        return True

    def release(self) -> None:
        self.held.names.remove(self._name)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_locks_are_taken_in_one_order() -> None:
    """003-10, 003-11: the subtask's, then a pool's or a view's; never the other way round."""
    edges: set[tuple[str, str]] = set()
    parts = random_parts(Random(4), 60)
    spill_set = memory_set(parts)
    pool = PagePool(2, 16, lock=OrderedLock("pool", edges))  # type: ignore[arg-type]  # a lock in all that is used
    views: list[LiveView] = []

    def view(gate: int, channel: int) -> LiveView:
        made = LiveView(credit=1000)
        made._lock = OrderedLock("view", edges)  # type: ignore[assignment]
        views.append(made)
        return made

    def upstream(stop: threading.Event) -> None:
        number = 0
        while not stop.is_set():
            for each in views:
                number += 1
                each.send_priority(CheckpointRequest(number))
                if each.credit:
                    each.send(b"live")
            time.sleep(0.001)

    def run() -> None:
        stop = threading.Event()
        lock = OrderedLock("subtask", edges)
        with RecoveringSubtask(
            spill_set,
            MemoryReader(bodies(parts)),
            keys(parts),
            pool,
            whole(spill_set),
            live=view,
            lock=lock,  # type: ignore[arg-type]
        ) as subtask:
            subtask.start()
            sender = threading.Thread(target=upstream, args=(stop,), daemon=True)
            sender.start()
            while not subtask.done:
                if subtask.due():
                    subtask.cut(max(subtask.due()))
                page = subtask.poll(0.01, {1} if not subtask.is_live(1) else None)
                if page is not None:
                    page.recycle()
            stop.set()
            sender.join()

    within(SECONDS, run)
    assert edges == {("subtask", "pool"), ("subtask", "view")}


class Sections:
    """What a thread does while it holds a lock, section by section."""

    def __init__(self) -> None:
        self.done: list[list[str]] = []
        self._lock, self._mine = threading.Lock(), threading.local()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._lock.acquire(blocking, timeout):
            return False
        self._mine.does = []
        return True

    def release(self) -> None:
        self.done.append(self._mine.does)
        self._mine.does = None
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def note(self, what: str) -> None:
        if getattr(self._mine, "does", None) is not None:
            self._mine.does.append(what)


class NotingPool(PagePool):
    def __init__(self, sections: Sections) -> None:
        super().__init__(2, 16)
        self._sections = sections

    def try_request(self) -> Page | None:
        self._sections.note("request")
        return super().try_request()

    def recycle(self, page: Page) -> None:
        self._sections.note("recycle")
        super().recycle(page)

    def wait(self, seen: int) -> None:
        self._sections.note("wait")
        super().wait(seen)


class NotingView(LiveView):
    def __init__(self, sections: Sections) -> None:
        super().__init__()
        self._sections = sections

    def open(self) -> None:
        self._sections.note("convert")
        super().open()

    def release(self) -> None:
        self._sections.note("release")
        super().release()


def test_a_channel_is_converted_and_released_with_nothing_slow_under_the_lock() -> None:
    """003-11: the lock is held for what changes the structure; neither the disk nor the pool is used meanwhile."""
    sections, parts = Sections(), random_parts(Random(5), 60)
    spill_set = memory_set(parts)

    def subtask() -> RecoveringSubtask:
        return RecoveringSubtask(
            spill_set,
            MemoryReader(bodies(parts), before=lambda _: sections.note("read")),
            keys(parts),
            NotingPool(sections),
            whole(spill_set),
            live=lambda *_: NotingView(sections),
            lock=sections,  # type: ignore[arg-type]
        )

    def run() -> None:
        with subtask() as whole_way:
            whole_way.start()
            while not all(whole_way.is_live(gate) for gate, _ in keys(parts)):
                page = whole_way.poll(0.01)
                if page is not None:
                    page.recycle()
        with subtask() as closed_early:
            closed_early.start()
            while closed_early.poll(0.01) is None:  # it is taken while others wait in queues: closing releases those
                continue

    within(SECONDS, run)
    converted = [section for section in sections.done if "convert" in section]
    assert sum(section.count("convert") for section in converted) == len(set(keys(parts)))
    assert all(set(section) == {"convert"} for section in converted)
    released = [section for section in sections.done if "release" in section]
    assert released
    assert all(set(section) == {"release"} for section in released)
