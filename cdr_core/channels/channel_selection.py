"""The selection: the bytes of a split of a virtual channel that belong to each new subtask, as runs.

A channel with one possible owner passes through: if all of its elements are kept, it is not read. Of the others every
record is read through the task's one read page, its owner found, and neighbours of one owner joined into runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import Tally
from cdr_core.channels.channel_source import place
from cdr_core.channels.control_elements import Rule, account, carried, kinds, rules
from cdr_core.channels.filter_context import FilterContext
from cdr_core.channels.record_owners import Misplaced, lanes_of_groups, placed, record_owners
from cdr_core.channels.salvage import open_again
from cdr_core.errors import Unbalanced, Where
from cdr_core.flink.decode import BadValue
from cdr_core.flink.key_sorter import Sorter
from cdr_core.flink.keys import key_place
from cdr_core.flink.paged_reader import paged_windows
from cdr_core.flink.read_page import ReadPage
from cdr_core.flink.types import parse_type
from cdr_core.flink.virtual_channel import ChannelBytes, Window, windows
from cdr_core.kernels import element_runs, fingerprint, frames
from cdr_core.planning.job_spec import Partitioner
from cdr_core.planning.plan import Plan, VirtualChannel

Longs = npt.NDArray[np.int64]

RUN_COLUMNS = ("lane", "start", "end", "position", "count")
"""A run: its lane, the logical bytes [start, end), the first element's position, and how many elements it has."""

WINDOW = 1024 * 1024
"""Bytes of a pass-through channel framed at once, where it has to be framed."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Runs of one split. By lane (= index into the channel's possible owners): the columns of its runs without the lane
    itself, the tally of its records, and its other elements by kind. ``account``: every other element of the split
    once, by kind, as kept, merged or dropped. The runs are valid until the next selection.
    """

    runs: tuple[tuple[Longs, ...], ...]
    tallies: tuple[Tally, ...]
    others: tuple[Mapping[str, int], ...]
    account: Mapping[str, Mapping[str, int]]

    def of_lane(self, lane: int) -> tuple[Longs, ...]:
        """Return the columns of one lane's runs, without the lane itself."""
        return self.runs[lane]


class Room:
    """Columns of runs, the same memory for every split: fresh memory costs more than what is written to it."""

    def __init__(self) -> None:
        self._columns = np.empty((len(RUN_COLUMNS) - 1, 0), np.int64)

    def of(self, runs: int) -> Longs:
        if self._columns.shape[1] < runs:
            self._columns = np.empty((len(RUN_COLUMNS) - 1, runs), np.int64)
        return self._columns


class Selector:
    """Selects split after split with one read page, which is freed when the selector is closed."""

    def __init__(self, plan: Plan, context: FilterContext) -> None:
        self._plan, self._context = plan, context
        self.page = ReadPage(context.page_size)
        self._sorter, self._columns = Sorter(self.page), Room()
        self._opened: tuple[tuple[int, bool], ChannelBytes] | None = None

    def close(self) -> None:
        self.page.close()

    def select(self, split: Mapping[str, Any]) -> Selection:
        """Return the runs of a split that `read` described."""
        number = split["channel"]
        planned, of = self._plan.channels[number], rules(self._plan, number)
        if len(planned.subtasks) > 1:
            return self._by_owner(planned, of, split)
        return self._records_only(of, split) if self.reads(split) else _whole(split)

    def reads(self, split: Mapping[str, Any]) -> bool:
        """Return whether the split's bytes have to be read."""
        number = split["channel"]
        if len(self._plan.channels[number].subtasks) > 1:
            return True
        return rules(self._plan, number) != (Rule.KEPT,) and bool(split["others"])

    def _open(self, split: Mapping[str, Any]) -> ChannelBytes:
        """Open the split's channel. Splits of one channel are consecutive, and its chunks are looked up once."""
        wanted = (split["channel"], split["damaged"])
        if self._opened is None or self._opened[0] != wanted:
            self._opened = (wanted, open_again(self._plan, *wanted))
        return self._opened[1]

    def _by_owner(self, planned: VirtualChannel, of: tuple[Rule, ...], split: Mapping[str, Any]) -> Selection:
        if not self._context.enabled:
            raise Unbalanced(
                "records have several possible owners, but filtering is off", where=place(self._plan, split["channel"])
            )
        channel = self._open(split)
        spool = Path(self._context.spill_dirs[0])
        runs, in_place = _Runs(of, split, self._columns), self._in_place(planned)
        at, end, position = split["start"], split["end"], split["position"]
        if in_place is not None:
            found, at, position = self._sorter.sort(channel, at, end, position, *in_place, runs.sums)
            runs.add_sorted(found)
        reading = paged_windows(channel, at, end, position, self.page, spool)
        with closing(reading):
            for window in reading:
                runs.add(window, self._lanes(planned, window, channel.where))
        return runs.selection()

    def _records_only(self, of: tuple[Rule, ...], split: Mapping[str, Any]) -> Selection:
        channel = self._open(split)
        runs = _Runs(of, split, self._columns)
        for window in windows(channel, split["start"], split["end"], split["position"], WINDOW):
            runs.add(window, np.where(window.records, 0, -1).astype(np.int64))
        return runs.selection()

    def _in_place(self, planned: VirtualChannel) -> tuple[Longs, npt.NDArray[np.int32]] | None:
        """Return where the key is, and the lane of each key group; ``None`` where owners cannot be found in place."""
        exchange = self._plan.exchanges[planned.exchange]
        if exchange.partitioner != Partitioner.HASH:
            return None
        place = key_place(parse_type(exchange.record), exchange.key)
        first = self._plan.subtasks[planned.subtasks[0]].index
        lanes = range(first, first + len(planned.subtasks))
        return None if place is None else (place, lanes_of_groups(exchange, planned.down, lanes))

    def _lanes(self, planned: VirtualChannel, window: Window, where: Where) -> Longs:
        """Return per element its owner as an index into the channel's owners; −1 for elements that are not records."""
        exchange = self._plan.exchanges[planned.exchange]
        records = window.records
        times, values = np.empty(len(records), np.int64), np.empty(len(records), np.int64)
        frames.element_times(window.data, window.starts, window.tags, times, values)
        with _exact_place(where, window):
            owners = record_owners(
                exchange, parse_type(exchange.record), window.data, values[records], window.ends[records], where
            )
        first = self._plan.subtasks[planned.subtasks[0]].index
        if len(owners) and not 0 <= owners.min() - first <= owners.max() - first < len(planned.subtasks):
            raise Unbalanced("a record belongs to a subtask that the plan does not send it to", where=where)
        lanes = np.full(len(records), -1, np.int64)
        lanes[records] = owners - first
        return lanes


class _Runs:
    """Stretches, folds and counts of one split of a channel, part after part; its runs at the end."""

    def __init__(self, of: tuple[Rule, ...], split: Mapping[str, Any], columns: Room) -> None:
        self._carried, self._columns = carried(of), columns
        self._start, self._position = split["start"], split["position"]
        self._pieces: list[Longs] = []
        self.sums = np.zeros((len(of), fingerprint.FOLD_COLUMNS), np.uint64)

    def add_sorted(self, found: Longs) -> None:
        """Add stretches of elements that are in the sums already."""
        if len(found):
            self._pieces.append(found)

    def add(self, window: Window, lanes: Longs) -> None:
        fingerprint.fold_records(window.data, window.starts, window.ends, lanes, self.sums)
        found = np.empty((len(lanes), element_runs.STRETCH_FIELDS), np.int64)
        count = element_runs.note_stretches(
            window.ends, window.tags, lanes, window.base, window.position, len(self._carried), found
        )
        self._pieces.append(found[:count])

    def selection(self) -> Selection:
        lanes = len(self._carried)
        sizes, counts = np.zeros((lanes, 2), np.int64), np.zeros((lanes + 2, frames.TAGS), np.int64)
        runs = self._by_lane(sizes, counts)
        self.sums[:, fingerprint.SIZES] = sizes
        *others, in_place, left = counts.tolist()
        return Selection(
            runs,
            tuple(Tally.of_fold(row) for row in self.sums.tolist()),
            tuple(kinds(row) for row in others),
            account(in_place, left),
        )

    def _by_lane(self, sizes: Longs, counts: Longs) -> tuple[tuple[Longs, ...], ...]:
        """Return the columns of each lane's runs, in order."""
        most = np.zeros(len(self._carried), np.int64)
        for piece in self._pieces:
            element_runs.count_runs(piece, self._carried, most)
        firsts = np.cumsum(most) - most
        columns = self._columns.of(int(most.sum()))
        cursors = np.stack((firsts, np.full_like(firsts, -1)), axis=1)
        start, position = self._start, self._position
        for piece in self._pieces:
            element_runs.place_runs(piece, start, position, self._carried, sizes, counts, cursors, columns)
            _, start, position = piece[-1].tolist()
        borders = zip(firsts.tolist(), cursors[:, 0].tolist(), strict=True)
        return tuple(tuple(columns[:, begin:end]) for begin, end in borders)


def _whole(split: Mapping[str, Any]) -> Selection:
    """Return all of a split as one run, as `read` described it: its bytes are not read."""
    tally, others = Tally.from_json(split["tally"]), dict(split["others"])
    run = (split["start"], split["end"], split["position"], tally.records + sum(others.values()))
    columns = tuple(np.array([value], np.int64) for value in run)
    return Selection((columns,), (tally,), (others,), {"kept": others, "merged": {}, "dropped": {}})


@contextmanager
def _exact_place(where: Where, window: Window) -> Iterator[None]:
    """Raise a value that does not fit as an error at its own offset, not only in its batch."""
    try:
        yield
    except (BadValue, Misplaced) as error:
        raise placed(error, window, where) from None
