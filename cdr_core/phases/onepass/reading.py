"""Reading for one new subtask: the virtual channels that may feed it, one after another, down to its own elements.

A channel with several possible owners is read through the task's one read page and its records' owners are found; one
that passes through is framed, never decoded. What a channel holds in all is noted by the task of its first possible
owner, so that the source is described once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from cdr_core.audit.ledger import ChannelKey, Entry, Tally
from cdr_core.errors import Unbalanced
from cdr_core.flink.paged import paged_windows
from cdr_core.flink.read_page import ReadPage
from cdr_core.flink.types import TypeDescription, parse_type
from cdr_core.flink.virtual_channel import ChannelBytes, Window, windows
from cdr_core.kernels import fingerprint, frames
from cdr_core.phases.onepass.parcels import Bytes, Longs, Parcel
from cdr_core.phases.quarantine import QUARANTINE, put_aside, shows_values
from cdr_core.phases.spill import subtask_entry
from cdr_core.rescale.other_elements import (
    CLOSING_POSITION,
    CLOSING_PREFIX,
    Last,
    Rule,
    account,
    carried,
    closing_behind,
    kinds,
    rules,
)
from cdr_core.rescale.owners import window_owners
from cdr_core.rescale.salvage import open_again
from cdr_core.rescale.scanning import WINDOW, said, salvage_channel
from cdr_core.rescale.selection import RUN_COLUMNS
from cdr_core.rescale.source import open_channel, place
from cdr_core.storage.local import local_path

if TYPE_CHECKING:
    from cdr_core.phases.unit import Job
    from cdr_core.rescale.plan import Plan


class FeedReader:
    """Reads channel by channel; what it has noted of each is what the phases `read` and `filter` leave of it.

    ``source``: the channels of which this subtask is the first possible owner. ``parts``: its own part of each channel.
    ``accounts``: what became of the other elements, of the channels in ``source``. ``routed``: the ledger lines of what
    it handed on, closing elements included, by channel.
    """

    def __init__(self, job: Job, plan: Plan, subtask: int, name: str, page: ReadPage) -> None:
        self._job, self._plan, self._subtask, self._name, self._page = job, plan, subtask, name, page
        self._last: dict[tuple[int, int, int], Last] = {}
        self.source: list[dict[str, Any]] = []
        self.parts: list[dict[str, Any]] = []
        self.accounts: list[dict[str, Any]] = []
        self.routed: dict[int, Entry] = {}
        self.bytes_read = 0

    def channels(self) -> list[int]:
        """The virtual channels that may feed the subtask, in the order of the drain."""
        plan = self._plan
        mine = [number for number, channel in enumerate(plan.channels) if self._subtask in channel.subtasks]
        places = {n: (plan.exchanges[plan.channels[n].exchange].gate, plan.channels[n].new_up, n) for n in mine}
        return sorted(mine, key=places.__getitem__)

    def parcels(self) -> Iterator[Parcel]:
        """Everything that goes to the subtask, in order; a parcel is valid until the next one is asked for."""
        numbers = self.channels()
        # Channels of one new channel follow each other, so the last of them is read when all of them are.
        ends = {self._new_channel(number): number for number in numbers if self._rule(number) is Rule.MERGED}
        for number in numbers:
            yield from self._read(number)
            if ends.get(self._new_channel(number)) == number:
                yield from self._close(number)

    def _new_channel(self, number: int) -> tuple[int, int]:
        channel = self._plan.channels[number]
        return channel.exchange, channel.new_up

    def _rule(self, number: int) -> Rule:
        return rules(self._plan, number)[self._plan.channels[number].subtasks.index(self._subtask)]

    def _read(self, number: int) -> Iterator[Parcel]:
        planned = self._plan.channels[number]
        lane = planned.subtasks.index(self._subtask)
        channel, end, described = self._open(number, first=lane == 0)
        part = _Part(rules(self._plan, number), lane)
        with closing(self._windows(number, channel, end)) as reading:
            for window in reading:
                self.bytes_read += int(window.ends[-1])
                body, positions = part.take(window, self._lanes(number, window))
                if len(positions):
                    yield from self._cut(number, body, positions)
        self._note(number, channel, end, part, described)

    def _open(self, number: int, *, first: bool) -> tuple[ChannelBytes, int, dict[str, Any]]:
        """The channel, where its sound part ends, and what `read` would say of damage behind it."""
        if self._job.on_corrupt != QUARANTINE:
            channel = open_channel(self._plan, number)
            return channel, channel.size, {}
        if first:
            found = put_aside(self._job, self._plan, number, self._name)
            damaged = "quarantine" in found
        else:
            found, _, damage = salvage_channel(self._plan, number, shown=shows_values(self._job.target))
            damaged = damage is not None
        end = found["splits"][-1]["end"] if found["splits"] else 0
        aside = {"quarantine": found["quarantine"]} if "quarantine" in found else {}
        return open_again(self._plan, number, damaged), end, {**aside, "damaged": damaged}

    def _windows(self, number: int, channel: ChannelBytes, end: int) -> Generator[Window]:
        if len(self._plan.channels[number].subtasks) > 1:
            yield from paged_windows(channel, 0, end, 0, self._page, local_path(self._job.directory))
        else:
            yield from windows(channel, 0, end, 0, WINDOW)

    def _lanes(self, number: int, window: Window) -> Longs:
        """Per element its owner as an index into the channel's owners; −1 for what is not a record."""
        planned = self._plan.channels[number]
        if len(planned.subtasks) == 1:
            return np.where(window.records, 0, -1).astype(np.int64)
        exchange, where = self._plan.exchanges[planned.exchange], place(self._plan, number)
        owners = window_owners(exchange, _type(exchange.record), window, where)
        first = self._plan.subtasks[planned.subtasks[0]].index
        found = owners[owners >= 0] - first
        if len(found) and not 0 <= found.min() <= found.max() < len(planned.subtasks):
            raise Unbalanced("a record belongs to a subtask that the plan does not send it to", where=where)
        return np.where(owners >= 0, owners - first, -1)

    def _cut(self, number: int, body: Bytes, positions: Longs) -> Iterator[Parcel]:
        """Parcels of about a page, between elements; they are counted here, from the bytes that go on."""
        count = len(positions)
        starts, ends, tags = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int8)
        found, used, _ = frames.scan_frames(body, len(body), starts, ends, tags, len(body))
        line = self.routed.get(number, subtask_entry(self._plan, self._subtask, number, Tally()))
        if (found, used) != (count, len(body)):
            what = f"one pass gathered {found} elements where {count} were selected"
            raise Unbalanced(what, where=line.key.where)
        self.routed[number] = line.then(_counted(line.key, body, starts, ends, tags))
        first = 0
        while first < count:
            begin = int(ends[first - 1]) if first else 0
            upto = max(int(np.searchsorted(ends, begin + self._page.size, side="right")), first + 1)
            yield Parcel(number, body[begin : int(ends[upto - 1])], positions[first:upto])
            first = upto

    def _close(self, number: int) -> Iterator[Parcel]:
        """The closing elements behind the last record of a merged new channel, if it has any."""
        close = closing_behind(self._plan, number, self._subtask, lambda feed: self._last.get(feed, Last()))
        if not close.others:
            return
        line = self.routed.get(number, subtask_entry(self._plan, self._subtask, number, Tally()))
        body = np.frombuffer(close.frames, np.uint8)
        yield from self._cut(number, body, np.full(len(close.others), CLOSING_POSITION, np.int64))
        before, after = line.others, self.routed[number]
        added = {kind: count - before.get(kind, 0) for kind, count in after.others.items()}
        closed = {f"{CLOSING_PREFIX}{kind}": count for kind, count in added.items() if count}
        self.routed[number] = line.then(Entry(line.key, Tally(), closed))

    def _note(self, number: int, channel: ChannelBytes, end: int, part: _Part, described: dict[str, Any]) -> None:
        planned = self._plan.channels[number]
        self._last[planned.exchange, planned.up, planned.down] = part.last
        if part.is_first:
            self._note_source(number, channel, end, part, described)
        if not end:
            return
        mine = subtask_entry(self._plan, self._subtask, number, Tally())
        self.routed.setdefault(number, mine)
        self.parts.append(
            {
                "channel": number,
                "split": 0,
                "damaged": bool(described.get("damaged")),
                "subtask": self._subtask,
                "entry": Entry(mine.key, part.tally, part.others).to_json(),
            }
        )
        if part.is_first:
            self.accounts.append({"channel": number, **part.account})

    def _note_source(
        self, number: int, channel: ChannelBytes, end: int, part: _Part, described: dict[str, Any]
    ) -> None:
        planned = self._plan.channels[number]
        key = ChannelKey(self._plan.exchanges[planned.exchange].name, planned.up, planned.down)
        whole = {"tally": part.source.to_json(), "others": part.source_others}
        self.source.append(
            {
                "channel": number,
                "size": channel.size,
                "input_size": channel.input_size,
                "splits": [{"start": 0, "end": end, "position": 0, **whole}] if end else [],
                "last": part.last.to_json(),
                "entry": Entry(key, part.source, part.source_others).to_json(),
                **({"quarantine": described["quarantine"]} if "quarantine" in described else {}),
            }
        )


class _Part:
    """One lane of a channel as its windows pass by, and the whole channel where this lane is its first."""

    def __init__(self, of: tuple[Rule, ...], lane: int) -> None:
        self._carried, self._lane = carried(of), lane
        self.is_first = lane == 0
        self._mine = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64)
        self._all = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64)
        self._counts = np.zeros((len(of) + 2, frames.TAGS), np.int64)
        self._kinds = np.zeros(frames.TAGS, np.int64)
        self.last = Last()

    def take(self, window: Window, lanes: Longs) -> tuple[Bytes, Longs]:
        """This lane's elements of a window: their frames, one after another, and their positions."""
        self.last = said(window, self.last)
        fingerprint.fold_records(
            window.data, window.starts, window.ends, np.where(lanes == self._lane, 0, -1), self._mine
        )
        if self.is_first:
            self._kinds += np.bincount(window.tags, minlength=frames.TAGS)
            fingerprint.fold_records(
                window.data, window.starts, window.ends, np.where(window.records, 0, -1), self._all
            )
        return self._gathered(window, self._runs(window, lanes))

    def _runs(self, window: Window, lanes: Longs) -> list[Longs]:
        """This lane's runs: start, end, first position, elements."""
        room = len(lanes) + int(np.count_nonzero(lanes < 0)) * (len(self._carried) - 1)
        columns = [np.empty(room, np.int64) for _ in RUN_COLUMNS]
        count = frames.select_runs(
            window.starts, window.ends, window.tags, lanes, self._carried, window.base, window.position, self._counts,
            *columns,
        )  # fmt: skip
        mine = columns[0][:count] == self._lane
        return [column[:count][mine] for column in columns[1:]]

    def _gathered(self, window: Window, runs: list[Longs]) -> tuple[Bytes, Longs]:
        starts, ends, first, count = runs
        positions = np.empty(int(count.sum()), np.int64)
        frames.expand_positions(first, count, positions)
        if len(starts) == 1:
            return window.data[int(starts[0]) - window.base : int(ends[0]) - window.base], positions
        body = np.empty(int((ends - starts).sum()), np.uint8)
        frames.gather_runs(window.data, window.base, starts, ends, body)
        return body, positions

    @property
    def tally(self) -> Tally:
        return Tally.of_fold(self._mine[0])

    @property
    def source(self) -> Tally:
        return Tally.of_fold(self._all[0])

    @property
    def others(self) -> dict[str, int]:
        return kinds(self._counts[self._lane].tolist())

    @property
    def source_others(self) -> dict[str, int]:
        return kinds(self._kinds.tolist())

    @property
    def account(self) -> dict[str, dict[str, int]]:
        *_, in_place, left = self._counts.tolist()
        return account(in_place, left)


def _counted(key: ChannelKey, body: Bytes, starts: Longs, ends: Longs, tags: Any) -> Entry:
    sums = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64)
    fingerprint.fold_records(body, starts, ends, np.where(tags <= frames.TAG_RECORD, 0, -1), sums)
    return Entry(key, Tally.of_fold(sums[0]), kinds(np.bincount(tags, minlength=frames.TAGS).tolist()))


@lru_cache(maxsize=64)
def _type(text: str) -> TypeDescription:
    return parse_type(text)
