"""Decides which new downstream subtask owns each record."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.errors import NOWHERE, SpecRefused, Where
from cdr_core.flink.decode import BadValue, decode_values
from cdr_core.flink.keys import key_groups
from cdr_core.flink.types import TypeDescription
from cdr_core.flink.virtual_channel import Window
from cdr_core.kernels import frames
from cdr_core.planning.custom_partitioner import call_owner
from cdr_core.planning.exchange_binding import PlannedExchange
from cdr_core.planning.job_spec import Partitioner

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


class Misplaced(SpecRefused):
    """A record that was not on its way to the owner of its key: ``record`` is its index among the examined ones.

    The caller knows the channel and raises it again with ``at``, so that the message names the place.
    """

    remedy = ("--on-corrupt=quarantine", "--replace")

    def __init__(self, what: str, *, where: Where = NOWHERE, hint: str = "", record: int = -1) -> None:
        super().__init__(what, where=where, hint=hint)
        self.record = record

    def at(self, where: Where, position: int) -> Misplaced:
        """Return the same fault with its place; ``position`` is the record's in its virtual channel."""
        return Misplaced(f"at position {position} {self.what}", where=where, hint=self.hint, record=self.record)

    def __reduce__(self) -> tuple[object, ...]:
        return (_misplaced, (self.what, self.where, self.hint, self.record))


def _misplaced(what: str, where: Where, hint: str, record: int) -> Misplaced:
    return Misplaced(what, where=where, hint=hint, record=record)


def record_owners(
    exchange: PlannedExchange, description: TypeDescription, data: Bytes, starts: Longs, ends: Longs, where: Where
) -> Longs:
    """Return the new downstream subtask of each record whose value is ``data[starts[i]:ends[i]]``.

    ``where`` names the virtual channel; its subtask is the old downstream one. Records that can only have one owner are
    not read. Raises BadValue, whose ``record`` counts these records, for a value that does not fit its type;
    Misplaced, with such a ``record`` too, where the key contradicts the records, and SpecRefused where the owner
    function does.
    """
    assert where.subtask is not None, "the old downstream subtask decides who may own a record"
    possible = exchange.possible_owners(where.subtask)
    if len(possible) == 1:
        return np.full(len(starts), possible[0], np.int64)
    if exchange.partitioner == Partitioner.CUSTOM:
        values = decode_values(description, data, starts, ends).values
        return _custom(exchange, values, exchange.new_down, where)
    groups = key_groups(description, exchange.key, data, starts, ends, exchange.max_parallelism)
    require_old_owner(exchange, groups, where)
    return _owners_of(exchange.new_down, exchange.max_parallelism)[groups]


@lru_cache(maxsize=256)
def lanes_of_groups(exchange: PlannedExchange, down: int, lanes: range) -> npt.NDArray[np.int32]:
    """Return, by key group, which of ``lanes``, consecutive new subtasks, owns it, counted from the first.

    −1 where none of them does, and where the old subtask ``down`` did not: such a record must not be there.
    """
    new, old = (_owners_of(each, exchange.max_parallelism) for each in (exchange.new_down, exchange.old_down))
    belongs = (old == down) & (new >= lanes.start) & (new < lanes.stop)
    return np.where(belongs, new - lanes.start, -1).astype(np.int32)


def window_owners(exchange: PlannedExchange, description: TypeDescription, window: Window, where: Where) -> Longs:
    """Return, per element of a window of the channel, the new downstream subtask of a record; −1 for other elements.

    Raises as :func:`record_owners`; a record that does not fit is named by its offset in the channel.
    """
    records = window.records
    owners = np.full(len(records), -1, np.int64)
    times, values = np.empty(len(records), np.int64), np.empty(len(records), np.int64)
    frames.element_times(window.data, window.starts, window.tags, times, values)
    try:
        owners[records] = record_owners(
            exchange, description, window.data, values[records], window.ends[records], where
        )
    except (BadValue, Misplaced) as error:
        raise placed(error, window, where) from None
    return owners


def placed(error: BadValue | Misplaced, window: Window, where: Where) -> BadValue | Misplaced:
    """Return the error about one of the window's records, with the record's place in the channel."""
    index = int(np.flatnonzero(window.records)[error.record])
    exact = replace(where, offset=window.base + int(window.starts[index]) - frames.LENGTH_BYTES)
    return error.at(exact, window.position + index)


def require_old_owner(exchange: PlannedExchange, groups: npt.NDArray[np.int32], where: Where) -> None:
    """Require that every record was on its way to the subtask that owned its key, which ``where`` names.

    Another key group shows that the spec is wrong, or the bytes are: Misplaced.
    """
    require_old_owners(exchange, groups, np.array(where.subtask), where)


def require_old_owners(
    exchange: PlannedExchange, groups: npt.NDArray[np.int32], downs: npt.NDArray[Any], where: Where = NOWHERE
) -> None:
    """Require the same as :func:`require_old_owner`, with the old subtask of each record."""
    if not exchange.key_checked:
        return
    owners = _owners_of(exchange.old_down, exchange.max_parallelism)[groups]
    wrong = np.flatnonzero(owners != downs)
    if len(wrong):
        raise Misplaced(
            f"a record's key belongs to old subtask {owners[wrong[0]]}, but the record was on its way to another",
            where=where,
            hint="check the record type and the key in the job spec; if they are right, the bytes are damaged",
            record=int(wrong[0]),
        )


def new_owners_of(exchange: PlannedExchange) -> Longs:
    """Return, by key group, the new subtask that owns it."""
    return _owners_of(exchange.new_down, exchange.max_parallelism)


def old_owners(exchange: PlannedExchange) -> Longs:
    """Return, by key group, the old subtask that owned it."""
    return _owners_of(exchange.old_down, exchange.max_parallelism)


@lru_cache(maxsize=64)
def _owners_of(parallelism: int, max_parallelism: int) -> Longs:
    """Return the owner of every key group."""
    return np.arange(max_parallelism, dtype=np.int64) * parallelism // max_parallelism


def count_misplaced(exchange: PlannedExchange, description: TypeDescription, window: Window, where: Where) -> int:
    """Return the number of records of a custom exchange that its owner function would not have sent where they were
    going.

    None, if it does what the job's partitioner does. Only a hint: unlike a key, that partitioner is free to depend on
    more than the record.
    """
    times, starts = np.empty(len(window.starts), np.int64), np.empty(len(window.starts), np.int64)
    frames.element_times(window.data, window.starts, window.tags, times, starts)
    values = decode_values(description, window.data, starts[window.records], window.ends[window.records]).values
    return int(np.count_nonzero(_custom(exchange, values, exchange.old_down, where) != where.subtask))


def _custom(exchange: PlannedExchange, values: pa.Array, parallelism: int, where: Where) -> Longs:
    if not len(values):
        return np.empty(0, np.int64)
    return call_owner(exchange.name, exchange.owner, values, parallelism, exchange.max_parallelism, where)
