"""A subtask's segments, one after another: read and verified ahead of the output, in order.

A reader thread keeps at most ``ahead`` segments waiting, so memory is bounded by the budget; one that is larger than
its share passes alone. Between two segments is where a recovery checkpoint cuts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager

from cdr_core.spill.set_reader import Segment, read_segment
from cdr_core.spill.sets import SpillSet

MOST_AHEAD = 4
"""Segments read ahead: with so many the reader is ahead of the output, and what it reads is still in the cache."""


class SegmentQueue(AbstractContextManager["SegmentQueue"]):
    """The segments with these numbers, in order. An error of the reader is raised where its segment would be taken."""

    def __init__(self, spill_set: SpillSet, numbers: list[int], budget: int, *, positions: bool) -> None:
        largest = int(spill_set.columns["length"].max(initial=1))
        self._set, self._numbers, self._positions = spill_set, numbers, positions
        self._ahead = max(1, min(MOST_AHEAD, budget // (2 * largest)))
        self._changed = threading.Condition()
        self._read: deque[Segment] = deque()
        self._failure: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="cdr-drain-reader", daemon=True)

    def __enter__(self) -> SegmentQueue:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def __iter__(self) -> Iterator[tuple[int, Segment]]:
        for number in self._numbers:
            with self._changed:
                self._changed.wait_for(lambda: self._read or self._failure is not None)
                if not self._read:
                    assert self._failure is not None, "the reader ends with every segment read, or fails"
                    raise self._failure
                segment = self._read.popleft()
                self._changed.notify_all()
            yield number, segment

    def _run(self) -> None:
        try:
            for number in self._numbers:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or len(self._read) < self._ahead)
                    if self._closed:
                        return
                segment = read_segment(self._set, number, positions=self._positions)
                with self._changed:
                    self._read.append(segment)
                    self._changed.notify_all()
        except Exception as error:  # belongs to the task's own thread
            with self._changed:
                self._failure = error
                self._changed.notify_all()
