"""The channels of a generated checkpoint: their elements, cut into chunks, in the order in which they are written.

A few channels are open at a time, each in a slot of its own, and take turns in an order of chance, so that their chunks
lie between each other's. Each channel has a random stream of its own. A call fills a window with chunks; the next call
goes on from there.
"""

# mypy: disable-error-code="untyped-decorator, misc"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from cdr_core.kernels.byte_copy import copy_bytes
from cdr_core.kernels.generated_elements import (
    Bytes,
    Longs,
    Options,
    Pools,
    Row,
    Table,
    integers,
    put_number,
    write_batch,
)
from cdr_core.kernels.random_streams import STREAM_WORDS, Stream, next_below, next_float, seed_stream

SLOTS = 8
"""Channels that take turns in writing."""
BATCH = 1 << 20
"""Bytes of a channel that are made at once."""

_EMPTY_CHANCE = 1 / 16
"""Of an empty chunk in a batch: an open buffer that was drained when the barrier came."""
_TURNS = 6
"""Into which the chunks of a batch are divided, about."""

_INPUT, _OUTPUT = 0, 1
_ACTIVE, _NEXT, _CURRENT = range(3)
"""Of progress: slots in use, the next channel, the slot in the middle of a turn or −1."""

_SLOT = np.dtype(
    [
        *integers("channel", "bytes", "elements", "records", "last", "side", "room", "data_end", "rest", "cut_at"),
        *integers("begin", "end", "first", "empty", "chunk", "chunks", "each", "turn_end"),
    ]
)
"""A slot: how much of its channel was made, whether that is all (1), the side and the room in its open buffer. In its
data: the end of the elements, the first byte without a chunk, where output begins (0: not in this batch). Of the piece
that is being cut: begin, end, the first chunk's length, the number of the empty chunk or −1, the next chunk, chunks,
chunks a turn, end of the turn.
"""


class Work(NamedTuple):
    """State kept from one window to the next; ``totals`` are channels, elements, records, bytes by exchange."""

    streams: Stream
    slots: Table
    data: Bytes
    active: Longs
    progress: Longs
    totals: Longs


class Window(NamedTuple):
    """Chunks with their length fields side by side; chunk i belongs to side ``lanes[i] % 2`` of ``lanes[i] // 2``."""

    data: Bytes
    lanes: Longs
    lengths: Longs


def new_work(pools: Pools, channels: Table, options: Options, turns: Stream) -> Work:
    """Return the initial state; ``turns`` is the entropy of the order of turns."""
    longest, largest = int(pools.elements["length"].max()), int(channels["size"].max())
    room = min(BATCH, largest) + longest + min(options.buffer, largest + longest)
    streams = np.zeros((SLOTS + 1, STREAM_WORDS), np.uint64)
    seed_stream(streams[SLOTS], turns)
    return Work(
        streams,
        np.zeros(SLOTS, _SLOT),
        np.empty((min(SLOTS, len(channels)), room), np.uint8),
        np.arange(SLOTS),
        np.array([0, 0, -1]),
        np.zeros((len(pools.exchanges), 4), np.int64),
    )


@njit(cache=True, nogil=True)
def fill_window(pools: Pools, channels: Table, options: Options, work: Work, window: Window) -> tuple[int, int]:
    """Write the next chunks; how many bytes and chunks. None: all channels are written. A chunk must fit a window."""
    used = chunks = 0
    while True:
        if work.progress[_CURRENT] < 0 and not _begin_turn(pools, channels, options, work):
            return used, chunks
        number = work.progress[_CURRENT]
        slot = work.slots[number]
        used, chunks = _write_chunks(slot, work.data[number], options.buffer, window, used, chunks)
        if slot.chunk < slot.turn_end:
            return used, chunks
        work.progress[_CURRENT] = -1


@njit()
def _begin_turn(pools: Pools, channels: Table, options: Options, work: Work) -> bool:
    progress, active = work.progress, work.active
    while True:
        while progress[_ACTIVE] < SLOTS and progress[_NEXT] < channels.shape[0]:
            _open(pools.exchanges, channels, options, work)
        if progress[_ACTIVE] == 0:
            return False
        drawn = next_below(work.streams[SLOTS], progress[_ACTIVE])
        number = active[drawn]
        if _advance(pools, channels, options, work, number):
            progress[_CURRENT] = number
            return True
        progress[_ACTIVE] -= 1
        for i in range(drawn, progress[_ACTIVE]):
            active[i] = active[i + 1]
        active[progress[_ACTIVE]] = number


@njit()
def _open(exchanges: Table, channels: Table, options: Options, work: Work) -> None:
    """Give the next channel a slot and a stream."""
    number, entropy = work.active[work.progress[_ACTIVE]], options.entropy
    slot, stream, channel = work.slots[number], work.streams[number], channels[work.progress[_NEXT]]
    slot.channel = work.progress[_NEXT]
    slot.bytes = slot.elements = slot.records = 0
    slot.data_end = slot.rest = slot.cut_at = slot.chunk = slot.chunks = 0
    slot.side = _OUTPUT if channel.cut == 0 else _INPUT
    entropy[-3], entropy[-2], entropy[-1] = exchanges[channel.exchange].number, channel.up, channel.down
    seed_stream(stream, entropy)
    slot.room = 1 + next_below(stream, options.buffer)
    work.totals[channel.exchange, 0] += 1
    work.progress[_NEXT] += 1
    work.progress[_ACTIVE] += 1


@njit()
def _advance(pools: Pools, channels: Table, options: Options, work: Work, number: int) -> bool:
    """Find the chunks of the slot's next turn; whether there are any."""
    slot, stream, buffer = work.slots[number], work.streams[number], options.buffer
    channel = channels[slot.channel]
    while slot.chunk >= slot.chunks:
        if slot.cut_at > 0:
            begin, slot.cut_at, slot.side = slot.cut_at, 0, _OUTPUT
            slot.room = 1 + next_below(stream, buffer)
            if begin < slot.data_end:
                _cut(slot, stream, buffer, begin, slot.data_end, slot.last > 0)
        elif slot.bytes >= channel.size:
            return False
        else:
            before = slot.bytes
            rest = _make_batch(pools, options, channel, slot, stream, work.data[number], work.totals)
            if channel.cut > 0 and before < channel.cut <= slot.bytes:
                slot.cut_at = rest + channel.cut - before
                _cut(slot, stream, buffer, 0, slot.cut_at, True)
            else:
                _cut(slot, stream, buffer, 0, slot.data_end, slot.last > 0)
    slot.turn_end = min(slot.chunk + slot.each, slot.chunks)
    return True


@njit()
def _make_batch(
    pools: Pools, options: Options, channel: Row, slot: Row, stream: Stream, data: Bytes, totals: Longs
) -> int:
    """Make elements behind the bytes that no chunk has yet; return the number of these bytes."""
    rest = slot.data_end - slot.rest
    for i in range(rest):
        data[i] = data[slot.rest + i]
    size = min(BATCH, channel.size - slot.bytes)
    elements, records, total = write_batch(pools, options, channel, slot, size, stream, data, rest)
    slot.data_end = rest + total
    slot.bytes += total
    slot.elements += elements
    slot.records += records
    slot.last = 1 if slot.bytes >= channel.size else 0
    totals[channel.exchange, 1] += elements
    totals[channel.exchange, 2] += records
    totals[channel.exchange, 3] += total
    return rest


@njit()
def _cut(slot: Row, stream: Stream, buffer: int, begin: int, end: int, last: bool) -> None:
    """Cut a piece into chunks. Each side begins inside of a buffer and ends inside of one, so that lengths and bodies
    are cut anywhere. What does not fill a buffer waits for more, unless this is the last.
    """
    chunks, rest = 0, begin
    slot.begin, slot.end, slot.first = begin, end, slot.room
    if slot.room <= end - begin:
        chunks = (end - begin - slot.room) // buffer + 1
        rest = begin + slot.room + (chunks - 1) * buffer
        slot.room = buffer
    if last and rest < end:
        chunks, rest = chunks + 1, end
    slot.empty = -1
    if next_float(stream) < _EMPTY_CHANCE:
        slot.empty = next_below(stream, chunks + 1)
        chunks += 1
    slot.rest, slot.chunk, slot.chunks, slot.each = rest, 0, chunks, max(1, chunks // _TURNS)


@njit()
def _write_chunks(slot: Row, data: Bytes, buffer: int, window: Window, used: int, chunks: int) -> tuple[int, int]:
    """Write what is left of the turn, as far as it fits."""
    while slot.chunk < slot.turn_end and chunks < window.lanes.shape[0]:
        begin, length = slot.begin, 0
        if slot.chunk != slot.empty:
            number = slot.chunk - (1 if 0 <= slot.empty < slot.chunk else 0)
            if number > 0:
                begin += slot.first + (number - 1) * buffer
            length = min(begin + buffer if number > 0 else begin + slot.first, slot.end) - begin
        if used + 4 + length > window.data.shape[0]:
            break
        put_number(window.data, used, length, 4)
        copy_bytes(window.data, used + 4, data, begin, length)
        window.lanes[chunks], window.lengths[chunks] = 2 * slot.channel + slot.side, length
        used += 4 + length
        chunks += 1
        slot.chunk += 1
    return used, chunks
