"""The places of a virtual channel's bytes in its objects, by `_metadata` alone, and reading ranges of them in place.

A handle lists where chunks begin. A chunk reaches to the next one that any handle names, or to the end of its stream;
if the chunks of a channel add up to the size that its handle announces, these are the ends, and no byte had to be read
to know them. Otherwise there is no layout, and the reader of single channels opens the channel.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cdr_core.channels.channel_source import neighbours, open_channel, open_planned, place, sides
from cdr_core.channels.fetch_ranges import LONGEST_REQUEST
from cdr_core.channels.remote_state import AT_ONCE, Fetches, is_remote, unit_fetches
from cdr_core.channels.source_index import SourceIndex, index_of, source_changed
from cdr_core.errors import CorruptChannelState, Where
from cdr_core.flink.channel_state import DAMAGED, HEADER_SIZE, LENGTH_SIZE, STREAM_VERSION, gather_fields
from cdr_core.flink.checkpoint import FileLocation
from cdr_core.flink.virtual_channel import Bytes, ChannelBytes, Longs, Part
from cdr_core.planning.handle_sizes import payload_size
from cdr_core.planning.plan import Plan

STRETCH = 4 << 20
"""Bytes of a streamed channel that are fetched together; twice as many are in memory."""


LONGEST_IGNORED = 64 << 10
"""Unwanted bytes that are read along, because a second call would cost more."""
_IGNORED = memoryview(bytearray(LONGEST_IGNORED))
"""Target of these bytes. It is never read, so all threads share it."""


class Range(NamedTuple):
    """Bytes [begin, end) of an object that hold the chunks ``first`` to ``last``, one behind another."""

    uri: str
    begin: int
    end: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, eq=False)
class ChannelLayout:
    """The payload of chunk i is at ``starts[i]`` of the object ``uris[of[i]]``, and is logical bytes ``logical[i]`` to
    ``logical[i + 1]`` of the channel. ``headers`` are where its streams begin.
    """

    uris: tuple[str, ...]
    of: Longs
    starts: Longs
    logical: Longs
    input_size: int
    headers: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        return int(self.logical[-1])

    def chunks(self, begin: int, end: int) -> tuple[int, int]:
        """Return the first chunk and the one behind the last that hold logical bytes [begin, end)."""
        first = int(np.searchsorted(self.logical, begin, side="right")) - 1
        return first, int(np.searchsorted(self.logical, end, side="left"))

    def ranges(self, first: int, last: int) -> Iterator[Range]:
        """Yield chunks ``first`` to ``last``, adjacent ones together, each with its length field."""
        begins = self.starts[first:last] - LENGTH_SIZE
        ends = self.starts[first:last] + np.diff(self.logical[first : last + 1])
        of = self.of[first:last]
        apart = np.flatnonzero((begins[1:] != ends[:-1]) | (of[1:] != of[:-1])) + 1
        low = 0
        for border in [*apart.tolist(), last - first]:
            while low < border:
                upto = int(np.searchsorted(ends[low:border], begins[low] + LONGEST_REQUEST, side="right"))
                high = low + max(upto, 1)
                uri = self.uris[int(of[low])]
                yield Range(uri, int(begins[low]), int(ends[high - 1]), first + low, first + high)
                low = high


def layout_of(plan: Plan, number: int, index: SourceIndex) -> ChannelLayout | None:
    """Return the layout of a virtual channel whose state is in objects that `read` looked at; ``None`` in any doubt."""
    checkpoint = open_planned(plan.checkpoint, plan.metadata_sha256)
    starts: list[Longs] = []
    lengths: list[Longs] = []
    headers: list[tuple[str, int]] = []
    input_size = 0
    for side, piece in enumerate(sides(plan, number)):
        if piece is None:
            continue
        location = checkpoint.resolve(piece.delegate)
        if not isinstance(location, FileLocation):
            return None
        known, announced = index.objects.get(location.uri), payload_size(checkpoint, piece)
        end = None if location.length is None else location.base + location.length
        if known is None or announced is None or (end is not None and end > known.size):
            return None
        begins = piece.offsets.numpy() + location.base
        found = np.append(neighbours(plan, location.uri), known.size if end is None else end)
        following = np.minimum(found[np.searchsorted(found[:-1], begins, side="right")], found[-1])
        sizes = following - begins - LENGTH_SIZE
        if (sizes < 0).any() or int(sizes.sum()) != announced or (begins < location.base + HEADER_SIZE).any():
            return None
        starts.append(begins + LENGTH_SIZE)
        lengths.append(sizes)
        headers.append((location.uri, location.base))
        input_size += 0 if side else announced
    if not headers:
        return None
    of = np.repeat(np.arange(len(starts)), [len(each) for each in starts])
    logical = np.append(0, np.cumsum(np.concatenate(lengths)))
    uris = tuple(uri for uri, _ in headers)
    return ChannelLayout(uris, of, np.concatenate(starts), logical, input_size, tuple(headers))


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """Ascending ranges of a channel, and the place in a target where the first of them goes."""

    starts: Longs
    ends: Longs
    at: int

    @property
    def begin(self) -> int:
        return int(self.starts[0])

    @property
    def end(self) -> int:
        return int(self.ends[-1])

    def places(self, points: Longs) -> Longs:
        """Return where each logical byte goes; −1 for one that is not wanted."""
        row = np.searchsorted(self.starts, points, side="right") - 1
        lengths = self.ends - self.starts
        places: Longs = self.at + (np.cumsum(lengths) - lengths)[row] + points - self.starts[row]
        return np.where((row >= 0) & (points < self.ends[row]), places, -1)


class LayoutReader:
    """Reads ranges of channels in place; the bytes that it fetches count as the unit's. Safe for any thread."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._index = plan, index_of(plan.metadata_sha256)
        self._fetches = unit_fetches()
        self._last: tuple[int, ChannelLayout | None] = (-1, None)

    def layout(self, number: int) -> ChannelLayout | None:
        """Return the layout of a channel; consecutive calls are mostly for the same one."""
        last = self._last
        if last[0] != number:
            self._last = last = number, layout_of(self._plan, number, self._index)
        return last[1]

    def lasts(self, number: int) -> bool:
        """Return whether the drain may read the channel in place."""
        layout = self.layout(number)
        return layout is not None and all(map(self._index.lasts, layout.uris))

    def read(self, number: int, starts: Longs, ends: Longs, target: memoryview) -> None:
        """Fill ``target`` with ranges of the logical bytes of a channel, which ascend, one behind another."""
        layout = self.layout(number)
        if layout is None or int(ends[-1]) > layout.size:
            raise source_changed(f"channel {number} is not laid out as when it was read", self._plan.checkpoint)
        borders = [0, *(np.flatnonzero(starts[1:] - ends[:-1] > LONGEST_IGNORED) + 1).tolist(), len(starts)]
        at, jobs = 0, []
        for low, high in pairwise(borders):
            wanted = _Wanted(starts[low:high], ends[low:high], at)
            at += int((ends[low:high] - starts[low:high]).sum())
            chunks = layout.chunks(int(starts[low]), int(ends[high - 1]))
            jobs += [(each, wanted) for each in layout.ranges(*chunks)]
        if len(jobs) == 1 or not any(map(is_remote, layout.uris)):
            for each, wanted in jobs:
                self._fill(layout, each, wanted, target)
            return
        with ThreadPoolExecutor(max_workers=min(AT_ONCE, len(jobs))) as pool:  # hides the latency of short requests
            list(pool.map(lambda job: self._fill(layout, job[0], job[1], target), jobs))

    def _fill(self, layout: ChannelLayout, each: Range, wanted: _Wanted, target: memoryview) -> None:
        """One call for a range of an object: what is wanted goes to its place in the target, what lies between (length
        fields, elements that were not selected) is ignored.
        """
        logical = layout.logical[each.first : each.last + 1]
        begin, end = max(int(logical[0]), wanted.begin), min(int(logical[-1]), wanted.end)
        if begin == end:
            return  # nothing but empty chunks
        inside = logical[(logical > begin) & (logical < end)]
        cuts = np.concatenate((wanted.starts, wanted.ends))
        points = np.unique(np.concatenate(([begin, end], inside, cuts[(cuts > begin) & (cuts < end)])))
        fields = LENGTH_SIZE * (
            np.searchsorted(logical[:-1], points, side="right") - np.searchsorted(logical[:-1], points, side="left")
        )
        fields[0] = 0
        places = wanted.places(points[:-1]).tolist()
        targets: list[memoryview] = []
        for length, field, at in zip(np.diff(points).tolist(), fields.tolist(), places, strict=False):
            if field:
                targets.append(_IGNORED[:field])
            targets.append(_IGNORED[:length] if at < 0 else target[at : at + length])
        chunk = layout.chunks(begin, begin + 1)[0]
        offset = int(layout.starts[chunk] + begin - layout.logical[chunk])
        self._index.read_into(each.uri, offset, targets)
        if self._fetches is not None and is_remote(each.uri):
            self._fetches.count(sum(map(len, targets)))

    def uris(self, number: int) -> list[str]:
        """The objects that hold a channel, for an error."""
        layout = self.layout(number)
        return list(dict.fromkeys(layout.uris)) if layout is not None else [self._plan.checkpoint]


class StreamedChannel(ChannelBytes):
    """A channel of an object store of which two stretches are in memory: it is fetched forwards as it is read.

    Every length field is compared with the layout when its stretch arrives.
    """

    def __init__(self, layout: ChannelLayout, index: SourceIndex, fetches: Fetches, where: Where) -> None:
        super().__init__((), (), where)
        self.size, self.input_size = layout.size, layout.input_size
        self._layout, self._index, self._fetches = layout, index, fetches
        nothing = np.zeros(0, np.int64)
        self._now: tuple[Part, Longs, int, int] = (Part(np.zeros(0, np.uint8), nothing, nothing), nothing, 0, 0)
        self._ahead = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cdr-fetch-ahead")
        self._next: tuple[int, Future[tuple[Part, Longs, int, int]]] | None = None
        for uri, base in layout.headers:
            header = self._fetch(uri, base, HEADER_SIZE)
            if int.from_bytes(header.tobytes(), "big") != STREAM_VERSION:
                raise CorruptChannelState(
                    f"{uri} holds no stream of channel state at {base}", where=where, hint=DAMAGED
                )

    def copy(self, begin: int, end: int, target: Bytes, at: int = 0) -> None:
        if not 0 <= begin <= end <= self.size or at + (end - begin) > len(target):
            raise ValueError(f"range [{begin}, {end}) does not fit a channel of {self.size} bytes")
        while begin < end:
            part, _, first, last = self.part_at(begin)
            upto = min(end, last)
            ChannelBytes((part,), (), self.where).copy(begin - first, upto - first, target, at)
            begin, at = upto, at + upto - begin

    def part_at(self, at: int) -> tuple[Part, Longs, int, int]:
        first, last = self._now[2:]
        if not first <= at < last:
            chunk = self._layout.chunks(at, at + 1)[0]
            ahead, self._next = self._next, None
            self._now = ahead[1].result() if ahead is not None and ahead[0] == chunk else self._load(chunk)
            if self._now[3] < self.size:
                behind = self._layout.chunks(self._now[3], self._now[3] + 1)[0]
                self._next = behind, self._ahead.submit(self._load, behind)
        return self._now

    @property
    def parts(self) -> list[Part]:
        raise AssertionError("a streamed channel has no parts that stay")

    def _load(self, first: int) -> tuple[Part, Longs, int, int]:
        layout = self._layout
        last = max(first + 1, int(np.searchsorted(layout.logical, layout.logical[first] + STRETCH, side="right")) - 1)
        ranges = list(layout.ranges(first, last))
        with ThreadPoolExecutor(max_workers=min(AT_ONCE, len(ranges))) as pool:
            answers = list(pool.map(lambda each: self._fetch(each.uri, each.begin, each.end - each.begin), ranges))
        shifts = np.cumsum([0, *(len(answer) for answer in answers)])
        starts = np.concatenate(
            [layout.starts[r.first : r.last] - r.begin + shift for r, shift in zip(ranges, shifts, strict=False)]
        )
        source, lengths = np.concatenate(answers), np.diff(layout.logical[first : last + 1])
        wrong = np.flatnonzero(gather_fields(source, starts - LENGTH_SIZE) != lengths)
        if len(wrong):
            place = first + int(wrong[0])
            raise CorruptChannelState(
                f"a chunk does not have the {lengths[wrong[0]]} bytes that its handle states",
                where=replace(self.where, offset=int(layout.logical[place])),
                hint=DAMAGED,
            )
        begin = int(layout.logical[first])
        logical = layout.logical[first : last + 1] - begin
        return Part(source, starts, lengths), logical, begin, int(layout.logical[last])

    def _fetch(self, uri: str, offset: int, length: int) -> Bytes:
        data = np.empty(length, np.uint8)
        self._index.read_into(uri, offset, [data.data])
        self._fetches.count(length)
        return data


def open_whole(plan: Plan, number: int) -> ChannelBytes:
    """Return a channel that will be read once from its start: streamed, if a unit would have to fetch much of it."""
    fetches = unit_fetches()
    if fetches is not None and int(plan.channels.bytes[number]) > STRETCH:
        index = index_of(plan.metadata_sha256)
        layout = layout_of(plan, number, index)
        if layout is not None and all(map(is_remote, layout.uris)):
            return StreamedChannel(layout, index, fetches, place(plan, number))
    return open_channel(plan, number)
