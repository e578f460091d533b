"""Random schedules of a job in recovery: drain, consume, cut, crash, resume, rescale, in any order.

    .venv/bin/python -m tests.drain.simulate --seed 1 --runs 10000
    .venv/bin/python -m tests.drain.simulate --seed 1 --runs 1498 --rescale 7:2

runs the schedules of seeds 1 to 10000 and says what happened; with ``--rescale`` every job has two inputs, begins with
the first number of subtasks and goes on with the second. A schedule that loses or repeats a record, brings one
out of order, does not end, keeps a page, or is declined a checkpoint, ends the run with its seed: ``--seed S --runs 1``
plays the very same schedule again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from random import Random

from cdr_core.drain.drainer import Drainer
from tests.drain.world import Shape, World

STEPS = 60
"""Random steps at most, before the job is driven to its end."""
BOUND = 40_000
"""Steps within which every job must end."""


def draw_shape(draw: Random, gates: int | None = None) -> Shape:
    return Shape(
        subtasks=draw.choice((1, 1, 2, 3)),
        gates=draw.choice((1, 2, 3)) if gates is None else gates,
        channels=draw.choice((1, 2, 3)),
        pages=draw.choice((1, 1, 2, 3, 8)),
        page_size=draw.choice((2, 3, 7, 7, 16, 16, 40, 1000)),
        selective=draw.random() < 0.3,
    )


@dataclass(frozen=True)
class Rescale:
    """Every job begins with ``before`` subtasks of two inputs each; each rescale makes ``after`` of them."""

    before: int
    after: int

    @classmethod
    def parse(cls, text: str) -> Rescale:
        before, _, after = text.partition(":")
        return cls(int(before), int(after))


class Schedule:
    """All of it follows from the seed."""

    def __init__(self, seed: int, drainer: type[Drainer] = Drainer, rescale: Rescale | None = None) -> None:
        self._draw = Random(seed)
        self._rescale = rescale
        shape = draw_shape(self._draw)
        if rescale is not None:
            shape = replace(shape, subtasks=rescale.before, gates=2)
        self.world = World(self._draw, shape, 24 if rescale is None else 10, drainer)
        self.world.meanwhile = self._meanwhile
        self.happened: Counter[str] = Counter()
        self._inside = False

    def run(self) -> Counter[str]:
        for _ in range(self._draw.randint(0, STEPS)):
            self._act(self._draw.random())
        if self._rescale is not None and not self.happened["rescales"]:
            self._act(1.0)
        self.world.finish(BOUND)
        self.happened["records"] += len(self.world.committed)
        return self.happened

    def _act(self, chance: float) -> None:
        world, draw = self.world, self._draw
        if chance < 0.82:
            self._flow(chance < 0.45)
        elif chance < 0.92:
            self._cut()
        elif chance < 0.94:
            self.happened["markers abandoned"] += 1
            world.abandon()
        elif chance < 0.98:
            self.happened["crashes"] += 1
            world.crash()
        else:
            self.happened["rescales"] += 1
            shape = draw_shape(draw, world.shape.gates)
            world.rescale(shape if self._rescale is None else replace(shape, subtasks=self._rescale.after))

    def _flow(self, drain: bool) -> None:
        """A burst on one side: real threads do not take turns either."""
        index = self._draw.randrange(7)
        for _ in range(self._draw.randint(1, 12)):
            if not (self.world.drain(index) if drain else self.world.consume(index)):
                break
            self.happened["pages delivered" if drain else "pages consumed"] += 1

    def _cut(self) -> None:
        subtasks = len(self.world.running)
        if subtasks > 1 and self._draw.random() < 0.2:
            self.happened["checkpoints given up"] += 1
            subtasks -= 1
        else:
            self.happened["checkpoints"] += 1
        self.world.cut(subtasks)

    def _meanwhile(self) -> None:
        """What the task's thread does while the drainer is between two of its critical sections."""
        if self._inside or self._draw.random() > 0.15:
            return
        self._inside = True
        try:
            if self._draw.random() < 0.4:
                self.happened["in the middle of a delivery"] += 1
                self._cut()
            else:
                self._flow(drain=False)
        finally:
            self._inside = False


def simulate(first: int, runs: int, drainer: type[Drainer] = Drainer, rescale: Rescale | None = None) -> Counter[str]:
    """Schedules of so many seeds; the first that fails is raised with its seed."""
    happened: Counter[str] = Counter()
    for seed in range(first, first + runs):
        try:
            happened += Schedule(seed, drainer, rescale).run()
        except Exception as error:
            shape = f" --rescale {rescale.before}:{rescale.after}" if rescale else ""
            error.add_note(f"replay it: python -m tests.drain.simulate --seed {seed} --runs 1{shape}")
            raise
    return happened


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rescale", type=Rescale.parse, metavar="BEFORE:AFTER")
    arguments = parser.parse_args()
    began = time.monotonic()
    happened = simulate(arguments.seed, arguments.runs, rescale=arguments.rescale)
    print(f"{arguments.runs} schedules, nothing lost, repeated or stuck, in {time.monotonic() - began:.1f} s")
    for what, count in sorted(happened.items()):
        print(f"  {what}: {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
