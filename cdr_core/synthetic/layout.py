"""Layout of a generated checkpoint: the bytes and sides of each channel, and the subtasks that share a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from cdr_core.kernels.generated_elements import CHANNEL, Longs, Table
from cdr_core.synthetic.pool import Pool
from cdr_core.synthetic.shape import Shape

_IDLE: Final = 0.05
_INPUT_ONLY: Final = 0.1
_OUTPUT_ONLY: Final = 0.1
"""Shares of an exchange's channels: without data, all consumed by the receiver's side, all still with the sender."""
_CUTS: Final = (0.25, 0.75)
"""A busy channel's input state ends between these shares of its bytes; mostly inside of a record."""


def lay_out(shape: Shape, pools: Sequence[Pool]) -> Table:
    """Return every channel with data, in random order, so that channels of all subtasks take turns."""
    rng = np.random.default_rng([shape.seed, len(shape.exchanges)])
    channels = np.concatenate([_lay_out_exchange(shape, at, pool, rng) for at, pool in enumerate(pools)])
    return channels[rng.permutation(len(channels))]


def _lay_out_exchange(shape: Shape, at: int, pool: Pool, rng: np.random.Generator) -> Table:
    budget = shape.bytes // len(shape.carriers)
    served = np.flatnonzero(pool.weights > 0)
    places = shape.parallelism[shape.exchanges[shape.carriers[at]].upstream] * len(served)
    order = rng.permutation(places)
    # A channel holds at least one record: with little to spread, fewer channels have any.
    busy = min(places - int(places * _IDLE), max(1, int(budget / pool.mean)))
    channels = np.empty(busy, CHANNEL)
    channels["exchange"] = at
    channels["up"], channels["down"] = order[:busy] // len(served), served[order[:busy] % len(served)]
    weights = pool.weights[channels["down"]] * rng.uniform(0.5, 1.5, busy)
    # The last record exceeds the aim by half of one on average.
    channels["size"] = np.maximum(budget * weights / weights.sum() - pool.mean / 2, 1)
    channels["cut"] = channels["size"] * rng.uniform(*_CUTS, busy)
    channels["cut"][: int(busy * (_INPUT_ONLY + _OUTPUT_ONLY))] = 0
    channels["cut"][: int(busy * _INPUT_ONLY)] = -1
    return channels


@dataclass(frozen=True, slots=True)
class Subtask:
    """A subtask of an operator of the spec."""

    operator: str
    index: int


class Lanes(NamedTuple):
    """The sides of all channels: input of channel c at 2c, output behind it. ``subtask`` counts those of all operators,
    ``(a, b)`` as in the handle of a channel.
    """

    subtask: Longs
    a: Longs
    b: Longs


def subtasks_of(shape: Shape) -> Sequence[Subtask]:
    """Return the subtasks of all operators, in order."""
    return [Subtask(name, index) for name in shape.operators for index in range(shape.parallelism[name])]


def lanes_of(shape: Shape, channels: Table) -> Lanes:
    counts = [shape.parallelism[name] for name in shape.operators]
    first = dict(zip(shape.operators, np.cumsum(counts) - counts, strict=True))
    exchanges = [shape.exchanges[number] for number in shape.carriers]
    firsts = np.array([[first[exchange.downstream], first[exchange.upstream]] for exchange in exchanges])
    places = np.array([[exchange.gate, exchange.partition] for exchange in exchanges])
    ends, exchange = np.stack([channels["down"], channels["up"]], axis=1), channels["exchange"]
    return Lanes((firsts[exchange] + ends).reshape(-1), places[exchange].reshape(-1), ends[:, ::-1].reshape(-1))


def share_files(shape: Shape) -> Longs:
    """Return the file each subtask writes to. Subtasks of one index run side by side, so they share one, as
    in Flink.
    """
    counts = [shape.parallelism[name] for name in shape.operators]
    operators = np.repeat(np.arange(len(counts)), counts)
    indices = np.concatenate([np.arange(count) for count in counts])
    files = np.empty(len(indices), np.int64)
    files[np.lexsort((operators, indices))] = np.arange(len(indices)) // shape.subtasks_per_file
    return files
