"""Which channels hold how much, on which side, and which subtasks share a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cdr_core.flink.generate.pool import Pool
from cdr_core.flink.generate.shape import Shape

_IDLE: Final = 0.05
_INPUT_ONLY: Final = 0.1
_OUTPUT_ONLY: Final = 0.1
"""Shares of an exchange's channels: without data, all consumed by the receiver's side, all still with the sender."""
_CUTS: Final = (0.25, 0.75)
"""Between these shares of a busy channel's bytes ends its input state; mostly inside of a record."""


@dataclass(frozen=True, slots=True)
class ChannelLayout:
    """A virtual channel with data: ``size`` bytes to aim at, of which ``cut`` are input state (``None``: all)."""

    exchange: int
    up: int
    down: int
    size: int
    cut: int | None


@dataclass(frozen=True, slots=True)
class Subtask:
    """A subtask of an operator of the spec."""

    operator: str
    index: int


def lay_out(shape: Shape, pools: Mapping[int, Pool]) -> list[ChannelLayout]:
    """Every channel with data, in an order of chance, so that channels of all subtasks take turns."""
    rng = np.random.default_rng([shape.seed, len(shape.exchanges)])
    channels: list[ChannelLayout] = []
    for number in shape.carriers if shape.bytes else ():
        channels += _lay_out_exchange(shape, number, pools[number], rng)
    order = rng.permutation(len(channels))
    return [channels[index] for index in order]


def _lay_out_exchange(shape: Shape, number: int, pool: Pool, rng: np.random.Generator) -> list[ChannelLayout]:
    exchange = shape.exchanges[number]
    ups, downs = shape.parallelism[exchange.upstream], shape.parallelism[exchange.downstream]
    budget = shape.bytes // len(shape.carriers)
    places = [(up, down) for up in range(ups) for down in range(downs) if pool.weights[down] > 0]
    order = rng.permutation(len(places))
    # A channel holds at least one record: with little to spread, fewer channels have any.
    busy = min(len(places) - int(len(places) * _IDLE), max(1, int(budget / pool.mean)))
    chosen = [places[index] for index in order[:busy]]
    weights = np.array([pool.weights[down] for _, down in chosen]) * rng.uniform(0.5, 1.5, busy)
    # The last record exceeds the aim by half of one on average.
    sizes = np.maximum(budget * weights / weights.sum() - pool.mean / 2, 1).astype(np.int64)
    cuts = rng.uniform(*_CUTS, busy)
    one_sided = int(busy * _INPUT_ONLY), int(busy * (_INPUT_ONLY + _OUTPUT_ONLY))
    return [
        ChannelLayout(number, up, down, int(size), _cut(index, int(size), float(cut), *one_sided))
        for index, ((up, down), size, cut) in enumerate(zip(chosen, sizes, cuts, strict=True))
    ]


def _cut(index: int, size: int, share: float, input_only: int, output_only: int) -> int | None:
    if index < input_only:
        return None
    return 0 if index < output_only else int(size * share)


def share_files(shape: Shape, operators: Sequence[str]) -> Mapping[Subtask, int]:
    """The file each subtask writes to. Subtasks of one index run side by side, so they share one, as in Flink."""
    subtasks = sorted(
        (index, operators.index(name), name) for name in operators for index in range(shape.parallelism[name])
    )
    return {Subtask(name, index): place // shape.subtasks_per_file for place, (index, _, name) in enumerate(subtasks)}
