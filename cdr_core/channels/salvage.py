"""Damaged channels: their sound part, and where the damage begins.

Framing does not synchronise itself, so nothing behind the first bad element can be trusted: the elements before it are
recovered, the bytes from it to the channel's end are quarantined. These are bad:

* an impossible frame, and bytes that are left over at the end;
* a value that does not fit its type, or whose key does not belong to the subtask it was on its way to. Values that
  Flink may write and only a table cannot show (:data:`UNSHOWABLE`) are bad where they would have to be shown: a record
  must not get lost on its way to a row. A target that takes bytes as they are has no reason to leave them out;
* a *hole*: a channel-state file that is missing or shorter than its handle states, a chunk that does not lie in its
  file, and chunks that are shorter together than the handle states (which of them is wrong is unknown, so none of that
  side is trusted). Longer chunks are trusted as long as nothing in the channel is bad: a handle's size is informal.

Readable bytes behind a hole are quarantined too. ``_metadata`` itself is never salvaged: without it the meaning of the
bytes is unknown.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from cdr_core.channels.channel_source import (
    Stream,
    announced_payload,
    chunks_of,
    open_channel,
    open_planned,
    place,
    refuse_overlap,
    sides,
    stream_of,
    unlike,
)
from cdr_core.errors import CdrError, CorruptChannelState
from cdr_core.flink.channel_state import LENGTH_SIZE, ChannelSlice, Int64s
from cdr_core.flink.checkpoint import InlineLocation
from cdr_core.flink.decode import BadValue, decode_values
from cdr_core.flink.keys import key_groups
from cdr_core.flink.types import TypeDescription, parse_type
from cdr_core.flink.virtual_channel import Bytes, ChannelBytes, Part, Window
from cdr_core.kernels import decode_walk, frames, values
from cdr_core.planning.job_spec import Partitioner
from cdr_core.planning.plan import Ints, Plan, PlannedExchange

UNSHOWABLE = frozenset({values.LONE_SURROGATE, values.TOO_LARGE, decode_walk.SUBCLASS})
"""Reasons why a value that Flink may write cannot be shown: an unpaired surrogate, a time or number beyond what Arrow
holds, an object of a class that the spec does not describe.
"""

_STEP = 256
"""Records decoded at once behind an unshowable one."""


@dataclass(frozen=True, slots=True)
class Damage:
    """The first bad element of a channel: where it begins (logical offset of its length field), and what is wrong.

    ``in_value``: it frames well, but its value or key does not fit the job spec. ``next_fits``: those of the record
    behind it do, so it is not the spec that is wrong.
    """

    offset: int
    reason: str
    in_value: bool = False
    next_fits: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Salvaged:
    """All bytes of a channel that can be read. The first ``intact`` are before the first hole; ``unreadable`` bytes
    were announced and are not there.
    """

    channel: ChannelBytes
    intact: int
    hole: str | None
    unreadable: int
    doubtful: bool = False
    """Some side has more bytes than its handle states, and is trusted."""


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """Chunks before and behind the first hole."""

    before: tuple[Part, ...]
    behind: tuple[Part, ...] = ()
    hole: str | None = None
    announced: int = 0
    doubtful: bool = False

    @property
    def size(self) -> int:
        return sum(part.size for part in (*self.before, *self.behind))


def open_salvaged(plan: Plan, number: int, *, believing: bool = True) -> Salvaged:
    """Return the readable part of a virtual channel; only damage of the metadata itself raises.

    ``believing`` accepts a side that has more bytes than its handle states. The bytes are the same either way.
    """
    where = place(plan, number)
    inputs, outputs = (_open(plan, piece, believing) for piece in sides(plan, number))
    intact = sum(part.size for part in inputs.before)
    if inputs.hole is None:
        intact += sum(part.size for part in outputs.before)
    channel = ChannelBytes((*inputs.before, *inputs.behind), (*outputs.before, *outputs.behind), where)
    unreadable = sum(max(side.announced - side.size, 0) for side in (inputs, outputs) if side.hole is not None)
    return Salvaged(channel, intact, inputs.hole or outputs.hole, unreadable, inputs.doubtful or outputs.doubtful)


def open_again(plan: Plan, number: int, damaged: bool) -> ChannelBytes:
    """Return the channel as `read` opened it, so that offsets mean the same bytes."""
    return open_salvaged(plan, number).channel if damaged else open_channel(plan, number)


def _open(plan: Plan, piece: ChannelSlice | None, believing: bool) -> _Side:
    if piece is None:
        return _Side(())
    try:
        parts = chunks_of(plan, piece)
    except CorruptChannelState as error:
        return _around_holes(plan, piece, error)
    announced, found = announced_payload(plan, piece), sum(part.size for part in parts)
    if announced is None or found == announced:
        return _Side(parts)
    if found > announced and believing:
        return _Side(parts, doubtful=True)
    return _Side((), parts, unlike(found, announced), announced)


def _around_holes(plan: Plan, piece: ChannelSlice, error: CorruptChannelState) -> _Side:
    """Return the chunks up to the first that cannot be read, the rest of that one if its file was cut short, and the
    readable chunks behind it.
    """
    location = open_planned(plan.checkpoint, plan.metadata_sha256).resolve(piece.delegate)
    announced = 0 if isinstance(location, InlineLocation) else piece.size - LENGTH_SIZE * len(piece.offsets)
    hole = error.what
    try:
        stream = stream_of(plan, piece.offsets.numpy(), location, piece.where(plan.checkpoint))
    except CorruptChannelState:
        return _Side((), (), hole, announced)
    offsets = piece.offsets.numpy()
    reader = _Chunks(stream)
    sound = bisect_left(range(len(offsets)), True, key=lambda n: reader.parts(offsets[: n + 1]) is None)
    before = reader.parts(offsets[:sound]) or ()
    if sound < len(offsets):
        before += reader.cut_short(int(offsets[sound]))
    behind = [part for n in range(sound + 1, len(offsets)) for part in reader.parts(offsets[n : n + 1]) or ()]
    return _Side(before, tuple(behind), hole, announced)


@dataclass(frozen=True, slots=True, eq=False)
class _Chunks:
    """The readable chunks of a stream."""

    stream: Stream

    def parts(self, offsets: Int64s) -> tuple[Part, ...] | None:
        """Return all of these chunks; ``None`` where that is impossible."""
        if not len(offsets):
            return ()
        try:
            starts, lengths = self.stream.extents(offsets)
            if self.stream.neighbours is not None:
                refuse_overlap(self.stream.neighbours(), starts, lengths, self.stream.where)
            return self.stream.parts(starts, lengths)
        except CorruptChannelState:
            return None

    def cut_short(self, offset: int) -> tuple[Part, ...]:
        """Return the existing part of a chunk at the end of a file that is shorter than it should be. The length of a
        chunk in a whole file that reaches beyond the end is wrong, and nothing of it is taken.
        """
        stream, begin = self.stream, offset + LENGTH_SIZE
        if stream.expected is None or stream.there >= stream.expected or begin >= stream.there or not self._begins():
            return ()
        if stream.length_at(offset) < stream.there - begin:
            return ()
        return stream.rest(stream.base + begin)

    def _begins(self) -> bool:
        """Return whether the stream begins with a valid header."""
        try:
            self.stream.extents(np.zeros(0, np.int64))
        except CorruptChannelState:
            return False
        return True


class SoundWindows:
    """The windows of a channel up to its damage, which is known after the last one.

    ``shown``: the target needs values, not only bytes.
    """

    def __init__(self, plan: Plan, number: int, salvaged: Salvaged, found: Iterable[Window], *, shown: bool) -> None:
        channel = plan.channels[number]
        self._exchange, self._down, self._shown = plan.exchanges[channel.exchange], channel.down, shown
        self._salvaged, self._windows = salvaged, found
        self.damage: Damage | None = None

    def __iter__(self) -> Iterator[Window]:
        found = self._salvaged
        windows = iter(self._windows)
        try:
            for window in windows:
                bad = first_bad(self._exchange, self._down, window, shown=self._shown)
                if bad is not None:
                    yield from self._end_with(window, *bad, windows)
                    return
                yield window
        except CorruptChannelState as error:
            # Only windows() raises here: the window is used outside of this generator.
            reason = error.what if found.hole is None else f"{error.what}: {found.hole}"
            self.damage = Damage(error.where.offset or 0, reason)
            return
        if found.hole is not None:
            self.damage = Damage(found.intact, found.hole)

    def _end_with(self, window: Window, element: int, reason: str, behind: Iterator[Window]) -> Iterator[Window]:
        offset = window.base + int(window.starts[element]) - frames.LENGTH_BYTES
        following = element + 1 + np.flatnonzero(window.records[element + 1 :])[:1]
        fits = len(following) > 0 and self._fits(_only(window, int(following[0])))
        self.damage = Damage(offset, reason, True, fits)
        if element:
            parts = window.starts[:element], window.ends[:element], window.tags[:element]
            yield Window(window.data, window.base, window.position, *parts)
        if not len(following):
            self.damage = Damage(offset, reason, True, self._next_window_fits(behind))

    def _next_window_fits(self, behind: Iterator[Window]) -> bool:
        try:
            for window in behind:
                records = np.flatnonzero(window.records)
                if len(records):
                    return self._fits(_only(window, int(records[0])))
        except CdrError:
            pass  # all bytes behind the damage are quarantined
        return False

    def _fits(self, window: Window) -> bool:
        return first_bad(self._exchange, self._down, window, shown=self._shown) is None


def _only(window: Window, element: int) -> Window:
    one = slice(element, element + 1)
    parts = window.starts[one], window.ends[one], window.tags[one]
    return Window(window.data, window.base, window.position + element, *parts)


def first_bad(exchange: PlannedExchange, down: int | Ints, window: Window, *, shown: bool) -> tuple[int, str] | None:
    """Return the first element whose value does not fit the exchange's type, or whose key belongs to another subtask.

    ``down``: the old subtask that the window's elements were on their way to, or that of each of them.
    """
    places = np.flatnonzero(window.records)
    downs = np.broadcast_to(down, len(window.starts))[places]
    times, begins = np.empty(len(window.starts), np.int64), np.empty(len(window.starts), np.int64)
    frames.element_times(window.data, window.starts, window.tags, times, begins)
    starts, ends = begins[places], window.ends[places]
    description = parse_type(exchange.record)
    found: tuple[int, str] | None = None
    unfit = _first_unfit(description, window.data, starts, ends, shown)
    if unfit is not None:
        record, what = unfit
        found = int(places[record]), what
        starts, ends = starts[:record], ends[:record]
    if exchange.partitioner != Partitioner.HASH or not exchange.key or not len(starts):
        return found
    try:
        groups = key_groups(description, exchange.key, window.data, starts, ends, exchange.max_parallelism)
    except BadValue as error:
        found = int(places[error.record]), error.complaint
        keys = starts[: error.record], ends[: error.record]
        groups = key_groups(description, exchange.key, window.data, *keys, exchange.max_parallelism)
    owners = groups.astype(np.int64) * exchange.old_down // exchange.max_parallelism
    downs = downs[: len(owners)]
    wrong = np.flatnonzero(owners != downs)
    if len(wrong) and exchange.key_checked:
        owner, other = owners[wrong[0]], downs[wrong[0]]
        return int(places[wrong[0]]), f"a record's key belongs to old subtask {owner}, it was on its way to {other}"
    return found


def _first_unfit(
    description: TypeDescription, data: Bytes, starts: Int64s, ends: Int64s, shown: bool
) -> tuple[int, str] | None:
    """Return the first of these values that does not fit, and why; beyond one that is only unshowable by
    small steps.
    """
    at, step = 0, max(len(starts), 1)
    while at < len(starts):
        try:
            decode_values(description, data, starts[at : at + step], ends[at : at + step])
            at += step
        except BadValue as error:
            if shown or error.reason not in UNSHOWABLE:
                return at + error.record, error.complaint
            at, step = at + error.record + 1, _STEP
    return None
