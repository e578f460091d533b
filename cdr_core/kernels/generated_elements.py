"""Elements of a generated channel: copied from encoded ones, each with numbers of its own."""

# mypy: disable-error-code="untyped-decorator, misc"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from cdr_core.kernels.byte_copy import copy_bytes
from cdr_core.kernels.random_streams import Stream, next_below, next_float

WATERMARK, LATENCY_MARKER, FIRST_RECORD = 0, 1, 2
"""Elements of an exchange by their number."""
TIME_AT = 5
"""Where a watermark, a marker and a record with a timestamp hold their time, counted from the length field."""
MARKER_SUBTASK_AT = 29

FIRST_TIME = 1_700_000_000_000
STEP = 10
"""Milliseconds from one element to the next."""
JITTER = 100
"""Milliseconds that a record's timestamp may be ahead; never behind a watermark in front of it."""
_WATERMARK_CHANCE = 1 / 64
_MARKER_CHANCE = 1 / 1024


def integers(*names: str) -> list[tuple[str, type]]:
    """Fields of a row."""
    return [(name, np.int64) for name in names]


ELEMENT = np.dtype(integers("head", "head_end", "payload", "tail", "tail_end", "length", "sequence_at", "origin_at"))
"""``source[head:head_end]``, ``payload`` bytes from anywhere among the payload bytes of the exchange, and
``source[tail:tail_end]``, together ``length`` bytes; where a record's own numbers go: from its begin, or negative: from
its end.
"""
EXCHANGE = np.dtype(
    [
        *integers("number", "first_element", "first_row", "payload", "payload_end"),
        ("mean", np.float64),
        *integers("sequence_width", "origin_width", "ups", "downs"),
    ]
)
"""An exchange: its number in the job, its first element and first row of choices, its payload bytes, the mean length of
its records, bytes of the numbers in its records (negative: little-endian, 0: none), its parallelism.
"""
CHANNEL = np.dtype(integers("exchange", "up", "down", "size", "cut"))
"""A virtual channel of a row of exchanges with ``size`` bytes to aim at, of which ``cut`` are input state (−1: all)."""

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Table = npt.NDArray[np.void]
Row = Any


class Pools(NamedTuple):
    """The elements of all exchanges. ``choices[rows[r, 0]:rows[r, 1]]`` are the records for one downstream subtask,
    ``chances`` their accumulated probabilities (empty: all the same).
    """

    source: Bytes
    elements: Table
    exchanges: Table
    choices: Longs
    chances: npt.NDArray[np.float64]
    rows: Longs


class Options(NamedTuple):
    """``entropy`` is the seed's, with room for three more words."""

    entropy: Stream
    buffer: int
    watermarks: bool
    timestamps: bool


@njit()
def write_batch(
    pools: Pools, options: Options, channel: Row, slot: Row, size: int, stream: Stream, data: Bytes, at: int
) -> tuple[int, int, int]:
    """Write elements to ``data[at:]`` until they are ``size`` bytes or, by the last one, more; the first is a record.

    Returns how many elements, records and bytes there are.
    """
    exchange = pools.exchanges[channel.exchange]
    ids, count, total = _choose(pools, options.watermarks, exchange, channel.down, size, stream)
    if at + total > data.shape[0]:
        raise ValueError("a batch does not fit where it is to go")
    _copy(pools, exchange, ids[:count], stream, data, at)
    return (
        count,
        _number(pools.elements, options.timestamps, exchange, channel, slot, ids[:count], stream, data, at),
        total,
    )


@njit()
def _choose(
    pools: Pools, watermarks: bool, exchange: Row, down: int, size: int, stream: Stream
) -> tuple[Longs, int, int]:
    """Choose elements with ``size`` bytes or a little more; return their numbers, how many of those, their bytes."""
    begin, end = pools.rows[exchange.first_row + down]
    most = int(size / exchange.mean * 1.05) + 8
    while True:
        ids = np.empty(most, np.int64)
        for i in range(most):
            if pools.chances.shape[0] == 0:
                ids[i] = pools.choices[begin + next_below(stream, end - begin)]
            else:
                ids[i] = pools.choices[_search(pools.chances, begin, end - 1, next_float(stream))]
        if watermarks:
            _mix_in_others(stream, ids, exchange.first_element)
        total = 0
        for i in range(most):
            total += pools.elements[ids[i]].length
            if total >= size:
                return ids, i + 1, total
        most *= 2


@njit()
def _search(chances: npt.NDArray[np.float64], first: int, last: int, wanted: float) -> int:
    """Return the first of these chances that is not below the wanted one, else the last."""
    while first < last:
        middle = (first + last) // 2
        if chances[middle] < wanted:
            first = middle + 1
        else:
            last = middle
    return first


@njit()
def _mix_in_others(stream: Stream, ids: Longs, first: int) -> None:
    for i in range(ids.shape[0]):
        dice = next_float(stream)
        if i > 0 and dice < _WATERMARK_CHANCE:
            ids[i] = first + WATERMARK
        elif i > 0 and dice > 1 - _MARKER_CHANCE:
            ids[i] = first + LATENCY_MARKER


@njit()
def _copy(pools: Pools, exchange: Row, ids: Longs, stream: Stream, data: Bytes, at: int) -> None:
    """Copy the elements one after the other, each payload from a place of its own."""
    room = exchange.payload_end - exchange.payload
    for i in range(ids.shape[0]):
        element = pools.elements[ids[i]]
        begin = exchange.payload + int(next_float(stream) * (room - element.payload))
        length = element.head_end - element.head
        copy_bytes(data, at, pools.source, element.head, length)
        copy_bytes(data, at + length, pools.source, begin, element.payload)
        copy_bytes(data, at + length + element.payload, pools.source, element.tail, element.tail_end - element.tail)
        at += element.length


@njit()
def _number(
    elements: Table,
    timestamps: bool,
    exchange: Row,
    channel: Row,
    slot: Row,
    ids: Longs,
    stream: Stream,
    data: Bytes,
    at: int,
) -> int:
    """Write each element's own numbers and time; how many are records. Later elements are later, no record is late.

    Where the type has an integer field outside of the key, it counts: numbers ascend in a channel and are unique among
    all channels of an upstream subtask; with a second such field, which names the subtask, the numbers are as small as
    a source would count, else they are unique among all channels of the exchange.
    """
    records = 0
    for i in range(ids.shape[0]):
        element, kind = elements[ids[i]], ids[i] - exchange.first_element
        time, ahead = FIRST_TIME + STEP * (slot.elements + i), next_below(stream, JITTER)
        if kind < FIRST_RECORD:
            put_number(data, at + TIME_AT, time, 8)
            if kind == LATENCY_MARKER:
                put_number(data, at + MARKER_SUBTASK_AT, channel.up, 4)
        else:
            sequence = (slot.records + records) * exchange.downs + channel.down
            if exchange.origin_width == 0:
                sequence = sequence * exchange.ups + channel.up
            behind = at + element.length
            put_number(
                data,
                element.sequence_at + (at if element.sequence_at >= 0 else behind),
                sequence,
                exchange.sequence_width,
            )
            put_number(
                data, element.origin_at + (at if element.origin_at >= 0 else behind), channel.up, exchange.origin_width
            )
            if timestamps:
                put_number(data, at + TIME_AT, time + ahead, 8)
            records += 1
        at += element.length
    return records


@njit()
def put_number(data: Bytes, at: int, value: int, width: int) -> None:
    """Write a number; a negative width is little-endian."""
    for i in range(abs(width)):
        data[at + i] = value >> 8 * (width - 1 - i if width > 0 else i) & 0xFF
