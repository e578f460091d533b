"""Old to new subtasks by Flink's rules, computed from the true max parallelism.

Flink's own range mapping computes with 32768 key groups instead of the operator's; where the two differ it can miss an
old subtask (max parallelism 252, 252 → 233: new subtask 183 needs old 198 and 199, Flink reads 197 and 198). Here the
operator's max parallelism decides, so no needed subtask is missed.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from cdr_core.flink.keys import key_group_range, owner
from cdr_core.planning.job_spec import Partitioner

N = TypeVar("N", int, npt.NDArray[np.int64])

POINTWISE = frozenset({Partitioner.FORWARD, Partitioner.RESCALE})
"""Partitioners that connect a subtask with a few subtasks only, and number channels by these."""

UNMOVABLE = POINTWISE | {Partitioner.BROADCAST}
"""Partitioners whose in-flight records have no rule for another parallelism."""


def pointwise_ups(down: int, ups: int, downs: int) -> range:
    """Return the upstream subtasks that a pointwise exchange connects with ``down``, in the order of its channels."""
    first = down * ups // downs
    return range(first, max((down + 1) * ups // downs, first + 1))


def pointwise_downs(up: int, ups: int, downs: int) -> range:
    """Return the downstream subtasks that a pointwise exchange connects with ``up``, in the order of its
    subpartitions.
    """
    first = -(-up * downs // ups)
    if ups < downs:
        return range(first, -(-(up + 1) * downs // ups))
    last = ((up + 1) * downs - 1) // ups
    return range(last, last + 1)


def new_channel(up: N, new_up: int) -> N:
    """Return the new upstream subtask, and so the new channel, that an old one's records arrive on; of many in one
    array.
    """
    return up % new_up


def new_owners(partitioner: Partitioner, down: int, old: int, new: int, max_parallelism: int) -> tuple[int, ...]:
    """Return the new downstream subtasks that may own records of old subtask ``down``; more than one = ambiguous."""
    if old == new:
        return (down,)
    if partitioner is Partitioner.HASH:
        first, last = key_group_range(down, old, max_parallelism)
        return tuple(range(owner(first, new, max_parallelism), owner(last, new, max_parallelism) + 1))
    if partitioner is Partitioner.GLOBAL:
        return (0,)
    if partitioner is Partitioner.CUSTOM:
        return tuple(range(new))
    return (down % new,)
