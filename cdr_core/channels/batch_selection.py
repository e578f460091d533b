"""The selection of many splits: the bytes of them that belong to each new subtask, as columns of parts and runs.

A part is the share of one line (a channel and one of its possible owners) in one split. Splits that pass through are
not read; small channels are filtered in batches; a large split, and a doubtful one, is filtered alone by
:class:`~cdr_core.channels.channel_selection.Selector`, which reports what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import KIND_NAMES, RECORDS, Ledger
from cdr_core.channels.batch_scan import BATCH_BYTES, BATCH_CHANNELS, Scanned, framed
from cdr_core.channels.channel_batch import BatchSource
from cdr_core.channels.channel_scan import NO_SUM, WORTH_A_SUM, Seen
from cdr_core.channels.channel_selection import Selector
from cdr_core.channels.channel_source import place
from cdr_core.channels.control_elements import KEPT_RULE, carried_by, line_rules
from cdr_core.channels.grouping import group_ends
from cdr_core.channels.record_owners import new_owners_of, old_owners
from cdr_core.errors import CdrError
from cdr_core.flink.decode import decode_values
from cdr_core.flink.keys import key_groups
from cdr_core.flink.types import parse_type
from cdr_core.flink.virtual_channel import Window
from cdr_core.kernels import channel_batches, fingerprint, frames
from cdr_core.planning.custom_partitioner import call_owner
from cdr_core.planning.exchange_binding import PlannedExchange
from cdr_core.planning.job_spec import Partitioner
from cdr_core.planning.plan import Plan

Longs = npt.NDArray[np.int64]

SMALL_PAGES = 8
"""A channel of at most so many read pages is small: it is read as a whole, not page by page."""

MOST_LINES = 1 << 18
"""Lines of a batch: bounds the memory of its ledger where every record may belong to any subtask."""

_KIND_NUMBERS = {name: kind for kind, name in KIND_NAMES.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """Parts (the line, and the split's start), each with its runs in order. The rows of ``runs`` are start and end
    (logical bytes of the channel), the first element's position, and how many elements.

    ``ledger`` has a line per part: its place. ``kept`` and ``left`` count, per channel, the other elements that stay
    somewhere and that leave the stream. ``crc32c`` is that of a whole split that has a sum, else ``NO_SUM``.
    """

    line: Longs
    split: Longs
    run_first: Longs
    runs: Longs
    ledger: Ledger
    kept: Ledger
    left: Ledger
    crc32c: Longs

    @classmethod
    def joined(cls, parts: Sequence[Selected]) -> Selected:
        """Return the parts one behind another."""
        places = np.cumsum([0, *(len(part.line) for part in parts)])
        runs = np.cumsum([0, *(part.runs.shape[1] for part in parts)])
        firsts = [part.run_first[:-1] + shift for part, shift in zip(parts, runs[:-1], strict=True)]
        moved = [part.ledger.moved(np.arange(b, e)) for part, b, e in zip(parts, places, places[1:], strict=False)]
        return cls(
            np.concatenate([part.line for part in parts]),
            np.concatenate([part.split for part in parts]),
            np.append(np.concatenate(firsts), runs[-1]),
            np.concatenate([part.runs for part in parts], axis=1),
            _stacked(moved),
            _stacked([part.kept for part in parts]),
            _stacked([part.left for part in parts]),
            np.concatenate([part.crc32c for part in parts]),
        )

    def taken(self, order: Longs) -> Selected:
        """Return the parts at these places, in this order, with their runs. What is counted per channel stays."""
        counts, begins = np.diff(self.run_first)[order], self.run_first[:-1][order]
        first = np.append(0, np.cumsum(counts))
        runs = np.repeat(begins - first[:-1], counts) + np.arange(first[-1])
        back = np.full(len(self.line), -1, np.int64)
        back[order] = np.arange(len(order))
        moved = self.ledger.moved(back)
        rows, others = (np.argsort(each, kind="stable") for each in (moved.lines, moved.other_lines))
        rows, others = rows[moved.lines[rows] >= 0], others[moved.other_lines[others] >= 0]
        ledger = moved.reordered(rows, others)
        of = self.line[order], self.split[order]
        return Selected(*of, first, self.runs[:, runs], ledger, self.kept, self.left, self.crc32c[order])

    @property
    def sizes(self) -> Longs:
        """Return the bytes of the runs of each part, length fields included."""
        return _sums_between(self.runs[1] - self.runs[0], self.run_first)

    @property
    def elements(self) -> Longs:
        """Return the number of elements of each part."""
        return _sums_between(self.runs[3], self.run_first)


def _sums_between(values: Longs, first: Longs) -> Longs:
    total: Longs = np.append(0, np.cumsum(values))
    return total[first[1:]] - total[first[:-1]]


def _stacked(parts: Sequence[Ledger]) -> Ledger:
    """Return rows one behind another; no line is in two of them."""
    return Ledger(*(np.concatenate([getattr(part, name) for part in parts]) for name in Ledger.__slots__))


def _counted(channels: Longs, kinds: Longs) -> Ledger:
    """Return a ledger that only counts elements of other kinds."""
    return Ledger.of(channels, np.zeros((len(channels), fingerprint.FOLD_COLUMNS), np.uint64), kinds)


class SplitRows:
    """The splits that a unit selects from: rows of what `read` found."""

    def __init__(self, plan: Plan, scanned: Scanned, begin: int, end: int) -> None:
        rows = slice(begin, end)
        self.channel, self.number, self.start, self.end, self.position, self.damaged, self.crc32c, noted = (
            scanned.splits[f"split_{name}"][rows]
            for name in ("channel", "number", "start", "end", "position", "damaged", "crc32c", "noted")
        )
        mine = slice(*np.searchsorted(scanned.gaps["gap_split"], (begin, end)))
        self.gaps = np.stack([scanned.gaps[f"gap_{name}"][mine] for name in ("split", "start", "end", "position")])
        self.gaps[0] -= begin
        low, high = np.searchsorted(scanned.ledger.lines, (begin, end))
        others = slice(*np.searchsorted(scanned.ledger.other_lines, (begin, end)))
        back = np.arange(end) - begin
        whole = scanned.ledger
        self.ledger = Ledger(
            whole.lines[low:high],
            whole.sums[low:high],
            whole.other_lines[others],
            whole.other_kinds[others],
            whole.other_counts[others],
        ).moved(back)
        at = np.searchsorted(scanned.channels["channel"], self.channel)
        self.channel_size = scanned.channels["size"][at]
        has_others = np.zeros(len(self.channel), bool)
        has_others[self.ledger.other_lines] = True
        owners = plan.channels.owner_count[self.channel]
        rule = line_rules(plan, plan.channels.line_first[self.channel])
        self.keeps_others = rule == KEPT_RULE
        self.reads = (owners > 1) | (has_others & ~self.keeps_others & ~noted)
        """Whether the bytes of a split have to be looked at."""

    def __len__(self) -> int:
        return len(self.channel)

    @property
    def sizes(self) -> Longs:
        return self.end - self.start

    def as_dict(self, row: int) -> dict[str, Any]:
        """Return a split in the form that :class:`Selector` takes."""
        members = self.ledger.other_lines == row
        counts = zip(self.ledger.other_kinds[members].tolist(), self.ledger.other_counts[members].tolist(), strict=True)
        return {
            "channel": int(self.channel[row]),
            "number": int(self.number[row]),
            "damaged": bool(self.damaged[row]),
            "start": int(self.start[row]),
            "end": int(self.end[row]),
            "position": int(self.position[row]),
            "tally": self.ledger.tally(row).to_json(),
            "others": {KIND_NAMES[kind]: count for kind, count in counts},
        }


class BatchSelector:
    """Selects the splits of a unit. ``selector`` handles those that go alone."""

    def __init__(self, plan: Plan, source: BatchSource, selector: Selector, seen: Seen | None = None) -> None:
        self._plan, self._source, self._selector, self._seen = plan, source, selector, seen

    def select(self, splits: SplitRows) -> Selected:
        """Return the parts in no particular order."""
        found = [self._reported(self._passing(splits, np.flatnonzero(~splits.reads)))]
        for rows, together in self._groups(splits, np.flatnonzero(splits.reads)):
            selected = self._batch(splits, rows) if together else None
            if selected is not None:
                found.append(self._reported(selected))
            else:
                found += (self._reported(self._alone(splits, row)) for row in rows.tolist())
        return Selected.joined(found)

    def _reported(self, selected: Selected) -> Selected:
        if self._seen is not None:
            self._seen(selected.ledger.records, selected.ledger.bytes)
        return selected

    def _passing(self, splits: SplitRows, rows: Longs) -> Selected:
        """Whole splits, without their noted gaps, by what `read` noted: their bytes are not touched."""
        back = np.full(len(splits), -1, np.int64)
        back[rows] = np.arange(len(rows))
        moved = splits.ledger.moved(back)
        mine, others = np.flatnonzero(moved.lines >= 0), np.flatnonzero(moved.other_lines >= 0)
        whole = moved.reordered(mine, others)
        counts = np.zeros(len(rows), np.int64)
        np.add.at(counts, whole.lines, whole.sums[:, RECORDS].astype(np.int64))
        np.add.at(counts, whole.other_lines, whole.other_counts)
        stays = splits.keeps_others[rows][whole.other_lines]
        kept, left = (
            _counted_by(splits.channel[rows][whole.other_lines[of]], whole.other_kinds[of], whole.other_counts[of])
            for of in (stays, ~stays)
        )
        ledger = whole.reordered(np.arange(len(whole.lines)), np.flatnonzero(stays))
        first, runs = _between_gaps(splits, rows, counts)
        worth = ~splits.damaged[rows] & (splits.sizes[rows] >= WORTH_A_SUM)
        crc32c = np.where(worth, splits.crc32c[rows], NO_SUM)
        line = self._plan.channels.line_first[splits.channel[rows]]
        return Selected(line, splits.start[rows], first, runs, ledger, kept, left, crc32c)

    def _groups(self, splits: SplitRows, rows: Longs) -> Iterator[tuple[Longs, bool]]:
        """Yield whole small channels of one exchange together; everything else alone."""
        channel = splits.channel
        alone = np.ones(len(splits), bool)
        several = np.append(channel[1:] == channel[:-1], False) | np.append(False, channel[1:] == channel[:-1])
        whole = (splits.start == 0) & (splits.end == splits.channel_size) & (splits.number == 0)
        alone[rows] = (~whole | several | splits.damaged | (splits.sizes > SMALL_PAGES * self._selector.page.size))[
            rows
        ]
        for row in rows[alone[rows]].tolist():
            yield np.array([row]), False
        small = rows[~alone[rows]]
        for number in np.unique(self._plan.channels.exchange[channel[small]]).tolist():
            members = small[self._plan.channels.exchange[channel[small]] == number]
            begin = 0
            # A line weighs as much as if it were a few bytes of data: both bound the batch.
            weights = splits.sizes[members] + self._plan.channels.owner_count[channel[members]] * (
                BATCH_BYTES // MOST_LINES
            )
            for end in group_ends(weights, 2 * BATCH_BYTES, BATCH_CHANNELS).tolist():
                yield members[begin:end], True
                begin = end

    def _batch(self, splits: SplitRows, rows: Longs) -> Selected | None:
        """Select a batch; return ``None`` in any doubt."""
        numbers = splits.channel[rows]
        try:
            batch = self._source.open(numbers)
        except CdrError:
            return None
        found = framed(batch)
        if found is None or not np.array_equal(batch.sizes, splits.sizes[rows]):
            return None
        window, first = found
        self._selector.page.pass_by(len(window.data))
        lanes = record_lanes(self._plan, numbers, window, first)
        if lanes is None:
            return None
        counts = self._plan.channels.owner_count[numbers].astype(np.int64)
        line_first = np.append(0, np.cumsum(counts))
        begins = self._plan.channels.line_first[numbers]
        lines = np.repeat(begins - line_first[:-1], counts) + np.arange(line_first[-1])
        return self._runs(numbers, window, first, batch.sizes, lanes, line_first, lines)

    def _runs(
        self,
        numbers: Longs,
        window: Window,
        first: Longs,
        sizes: Longs,
        lanes: Longs,
        line_first: Longs,
        lines: Longs,
    ) -> Selected:
        carries = carried_by(line_rules(self._plan, lines))
        count, records = len(lines), int(np.count_nonzero(window.records))
        widest = int(np.diff(line_first).max(initial=0))
        runs = np.empty((5, records + (len(window.tags) - records) * widest), np.int64)
        sums = np.zeros((count, fingerprint.FOLD_COLUMNS), np.uint64)
        kinds = np.zeros((count, frames.TAGS), np.int64)
        kept, left = (np.zeros((len(numbers), frames.TAGS), np.int64) for _ in range(2))
        made = channel_batches.select_channels(
            window.data, window.starts, window.ends, window.tags, first, np.cumsum(sizes) - sizes, lanes, line_first,
            carries, sums, kinds, kept, left, np.full(count, -1, np.int64), *runs,
        )  # fmt: skip
        order = np.argsort(runs[0, :made], kind="stable")
        line = runs[0, order]
        used = np.unique(line)
        run_first = np.append(np.searchsorted(line, used), made)
        ledger = Ledger.of(np.arange(len(used)), sums[used], kinds[used])
        zeros = np.zeros(len(used), np.int64)
        counted = _counted(numbers, kept), _counted(numbers, left)
        of_channel = np.searchsorted(line_first, used, side="right") - 1
        begins, sorted_runs = (np.cumsum(sizes) - sizes)[of_channel], runs[1:, order]
        crc32c = np.full(len(used), NO_SUM)
        for part in worth_a_sum(sorted_runs, run_first).tolist():
            members = begins[part] + sorted_runs[:2, run_first[part] : run_first[part + 1]]
            found = 0
            for start, end in members.T.tolist():
                found = google_crc32c.extend(found, window.data[start:end])
            crc32c[part] = found
        return Selected(lines[used], zeros, run_first, sorted_runs, ledger, *counted, crc32c)

    def _alone(self, splits: SplitRows, row: int) -> Selected:
        split = splits.as_dict(row)
        number = split["channel"]
        selection = self._selector.select(split)
        used = [lane for lane in range(len(selection.tallies)) if len(selection.of_lane(lane)[0])]
        nothing = np.zeros((4, 0), np.int64)
        runs = np.concatenate([nothing, *(np.stack(selection.of_lane(lane)) for lane in used)], axis=1)
        counts = [len(selection.of_lane(lane)[0]) for lane in used]
        sums = np.array([selection.tallies[lane].to_fold() for lane in used], np.uint64)
        kinds = _by_kind([selection.others[lane] for lane in used])
        account = _by_kind([selection.account[name] for name in ("kept", "merged", "dropped")])
        only = np.array([number])
        return Selected(
            self._plan.channels.line_first[number] + np.array(used, np.int64),
            np.full(len(used), split["start"], np.int64),
            np.cumsum([0, *counts], dtype=np.int64),
            runs,
            Ledger.of(np.arange(len(used)), sums.reshape(-1, fingerprint.FOLD_COLUMNS), kinds),
            _counted(only, account[:1]),
            _counted(only, account[1:].sum(axis=0, keepdims=True)),
            np.full(len(used), NO_SUM),
        )


def _between_gaps(splits: SplitRows, rows: Longs, counts: Longs) -> tuple[Longs, Longs]:
    """The runs of splits of ``counts`` elements each, and where those of each split begin; a split has at least one."""
    place = np.full(len(splits), -1, np.int64)
    place[rows] = np.arange(len(rows))
    gaps = splits.gaps[:, place[splits.gaps[0]] >= 0]
    row = np.append(np.arange(len(rows)), place[gaps[0]])
    begins, positions = np.append(splits.start[rows], gaps[2]), np.append(splits.position[rows], gaps[3] + 1)
    ends, upto = np.append(splits.end[rows], gaps[1]), np.append(splits.position[rows] + counts, gaps[3])
    # Beginnings and ends of a split in ascending order are those of its runs, one by one.
    forward, backward = np.lexsort((begins, row)), np.lexsort((ends, row))
    runs = np.stack((begins[forward], ends[backward], positions[forward], upto[backward] - positions[forward]))
    filled = runs[0] < runs[1]
    return np.searchsorted(row[forward][filled], np.arange(len(rows) + 1)), runs[:, filled]


def worth_a_sum(runs: Longs, first: Longs) -> Longs:
    """Return the parts whose runs are so long, on average, that the drain may read them in place."""
    return np.flatnonzero(_sums_between(runs[1] - runs[0], first) >= WORTH_A_SUM * np.maximum(np.diff(first), 1))


def record_lanes(plan: Plan, numbers: Longs, window: Window, first: Longs) -> Longs | None:
    """Return, per element of whole channels of one exchange, the number of its line in its channel; 0 if it is no
    record.

    ``None`` where a value or key does not fit.
    """
    channels = plan.channels
    exchange = plan.exchanges[int(channels.exchange[numbers[0]])]
    lanes = np.zeros(len(window.tags), np.int64)
    of = np.repeat(np.arange(len(numbers)), np.diff(first))[window.records]
    if (channels.owner_count[numbers] == 1).all():
        return lanes
    times, values = np.empty(len(window.tags), np.int64), np.empty(len(window.tags), np.int64)
    frames.element_times(window.data, window.starts, window.tags, times, values)
    starts, ends = values[window.records], window.ends[window.records]
    try:
        owners = _owners(plan, exchange, window.data, starts, ends, channels.down[numbers][of], int(numbers[0]))
    except CdrError:
        return None
    if owners is None:
        return None
    indexes = np.array([subtask.index for subtask in plan.subtasks], np.int64)
    lane = owners - indexes[channels.owner_first[numbers]][of]
    if ((lane < 0) | (lane >= channels.owner_count[numbers][of])).any():
        return None
    lanes[window.records] = lane
    return lanes


def _owners(
    plan: Plan,
    exchange: PlannedExchange,
    data: npt.NDArray[np.uint8],
    starts: Longs,
    ends: Longs,
    downs: npt.NDArray[np.int32],
    number: int,
) -> Longs | None:
    description = parse_type(exchange.record)
    if exchange.partitioner == Partitioner.CUSTOM:
        values = decode_values(description, data, starts, ends).values
        owner, most = exchange.owner, exchange.max_parallelism
        if not len(values):
            return np.empty(0, np.int64)
        return call_owner(exchange.name, owner, values, exchange.new_down, most, place(plan, number))
    groups = key_groups(description, exchange.key, data, starts, ends, exchange.max_parallelism)
    if exchange.key_checked and (old_owners(exchange)[groups] != downs).any():
        return None
    return new_owners_of(exchange)[groups]


def _by_kind(counts: Sequence[Mapping[str, int]]) -> Longs:
    found = np.zeros((len(counts), len(KIND_NAMES) + 2), np.int64)
    for row, each in enumerate(counts):
        for name, count in each.items():
            found[row, _KIND_NUMBERS[name]] = count
    return found


def _counted_by(channels: Longs, kinds: Longs, counts: Longs) -> Ledger:
    empty = np.zeros(0, np.int64), np.zeros((0, fingerprint.FOLD_COLUMNS), np.uint64)
    return Ledger(*empty, channels, kinds, counts)
