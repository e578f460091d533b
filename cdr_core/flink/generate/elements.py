"""The bytes of one virtual channel, batch by batch: elements copied from the pool, each with numbers of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from cdr_core.flink.generate.pool import (
    FIRST_RECORD,
    LATENCY_MARKER,
    MARKER_SUBTASK_AT,
    TIME_AT,
    WATERMARK,
    Bytes,
    Longs,
    Numbers,
    Pool,
)
from cdr_core.kernels import frames

FIRST_TIME: Final = 1_700_000_000_000
STEP: Final = 10
"""Milliseconds from one element to the next."""
JITTER: Final = 100
"""Milliseconds that a record's timestamp may be ahead; never behind a watermark in front of it."""
_WATERMARK_CHANCE: Final = 1 / 64
_MARKER_CHANCE: Final = 1 / 1024


@dataclass(frozen=True, slots=True)
class ChannelPlace:
    """A virtual channel among those of its exchange."""

    up: int
    down: int
    old_up: int
    old_down: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Whole elements; ``last`` if the channel ends with them."""

    data: Bytes
    elements: int
    records: int
    last: bool


def element_batches(
    pool: Pool, place: ChannelPlace, size: int, batch_size: int, watermarks: bool, rng: np.random.Generator
) -> Iterator[Batch]:
    """Elements until there are ``size`` bytes of them or, by the last one, more; a batch begins with a record.

    Where the type has an integer field outside of the key, it counts: numbers ascend in a channel and are unique among
    all channels of an upstream subtask; with a second such field, which names the subtask, the numbers are as small as
    a source would count, else they are unique among all channels of the exchange.
    """
    done = elements = records = 0
    while done < size:
        ids, starts, total = _choose(pool, place, min(batch_size, size - done), watermarks, rng)
        data = _copy(pool, ids, total, rng)
        is_record = ids >= FIRST_RECORD
        _number(pool, data, ids, starts, is_record, records, place)
        _time(pool, data, ids, starts, is_record, elements, rng)
        _name_markers(data, ids, starts, place)
        done += total
        elements += len(ids)
        found = int(np.count_nonzero(is_record))
        records += found
        yield Batch(data, len(ids), found, done >= size)


def _choose(
    pool: Pool, place: ChannelPlace, size: int, others: bool, rng: np.random.Generator
) -> tuple[Longs, Longs, int]:
    """Numbers of elements with ``size`` bytes or a little more, where each begins, and their bytes; a record first."""
    choices, chances = pool.choices[place.down], pool.chances[place.down]
    count = int(size / pool.mean * 1.05) + 8
    while True:
        if chances is None:
            ids = choices[rng.integers(0, len(choices), count)]
        else:
            ids = choices[np.minimum(np.searchsorted(chances, rng.random(count)), len(choices) - 1)]
        if others:
            dice = rng.random(count)
            dice[0] = 0.5
            ids = np.where(dice < _WATERMARK_CHANCE, WATERMARK, ids)
            ids = np.where(dice > 1 - _MARKER_CHANCE, LATENCY_MARKER, ids)
        ends = np.cumsum(pool.lengths[ids])
        if ends[-1] >= size:
            break
        count *= 2
    used = int(np.searchsorted(ends, size)) + 1
    ids, ends = ids[:used], ends[:used]
    return ids, ends - pool.lengths[ids], int(ends[-1])


def _copy(pool: Pool, ids: Longs, total: int, rng: np.random.Generator) -> Bytes:
    """The elements one after the other, each payload from a place of its own."""
    payloads = pool.payloads[ids]
    room = len(pool.source) - pool.payload_start
    begins = pool.payload_start + (rng.random(len(ids)) * (room - payloads)).astype(np.int64)
    starts = np.stack([pool.head_starts[ids], begins, pool.tail_starts[ids]], axis=1).reshape(-1)
    ends = np.stack([pool.head_ends[ids], begins + payloads, pool.tail_ends[ids]], axis=1).reshape(-1)
    data = np.empty(total, np.uint8)
    frames.gather_runs(pool.source, 0, starts, ends, data)
    return data


def _number(
    pool: Pool, data: Bytes, ids: Longs, starts: Longs, is_record: np.ndarray, first: int, place: ChannelPlace
) -> None:
    chosen, begins = ids[is_record], starts[is_record]
    ends = begins + pool.lengths[chosen]
    if pool.sequence is not None:
        sequence = (np.arange(first, first + len(chosen)) * place.old_down) + place.down
        if pool.origin is None:
            sequence = sequence * place.old_up + place.up
        _write(data, _positions(pool.sequence, chosen, begins, ends), sequence, pool.sequence.code)
    if pool.origin is not None:
        origin = np.full(len(chosen), place.up)
        _write(data, _positions(pool.origin, chosen, begins, ends), origin, pool.origin.code)


def _time(
    pool: Pool,
    data: Bytes,
    ids: Longs,
    starts: Longs,
    is_record: np.ndarray,
    first: int,
    rng: np.random.Generator,
) -> None:
    """Later elements are later, and no record is late."""
    times = FIRST_TIME + STEP * np.arange(first, first + len(ids))
    times += np.where(is_record, rng.integers(0, JITTER, len(ids)), 0)
    timed = np.ones(len(ids), np.bool_) if pool.timestamps else ~is_record
    if timed.any():
        _write(data, starts[timed] + TIME_AT, times[timed], ">i8")


def _name_markers(data: Bytes, ids: Longs, starts: Longs, place: ChannelPlace) -> None:
    markers = starts[ids == LATENCY_MARKER]
    _write(data, markers + MARKER_SUBTASK_AT, np.full(len(markers), place.up), ">i4")


def _positions(numbers: Numbers, chosen: Longs, begins: Longs, ends: Longs) -> Longs:
    at = numbers.at[chosen]
    return np.where(at >= 0, begins, ends) + at


def _write(data: Bytes, positions: Longs, values: Longs, code: str) -> None:
    """Write each value at its position, aligned or not: a view of the bytes whose items overlap takes them all."""
    if len(positions) == 0:
        return
    width = np.dtype(code).itemsize
    view: np.ndarray = np.ndarray(len(data) - width + 1, np.dtype(code), data.data, strides=(1,))
    view[positions] = values.astype(view.dtype)
