"""One sequential scan of many virtual channels: ledger, last watermark and splits of each, as columns.

Small channels are packed into one buffer and scanned by one kernel call; a large one, one with records to be left out,
and a damaged one are scanned alone (:mod:`cdr_core.channels.channel_scan`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import KIND_NAMES, Ledger, Tally
from cdr_core.channels.channel_batch import BatchSource, ChannelBatch
from cdr_core.channels.channel_scan import NO_SUM, WORTH_A_SUM, Seen, may_stay, sum_between
from cdr_core.channels.channel_source import place
from cdr_core.channels.control_elements import MERGED_RULE, line_rules
from cdr_core.channels.salvage import first_bad
from cdr_core.errors import CdrError, Unbalanced
from cdr_core.flink.virtual_channel import Window
from cdr_core.kernels import channel_batches, fingerprint, frames
from cdr_core.planning.plan import Plan

Longs = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[Any]]

LARGE = 1 << 20
"""Bytes from which on a channel is scanned by calls of its own."""
BATCH_BYTES = 4 << 20
BATCH_CHANNELS = 1 << 16
"""A batch ends at so many bytes or channels."""

UNKNOWN_STATUS = 1
"""Stands for the watermark status of a channel that has none."""

ALL_INPUT = 1 << 62
"""Stands for the end of input state in scans of earlier versions: all elements count as input state."""

_CHANNEL = ("channel", "size", "input_size", "input_end", "watermark", "has_watermark", "status")
_SPLIT = (
    "split_channel",
    "split_number",
    "split_start",
    "split_end",
    "split_position",
    "split_damaged",
    "split_crc32c",
    "split_noted",
)
_GAP = ("gap_split", "gap_start", "gap_end", "gap_position")
_KIND_NUMBERS = {name: kind for kind, name in KIND_NAMES.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Scanned:
    """Result of `read` for some channels: one row per channel in ``channels``, one per split in ``splits``.

    ``gaps`` has a row per gap of a split whose gaps are ``noted`` (:class:`~cdr_core.channels.channel_scan.Split`);
    ``gap_split`` is the place of its split. ``ledger`` has a line per split: its place among the splits. ``special``
    describes the channels of which something was left out or put aside, as the careful way does.
    """

    channels: Columns
    splits: Columns
    gaps: Columns
    ledger: Ledger
    special: tuple[Mapping[str, Any], ...] = ()

    def to_columns(self) -> Columns:
        return {**self.channels, **self.splits, **self.gaps, **self.ledger.to_columns("split_")}

    @classmethod
    def from_columns(cls, columns: Mapping[str, npt.NDArray[Any]], special: Sequence[Mapping[str, Any]]) -> Scanned:
        channels = {name: columns[name] for name in _CHANNEL}
        # Earlier versions noted no sums and no gaps.
        count = len(columns["split_channel"])
        absent = {"split_crc32c": np.full(count, NO_SUM), "split_noted": np.zeros(count, np.bool_)}
        splits = {name: columns[name] if name in columns else absent[name] for name in _SPLIT}
        gaps = {name: columns.get(name, np.zeros(0, np.int64)) for name in _GAP}
        return cls(channels, splits, gaps, Ledger.from_columns(columns, "split_"), tuple(special))

    @classmethod
    def of_dicts(cls, found: Sequence[Mapping[str, Any]]) -> Scanned:
        """Return the columns of channels that were scanned alone."""
        last = [each["last"] for each in found]
        channels: Columns = {
            name: np.array([each.get(name, ALL_INPUT) for each in found], np.int64)
            for name in ("channel", "size", "input_size", "input_end")
        }
        channels["watermark"] = np.array([each["watermark"] or 0 for each in last], np.int64)
        channels["has_watermark"] = np.array([each["watermark"] is not None for each in last], np.int8)
        states = [UNKNOWN_STATUS if each["idle"] is None else -int(each["idle"]) for each in last]
        channels["status"] = np.array(states, np.int64)
        rows = [(each, number, split) for each in found for number, split in enumerate(each["splits"])]
        splits: Columns = {
            f"split_{name}": np.array([split[name] for _, _, split in rows], np.int64)
            for name in ("start", "end", "position")
        }
        splits["split_channel"] = np.array([each["channel"] for each, _, _ in rows], np.int64)
        splits["split_number"] = np.array([number for _, number, _ in rows], np.int64)
        splits["split_damaged"] = np.array(["quarantine" in each for each, _, _ in rows], np.bool_)
        splits["split_crc32c"] = np.array([split.get("crc32c", NO_SUM) for _, _, split in rows], np.int64)
        noted = [None if "quarantine" in each else split.get("gaps") for each, _, split in rows]
        splits["split_noted"] = np.array([gaps is not None for gaps in noted], np.bool_)
        special = [each for each in found if "quarantine" in each or "dropped" in each]
        ledger = _ledger_of([split for _, _, split in rows])
        return cls(channels, splits, _gaps_of(noted), ledger, tuple(map(_brief, special)))

    @classmethod
    def joined(cls, parts: Sequence[Scanned]) -> Scanned:
        """Return the parts one behind another."""
        shift = np.cumsum([0, *(len(part.splits["split_channel"]) for part in parts)])
        moved = [part.ledger.moved(np.arange(b, e)) for part, b, e in zip(parts, shift, shift[1:], strict=False)]
        ledger = Ledger(*(np.concatenate([getattr(each, name) for each in moved]) for name in Ledger.__slots__))
        channels = {name: np.concatenate([part.channels[name] for part in parts]) for name in _CHANNEL}
        splits = {name: np.concatenate([part.splits[name] for part in parts]) for name in _SPLIT}
        gaps = {name: np.concatenate([part.gaps[name] for part in parts]) for name in _GAP}
        gaps["gap_split"] += np.repeat(shift[:-1], [len(part.gaps["gap_split"]) for part in parts])
        return cls(channels, splits, gaps, ledger, tuple(each for part in parts for each in part.special))

    def in_order(self) -> Scanned:
        """Return the rows by channel, and its splits by number, as units in the order of the plan leave them."""
        numbers = self.channels["channel"]
        if np.all(numbers[1:] >= numbers[:-1]):
            return self
        order = np.argsort(numbers, kind="stable")
        places = np.lexsort((self.splits["split_number"], self.splits["split_channel"]))
        back = np.argsort(places)
        ledger = self.ledger.moved(back)
        rows = np.argsort(ledger.lines, kind="stable")
        others = np.argsort(ledger.other_lines, kind="stable")
        moved_gaps = {**self.gaps, "gap_split": back[self.gaps["gap_split"]]}
        gap_order = np.argsort(moved_gaps["gap_split"], kind="stable")
        return Scanned(
            {name: column[order] for name, column in self.channels.items()},
            {name: column[places] for name, column in self.splits.items()},
            {name: column[gap_order] for name, column in moved_gaps.items()},
            ledger.reordered(rows, others),
            self.special,
        )


def _brief(each: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a channel scanned alone, without the fields that are columns."""
    return {name: each[name] for name in ("channel", "entry", "quarantine", "dropped") if name in each}


def _gaps_of(noted: Sequence[Longs | None]) -> Columns:
    """The columns of the gaps of each split."""
    none = np.empty((3, 0), np.int64)
    found = [none if gaps is None else gaps for gaps in noted]
    place = np.repeat(np.arange(len(found)), [gaps.shape[1] for gaps in found])
    return dict(zip(_GAP, (place, *np.concatenate([none, *found], axis=1)), strict=True))


def _ledger_of(splits: Sequence[Mapping[str, Any]]) -> Ledger:
    sums = np.array([Tally.from_json(split["tally"]).to_fold() for split in splits], np.uint64)
    kinds = np.zeros((len(splits), frames.TAGS), np.int64)
    for row, split in enumerate(splits):
        for name, count in split["others"].items():
            kinds[row, _KIND_NUMBERS[name]] = count
    return Ledger.of(np.arange(len(splits)), sums.reshape(-1, fingerprint.FOLD_COLUMNS), kinds)


def scan_channels(
    plan: Plan,
    source: BatchSource,
    numbers: Longs,
    alone: Callable[[int], Mapping[str, Any]],
    apart: frozenset[int] = frozenset(),
    seen: Seen | None = None,
    *,
    decodes: bool = False,
    shown: bool = True,
) -> Scanned:
    """Scan channels in the plan's order. ``alone`` scans one by itself: a large one, one that is ``apart``, and what
    does not pass in a batch. ``decodes``: a batch passes only if every value and key fits; ``shown`` as for salvage.
    """
    parts: list[Scanned] = []
    for group, together in batches_of(plan, numbers, apart):
        scanned = _scan_batch(plan, source, group, decodes, shown) if together else None
        if scanned is None:
            scanned = Scanned.of_dicts([alone(number) for number in group.tolist()])
        elif seen is not None:
            seen(scanned.ledger.records, int(scanned.channels["size"].sum()))
        parts.append(scanned)
    return Scanned.joined(parts or [Scanned.of_dicts([])])


def batches_of(plan: Plan, numbers: Longs, apart: frozenset[int] = frozenset()) -> Iterator[tuple[Longs, bool]]:
    """Yield batches of small neighbouring channels of one exchange; and single channels."""
    sizes, exchanges = plan.channels.bytes[numbers], plan.channels.exchange[numbers]
    single = (sizes > min(LARGE, plan.split_size)) | np.isin(numbers, list(apart))
    begin = 0
    while begin < len(numbers):
        if single[begin]:
            yield numbers[begin : begin + 1], False
            begin += 1
            continue
        upto = min(begin + BATCH_CHANNELS, len(numbers))
        ends = (single[begin:upto]) | (exchanges[begin:upto] != exchanges[begin])
        ends |= np.cumsum(sizes[begin:upto]) > BATCH_BYTES
        count = int(np.argmax(ends)) if ends.any() else upto - begin
        yield numbers[begin : begin + max(count, 1)], True
        begin += max(count, 1)


def _scan_batch(plan: Plan, source: BatchSource, numbers: Longs, decodes: bool, shown: bool) -> Scanned | None:
    """Scan channels together; return ``None`` in any doubt: then each channel is scanned alone."""
    try:
        batch = source.open(numbers)
    except CdrError:
        return None
    found = framed(batch)
    if found is None or (batch.sizes > plan.split_size).any():
        return None
    window, first = found
    if decodes and not _fits(plan, numbers, window, first, shown):
        return None
    count = len(numbers)
    sums, kinds = np.zeros((count, fingerprint.FOLD_COLUMNS), np.uint64), np.zeros((count, frames.TAGS), np.int64)
    channel_batches.fold_lines(
        window.data,
        window.starts,
        window.ends,
        window.tags,
        first,
        np.arange(count),
        sums,
        kinds,
        fingerprint.NO_FINGERPRINTS,
    )
    watermark, has, status = np.zeros(count, np.int64), np.zeros(count, np.int8), np.full(count, UNKNOWN_STATUS)
    channel_batches.last_words(window.data, window.starts, window.tags, first, watermark, has, status)
    begins = np.cumsum(batch.sizes) - batch.sizes
    # An element begins with its length field.
    borders = np.searchsorted(window.starts, begins + batch.input_sizes + frames.LENGTH_BYTES)
    input_end = np.clip(borders, first[:-1], first[1:]) - first[:-1]
    channels = (numbers, batch.sizes, batch.input_sizes, input_end, watermark, has, status)
    filled = np.flatnonzero(batch.sizes)
    nothing = np.zeros(len(filled), np.int64)
    sound, sizes = np.zeros(len(filled), np.bool_), batch.sizes[filled]
    crc32c = _sums(window.data, begins[filled], sizes)
    gaps = _note_gaps(plan, numbers, filled, window, first, begins, sizes, kinds, crc32c)
    noted = np.array([each is not None for each in gaps], np.bool_)
    splits = (numbers[filled], nothing, nothing, sizes, nothing, sound, crc32c, noted)
    return Scanned(
        dict(zip(_CHANNEL, channels, strict=True)),
        dict(zip(_SPLIT, splits, strict=True)),
        _gaps_of(gaps),
        Ledger.of(np.arange(len(filled)), sums[filled], kinds[filled]),
    )


def _sums(data: npt.NDArray[np.uint8], begins: Longs, sizes: Longs) -> Longs:
    """Return the CRC-32C of each stretch that is worth one: so few have one that a call for each costs nothing."""
    found = np.full(len(begins), NO_SUM)
    for at in np.flatnonzero(sizes >= WORTH_A_SUM).tolist():
        found[at] = google_crc32c.value(data[begins[at] : begins[at] + sizes[at]])
    return found


def _note_gaps(
    plan: Plan,
    numbers: Longs,
    filled: Longs,
    window: Window,
    first: Longs,
    begins: Longs,
    sizes: Longs,
    kinds: Longs,
    crc32c: Longs,
) -> list[Longs | None]:
    """The gaps of each split, in ``crc32c`` the sum of the records between them; see ``channel_scan.Split``."""
    found: list[Longs | None] = [None] * len(filled)
    rule = line_rules(plan, plan.channels.line_first[numbers[filled]])
    gives_up = (rule == MERGED_RULE) & (plan.channels.owner_count[numbers[filled]] == 1)
    others = kinds[filled, frames.TAG_RECORD + 1 :].sum(axis=1)
    few = gives_up & (others > 0) & (crc32c != NO_SUM)
    crc32c[few] = NO_SUM
    for row in np.flatnonzero(few & (sizes >= WORTH_A_SUM * (others + 1))).tolist():
        elements = slice(int(first[filled[row]]), int(first[filled[row] + 1]))
        position = np.flatnonzero(~window.records[elements])
        begin = int(begins[filled[row]])
        starts = window.starts[elements][position] - frames.LENGTH_BYTES - begin
        gaps = np.stack((starts, window.ends[elements][position] - begin, position))
        if may_stay(int(sizes[row]), gaps):
            found[row] = gaps
            crc32c[row] = sum_between(0, window.data[begin : begin + int(sizes[row])], gaps[0], gaps[1])
    return found


def framed(batch: ChannelBatch) -> tuple[Window, Longs] | None:
    """Return the elements of all channels of a batch in one window, and the first of each channel; ``None`` where a
    channel is not made of whole frames.
    """
    data = batch.pack(0, len(batch.numbers), np.empty(int(batch.sizes.sum()), np.uint8))
    most = len(data) // frames.SMALLEST_FRAME + 1
    starts, ends, tags = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int8)
    first = np.zeros(len(batch.numbers) + 1, np.int64)
    if channel_batches.scan_channels(data, np.cumsum(batch.sizes), starts, ends, tags, first) >= 0:
        return None
    count = int(first[-1])
    return Window(data, 0, 0, starts[:count], ends[:count], tags[:count]), first


def _fits(plan: Plan, numbers: Longs, window: Window, first: Longs, shown: bool) -> bool:
    exchange = plan.exchanges[int(plan.channels.exchange[numbers[0]])]
    downs = np.repeat(plan.channels.down[numbers], np.diff(first))
    return first_bad(exchange, downs, window, shown=shown) is None


def require_every_channel(plan: Plan, scanned: Scanned) -> None:
    """Require every channel of the plan exactly once: a missing one would be lost unnoticed."""
    seen = scanned.channels["channel"]
    if not np.array_equal(seen, np.arange(len(plan.channels))):
        raise Unbalanced(f"read scanned channels {seen[:10].tolist()}… of a plan with {len(plan.channels)}")


def require_all_bytes(plan: Plan, scanned: Scanned) -> None:
    """Require that the recovered, quarantined and left-out bytes of every channel are all of its bytes."""
    recovered, aside, dropped = (np.zeros(len(plan.channels), np.int64) for _ in range(3))
    lengths = scanned.splits["split_end"] - scanned.splits["split_start"]
    np.add.at(recovered, scanned.splits["split_channel"], lengths)
    for each in scanned.special:
        aside[each["channel"]] = each.get("quarantine", {}).get("bytes", 0)
        dropped[each["channel"]] = each.get("dropped", {}).get("bytes", 0)
    sizes = scanned.channels["size"]
    wrong = np.flatnonzero(recovered + aside + dropped != sizes)
    if len(wrong):
        number = int(wrong[0])
        raise Unbalanced(
            f"read does not balance: {recovered[number]} bytes recovered and {aside[number]} in quarantine"
            f"{f' and {dropped[number]} left out' if dropped[number] else ''} of a channel of {sizes[number]}",
            where=place(plan, number),
            hint="nothing was published",
        )
