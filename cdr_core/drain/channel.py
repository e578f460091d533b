"""A channel of a recovering subtask: its recovered queue, and its live view behind it.

The queue holds, in order: pages in memory; **parked** slices, whose bytes are only on disk; cut markers, everything
before which belongs to that checkpoint's memory part; and at last the end marker, also where there was no data. In a
queue every page comes before every parked slice.

Nothing here locks: all of it is guarded by the lock of the subtask (see :mod:`cdr_core.drain.inbox`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from cdr_core.drain.live import CheckpointRequest, LiveView
from cdr_core.drain.pages import Page
from cdr_core.drain.remaining import Slice
from cdr_core.errors import Declined, IllegalState, Where

Key = tuple[int, int]
"""(gate, channel)."""


@dataclass(frozen=True, slots=True)
class Marker:
    """What is before it belongs to this checkpoint."""

    checkpoint: int


class _End(Enum):
    END = "end of recovered data"


END = _End.END
Entry = Page | Slice | Marker | _End


class RecoveredChannel:
    """In recovery it serves recovered pages and priority events only; its end marker takes it out of recovery."""

    def __init__(self, gate: int, index: int, live: LiveView) -> None:
        self.gate, self.index, self.live = gate, index, live
        self.in_recovery = True
        self.released = False
        self.has_priority = False
        self.scheduled = False
        self.pages = self.parked_bytes = 0
        self.taken_to: tuple[int, int] | None = None
        self._entries: deque[Entry] = deque()
        self._ended = False

    @property
    def key(self) -> Key:
        return self.gate, self.index

    @property
    def is_available(self) -> bool:
        """Whether taking from it makes progress."""
        if self._entries:
            return not isinstance(self._entries[0], Slice)
        return not self.in_recovery and self.live.is_open and self.live.backlog > 0

    @property
    def is_finished(self) -> bool:
        """Recovered data and live input are both over."""
        return not self.in_recovery and self.live.is_exhausted

    @property
    def is_parked(self) -> bool:
        return self.parked_bytes > 0

    # --- the drainer's side ---

    def deliver(self, page: Page) -> None:
        """Append a recovered page. The page is the channel's from here on, whatever happens."""
        if self.released:
            page.recycle()
            return
        try:
            self._require_open_end()
            if self.is_parked:
                raise IllegalState("a page was delivered behind parked data", where=self._where())
        except IllegalState:
            page.recycle()
            raise
        self._entries.append(page)
        self.pages += 1

    def park(self, part: Slice) -> None:
        """Append a slice whose bytes stay on disk until somebody asks for them."""
        if self.released:
            return
        self._require_open_end()
        self._entries.append(part)
        self.parked_bytes += part.length

    def first_parked(self) -> Slice | None:
        """The parked slice that is to be loaded next."""
        place = self._first_parked()
        if place is None:
            return None
        part = self._entries[place]
        assert isinstance(part, Slice)
        return part

    def load(self, page: Page) -> None:
        """Replace the beginning of the first parked slice by its page, which is the channel's from here on."""
        if self.released:
            page.recycle()
            return
        place = self._first_parked()
        parked = None if place is None else self._entries[place]
        if place is None or not isinstance(parked, Slice) or page.slice != parked.take(page.slice.length):
            page.recycle()
            raise IllegalState("a page was loaded that was not parked", where=self._where())
        rest = parked.skip(page.slice.length)
        self._entries[place] = page
        if rest.length:
            self._entries.insert(place + 1, rest)
        self.pages += 1
        self.parked_bytes -= page.slice.length

    def reclaim(self) -> Page | None:
        """Park the last page again and hand it out for recycling: somebody else needs it more."""
        if not self.pages:
            return None
        seen = 0
        for place, entry in enumerate(self._entries):
            if isinstance(entry, Page):
                seen += 1
                if seen == self.pages:
                    self._entries[place] = entry.slice
                    self.pages -= 1
                    self.parked_bytes += entry.slice.length
                    return entry
        raise IllegalState("a channel counts more pages than it holds", where=self._where())

    def mark(self, checkpoint: int) -> None:
        """Insert a cut marker; behind the end marker, if that is there already."""
        if not self.in_recovery:
            raise IllegalState("a channel out of recovery takes no cut marker", where=self._where())
        self._entries.append(Marker(checkpoint))

    def end(self) -> None:
        """Insert the end marker: no more recovered data."""
        self._require_open_end()
        self._ended = True
        self._entries.append(END)

    # --- the task's side ---

    def take(self) -> Page | _End | None:
        """The next page, or the end marker (the channel has then left recovery), or ``None`` for now."""
        while self._entries:
            head = self._entries[0]
            if isinstance(head, Slice):
                return None
            self._entries.popleft()
            if isinstance(head, Page):
                self.pages -= 1
                self.taken_to = (head.slice.segment, head.slice.end)
                return head
            if head is END:
                self.in_recovery = False
                return END
            # A marker that is met here is of a checkpoint that was given up: a cut collects its own at once.
        return None if self.in_recovery else self.live.take()

    def take_priority(self) -> CheckpointRequest:
        """The priority event that was announced; announced and not there is a fault, never "nothing yet"."""
        event = self.live.take_priority()
        if not isinstance(event, CheckpointRequest):
            raise IllegalState(f"a priority event was announced, but {event!r} is there", where=self._where())
        self.has_priority = self.live.has_priority
        return event

    def collect(self, checkpoint: int) -> tuple[Slice, ...]:
        """What lies before this checkpoint's marker. The marker and older ones, which it subsumes, are removed.

        A missing marker, or a later one before it, is :class:`Declined`; the data stays where it is.
        """
        parts: list[Slice] = []
        kept: deque[Entry] = deque()
        entries = iter(self._entries)
        for entry in entries:
            if isinstance(entry, Marker):
                if entry.checkpoint == checkpoint:
                    kept.extend(entries)
                    self._entries = kept
                    return tuple(parts)
                if entry.checkpoint > checkpoint:
                    what = f"the marker of checkpoint {entry.checkpoint} comes before that of {checkpoint}"
                    raise Declined(what, where=self._where())
                continue
            kept.append(entry)
            if isinstance(entry, Page):
                parts.append(entry.slice)
            elif isinstance(entry, Slice):
                parts.append(entry)
        raise Declined(f"the marker of checkpoint {checkpoint} is missing", where=self._where())

    def release(self) -> list[Page]:
        """Give up everything; whoever calls recycles the pages."""
        pages = [entry for entry in self._entries if isinstance(entry, Page)]
        self.released = True
        self.pages = self.parked_bytes = 0
        self._entries.clear()
        self.live.release()
        return pages

    def _first_parked(self) -> int | None:
        if not self.parked_bytes:
            return None
        return next(place for place, entry in enumerate(self._entries) if isinstance(entry, Slice))

    def _require_open_end(self) -> None:
        if self._ended:
            raise IllegalState("recovered data was delivered after the end marker", where=self._where())

    def _where(self) -> Where:
        return Where(gate=self.gate, channel=self.index)
