"""One sequential scan of a virtual channel: its ledger line, its last watermark and status, and splits on element
borders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import Tally
from cdr_core.channels.channel_layout import open_whole
from cdr_core.channels.channel_source import open_channel
from cdr_core.channels.control_elements import IDLE, Last, Rule, rules
from cdr_core.channels.control_elements import kinds as by_kind
from cdr_core.channels.element_columns import Elements
from cdr_core.channels.salvage import Damage, Salvaged, SoundWindows, open_salvaged
from cdr_core.errors import CdrError, Where
from cdr_core.flink.virtual_channel import ChannelBytes, Window, windows
from cdr_core.kernels import fingerprint, frames
from cdr_core.planning.dropped_records import Ranges, Without
from cdr_core.planning.plan import Plan

Longs = npt.NDArray[np.int64]

WINDOW = 1024 * 1024
"""Bytes scanned at once: large enough to make a kernel call cheap, small enough to stay in a core's cache."""


NO_SUM = -1
"""In place of the CRC-32C of a split that is too short to be drained in place."""

WORTH_A_SUM = 32 << 10
"""Bytes of a run, on average, from which on a part of a split has a sum, and may be drained in place."""


@dataclass(frozen=True, slots=True)
class Split:
    """A stretch [start, end) of a channel between element borders; ``position`` is its first element's.

    ``last`` is the last watermark and status up to the stretch's end, ``input_end`` is one behind the position of the
    last element up to there that begins in input state. ``crc32c`` is of its bytes, all of which lie one behind
    another.

    In a channel whose other elements leave the stream, ``gaps`` are start, end and position of each of them, and
    ``crc32c`` is of the records between them; ``None`` where gaps are so many that the records are copied anyway.
    """

    start: int
    end: int
    position: int
    tally: Tally
    others: Mapping[str, int]
    last: Last
    input_end: int
    crc32c: int
    gaps: Longs | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "start": self.start,
            "end": self.end,
            "position": self.position,
            "tally": self.tally.to_json(),
            "others": dict(self.others),
            "crc32c": self.crc32c,
            "gaps": self.gaps,
        }


Seen = Callable[[int, int], None]
"""Called with the records and the bytes of every window."""


def scan_channel(
    plan: Plan, number: int, drops: Ranges = (), seen: Seen | None = None, most: int | None = None
) -> dict[str, Any]:
    """Return ledger line, size and splits of one virtual channel, without the elements to be left out; damage raises
    with its place. Splits have at most the plan's size, or ``most`` bytes, unless one element is longer.
    """
    channel, split_size = open_whole(plan, number), most or plan.split_size
    found = Without(windows(channel, 0, channel.size, 0, min(WINDOW, split_size)), drops, channel.where)
    splits = list(_walk(_reported(found, seen), split_size, channel.input_size, gives_up_others(plan, number)))
    assert _covered(splits) + found.bytes == channel.size, "windows end with the channel or raise"
    return _described(plan, number, channel, splits, found)


def salvage_channel(
    plan: Plan, number: int, drops: Ranges = (), seen: Seen | None = None, *, shown: bool = True
) -> tuple[dict[str, Any], Salvaged, Damage | None]:
    """Return :func:`scan_channel` of the part before the damage, if there is any; every value is decoded.

    ``shown``: the target needs values; otherwise values that only cannot be shown are sound.

    A side with more bytes than its handle states is sound if all of it is: a chunk that swallowed bytes of another
    channel may frame for a while, and then nothing of that side can be trusted.
    """
    scanned, salvaged, damage = _salvage(plan, number, drops, open_salvaged(plan, number), shown, seen)
    if damage is not None and salvaged.doubtful:
        return _salvage(plan, number, drops, open_salvaged(plan, number, believing=False), shown)
    return scanned, salvaged, damage


def _salvage(
    plan: Plan, number: int, drops: Ranges, salvaged: Salvaged, shown: bool, seen: Seen | None = None
) -> tuple[dict[str, Any], Salvaged, Damage | None]:
    size = min(WINDOW, plan.split_size)
    # Elements to be left out are not decoded: one of them may be the very record that does not decode.
    found = Without(windows(salvaged.channel, 0, salvaged.intact, 0, size), drops, salvaged.channel.where)
    sound = SoundWindows(plan, number, salvaged, found, shown=shown)
    gives_up = gives_up_others(plan, number)
    splits = list(_walk(_reported(sound, seen), plan.split_size, salvaged.channel.input_size, gives_up))
    end = salvaged.channel.size if sound.damage is None else sound.damage.offset
    assert _covered(splits) + found.bytes == end, "the sound part ends where the damage begins"
    return _described(plan, number, salvaged.channel, splits, found), salvaged, sound.damage


def element_place(plan: Plan, number: int, position: int) -> Where | None:
    """Return where the element at a position begins in its channel, for an error that has only the position.

    ``None`` where the channel can no longer be read that far: the error itself matters more than its place.
    """
    with suppress(CdrError):
        channel = open_channel(plan, number)
        for window in windows(channel, 0, channel.size, 0, WINDOW):
            index = position - window.position
            if index < len(window.starts):
                return replace(channel.where, offset=window.base + int(window.starts[index]) - frames.LENGTH_BYTES)
    return None


def _described(plan: Plan, number: int, channel: ChannelBytes, splits: list[Split], found: Without) -> dict[str, Any]:
    planned = plan.channels[number]
    key = {"exchange": plan.exchanges[planned.exchange].name, "up": planned.up, "down": planned.down}
    tally, others = Tally(), Counter[str]()
    for split in splits:
        tally = tally.then(split.tally)
        others.update(split.others)
    return {
        "channel": number,
        "size": channel.size,
        "input_size": channel.input_size,
        "input_end": splits[-1].input_end if splits else 0,
        "splits": [split.to_json() for split in splits],
        "last": (splits[-1].last if splits else Last()).to_json(),
        "entry": {**key, "new_down": None, **tally.to_json(), "others": dict(others)},
        **({"dropped": found.to_json()} if found.positions else {}),
    }


def _reported(found: Iterable[Window], seen: Seen | None) -> Iterator[Window]:
    for window in found:
        yield window
        if seen is not None:
            seen(int(np.count_nonzero(window.records)), int(window.ends[-1]))


def _covered(splits: list[Split]) -> int:
    return sum(split.end - split.start for split in splits)


def gives_up_others(plan: Plan, number: int) -> bool:
    """Whether all records of a channel go to one new channel, and its other elements to none."""
    return rules(plan, number) == (Rule.MERGED,)


class _Records:
    """The CRC-32C of a split as it is read; where other elements leave the stream, of its records, and the gaps.

    So few gaps are kept that a split with more of them has no sum: its records are copied.
    """

    def __init__(self, gives_up: bool) -> None:
        self._gives_up = gives_up
        self._crc32c, self._gaps, self._left_out, self._bytes = 0, [np.empty((3, 0), np.int64)], 0, 0

    def add(self, window: Window) -> None:
        if self._crc32c == NO_SUM:
            return
        others = np.flatnonzero(~window.records) if self._gives_up else np.zeros(0, np.int64)
        self._left_out += len(others)
        self._bytes += int(window.ends[-1])
        if self._left_out * WORTH_A_SUM > self._bytes + WORTH_A_SUM:
            self._crc32c = NO_SUM
            return
        starts, ends = window.starts[others] - frames.LENGTH_BYTES, window.ends[others]
        self._gaps.append(np.stack((window.base + starts, window.base + ends, window.position + others)))
        self._crc32c = sum_between(self._crc32c, window.data[: window.ends[-1]], starts, ends)

    def noted(self) -> tuple[int, Longs | None]:
        """The sum and the gaps."""
        if not self._gives_up:
            return self._crc32c, None
        gaps = np.concatenate(self._gaps, axis=1)
        if self._crc32c == NO_SUM or not may_stay(self._bytes, gaps):
            return NO_SUM, None
        return self._crc32c, gaps


def may_stay(size: int, gaps: Longs) -> bool:
    """Whether the records of a split are so long, on average, that the drain may read them between its gaps."""
    return not gaps.shape[1] or size - int((gaps[1] - gaps[0]).sum()) >= WORTH_A_SUM * (gaps.shape[1] + 1)


def sum_between(crc32c: int, data: npt.NDArray[np.uint8], starts: Longs, ends: Longs) -> int:
    """Extend a CRC-32C by the bytes of ``data`` outside of these gaps, which are few."""
    begin = 0
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        crc32c = google_crc32c.extend(crc32c, data[begin:start])
        begin = end
    return int(google_crc32c.extend(crc32c, data[begin:]))


def _walk(found: Iterable[Window], split_size: int, input_size: int, gives_up: bool) -> Iterator[Split]:
    """Splits of at most ``split_size`` bytes where a window allows it, each tallied apart; none of an empty channel."""
    start = position = end = input_end = 0
    sums, kinds = _nothing()
    last, summed = Last(), _Records(gives_up)
    for window in found:
        # A split ends where elements were left out: the next one begins behind them.
        if start < end and (end < window.base or window.base + int(window.ends[-1]) - start > split_size):
            tally = Tally.of_fold(sums[0])
            yield Split(start, end, position, tally, by_kind(kinds.tolist()), last, input_end, *summed.noted())
            start = end
        if start == end:
            start, position, summed = window.base, window.position, _Records(gives_up)
            sums, kinds = _nothing()
        spoke = fingerprint.fold_elements(window.data, window.starts, window.ends, window.tags, sums, kinds)
        last = last_at(window, *spoke, last)
        # An element begins with its length field.
        if inputs := int(np.searchsorted(window.starts, input_size - window.base + frames.LENGTH_BYTES)):
            input_end = window.position + inputs
        end = window.base + int(window.ends[-1])
        summed.add(window)
    if start < end:
        tally = Tally.of_fold(sums[0])
        yield Split(start, end, position, tally, by_kind(kinds.tolist()), last, input_end, *summed.noted())


def _nothing() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Return a fold of no records, and no elements by tag."""
    return np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64), np.zeros(frames.TAGS, np.int64)


def last_at(window: Window | Elements, watermark: int, status: int, before: Last) -> Last:
    """Return the last watermark and status, which are at these places of the window; −1 where it has none."""
    if watermark < 0 and status < 0:
        return before
    return Last(
        before.watermark if watermark < 0 else _number(window, watermark),
        before.idle if status < 0 else _number(window, status) == IDLE,
    )


def _number(window: Window | Elements, element: int) -> int:
    """Return the number that is all of an element behind its tag."""
    body = window.data[window.starts[element] + 1 : window.ends[element]]
    return _signed(body)


def _signed(body: npt.NDArray[np.uint8]) -> int:
    return int.from_bytes(body.tobytes(), "big", signed=True)
