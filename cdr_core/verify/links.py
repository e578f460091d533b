"""The virtual channels of an exchange, and the handles of their state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdr_core.errors import CorruptChannelState, Where
from cdr_core.verify.metadata import Operator
from cdr_core.verify.spec import Exchange

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """The virtual channels of an exchange that have state on either side, ordered by ``up`` and ``down``.

    ``received`` and ``sent`` are rows of the downstream's input handles and the upstream's output handles, −1 = none.
    """

    up: Longs
    down: Longs
    received: Longs
    sent: Longs


def links_of(upstream: Operator, downstream: Operator, exchange: Exchange, directory: str) -> Links:
    """Return every virtual channel between these operators that has state on either side, in order."""
    near = _neighbours(upstream, downstream, exchange)
    received = np.flatnonzero(downstream.inputs.a == exchange.gate)
    sent = np.flatnonzero(upstream.outputs.a == exchange.partition)
    to, source = downstream.inputs.subtask[received], downstream.inputs.b[received]
    by, goal = upstream.outputs.subtask[sent], upstream.outputs.b[sent]
    if near:
        source = np.array([near.ups[t][c] for t, c in zip(to.tolist(), source.tolist(), strict=True)], np.int64)
        goal = np.array([near.downs[t][c] for t, c in zip(by.tolist(), goal.tolist(), strict=True)], np.int64)
    ups, downs = np.append(source, by), np.append(to, goal)
    beyond = (ups >= upstream.parallelism) | (downs >= downstream.parallelism) | (ups < 0) | (downs < 0)
    if beyond.any():
        at = int(np.flatnonzero(beyond)[0])
        raise CorruptChannelState(
            f"a channel from subtask {ups[at]} to {downs[at]} is beyond the parallelism of its ends",
            where=Where(checkpoint=directory, exchange=exchange.name),
            hint="check that the spec connects the right operators, gates and partitions",
        )
    keys, number = np.unique(ups * downstream.parallelism + downs, return_inverse=True)
    rows = np.full((2, len(keys)), -1)
    rows[0, number[: len(received)]] = received
    rows[1, number[len(received) :]] = sent
    return Links(keys // downstream.parallelism, keys % downstream.parallelism, rows[0], rows[1])


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Per subtask, the subtasks of the other end that it is connected with, in the order of its channels."""

    ups: dict[int, list[int]]
    downs: dict[int, list[int]]


def pointwise(ups: int, downs: int) -> Neighbours:
    """Connect subtasks of a forward or rescale exchange as Flink does: the smaller end divides the larger
    one evenly.
    """
    if ups >= downs:
        pairs = [(up, down) for down in range(downs) for up in range(down * ups // downs, (down + 1) * ups // downs)]
    else:
        bounds = [(up * downs + ups - 1) // ups for up in range(ups + 1)]
        pairs = [(up, down) for up in range(ups) for down in range(bounds[up], bounds[up + 1])]
    near = Neighbours({}, {})
    for up, down in pairs:
        near.ups.setdefault(down, []).append(up)
        near.downs.setdefault(up, []).append(down)
    return near


def _neighbours(upstream: Operator, downstream: Operator, exchange: Exchange) -> Neighbours | None:
    """Return the connected subtasks of a pointwise exchange; ``None`` if every subtask is connected with
    every other.
    """
    if exchange.partitioner not in ("forward", "rescale"):
        return None
    near = pointwise(upstream.parallelism, downstream.parallelism)
    sides = (downstream.inputs, exchange.gate, near.ups), (upstream.outputs, exchange.partition, near.downs)
    for side, number, others in sides:
        selected = side.a == number
        for subtask, channel in zip(side.subtask[selected].tolist(), side.b[selected].tolist(), strict=True):
            if not 0 <= channel < len(others.get(subtask, ())):
                return None
    return near
