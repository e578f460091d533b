"""The group ``flink`` with eight times as much in flight, about 4 GB."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks import flink
from tests.benchmarks.figures import Bench, Figure, Sizes

NOT_MEASURED = flink.NOT_MEASURED
TIMES = 8


def needs(sizes: Sizes) -> int:
    return TIMES * flink.needs(sizes)


def run(bench: Bench) -> Iterator[Figure]:
    yield from flink.run(bench, "flink-large", TIMES)
