"""Random schedules of a job in recovery: drain, consume, ask, answer, cut, lose a task or think so, crash, rescale.

    .venv/bin/python -m tests.drain.simulate --seed 1 --runs 10000 --record docs/schedules-runs.json
    .venv/bin/python -m tests.drain.simulate --seed 1 --runs 1498 --rescale 7:2

runs the schedules of seeds 1 to 10000, says what happened and keeps it (``make schedules`` is the first of these); with
``--rescale`` every job has two inputs, begins with the first number of subtasks and goes on with the second. A schedule
that loses or repeats a record, brings one out of order, does not end, keeps a page, is declined a checkpoint, leaves
somebody who asked for one without an answer, or fails an attempt for no reason, ends the run with its seed:
``--seed S --runs 1`` plays the very same schedule again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.drain.attempt import Shape, Task
from tests.drain.world import SHIPPED, Parts, World

STEPS = 60
"""Random steps at most, before the job is driven to its end."""
BOUND = 10_000
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

    def __init__(self, seed: int, parts: Parts = SHIPPED, rescale: Rescale | None = None) -> None:
        self._draw = Random(seed)
        self._rescale = rescale
        shape = draw_shape(self._draw)
        if rescale is not None:
            shape = replace(shape, subtasks=rescale.before, gates=2)
        self.world = World(self._draw, shape, 24 if rescale is None else 10, parts)
        self.world.meanwhile = self._meanwhile
        self.happened = self.world.happened
        self._inside = False
        self._together = self._draw.random() < 0.5

    def run(self) -> Counter[str]:
        with self.world.mounted():
            self.world.begin()
            self._begin_tasks()
            for _ in range(self._draw.randint(0, STEPS)):
                self._act(self._draw.random())
                self.world.settle()
            if self._rescale is not None and not self.happened["rescales"]:
                self._change_shape()
            self.world.disk.fails_in = None
            self.world.finish(BOUND)
        self.happened["records"] += len(self.world.committed)
        return self.happened

    def _act(self, chance: float) -> None:
        if chance < 0.62:
            self._flow(chance < 0.34)
        elif chance < 0.76:
            self._cut()
        elif chance < 0.92:
            self._talk()
        elif chance < 0.94:
            self.happened["markers abandoned"] += 1
            self.world.abandon()
        elif chance < 0.98:
            self.happened["crashes"] += 1
            self.world.crash()
            self._begin_tasks()
        else:
            self._change_shape()

    def _begin_tasks(self) -> None:
        """All at once, or in waves."""
        waves = self._draw.random() < 0.3
        while not (waves and self._draw.random() < 0.5) and self.world.start():
            pass

    def _change_shape(self) -> None:
        self.happened["rescales"] += 1
        shape = draw_shape(self._draw, self.world.shape.gates)
        self.world.rescale(shape if self._rescale is None else replace(shape, subtasks=self._rescale.after))
        self._begin_tasks()

    def _flow(self, drain: bool) -> None:
        """A burst on one side: real threads do not take turns either."""
        task = self.world.task()
        if task is None:
            return
        for _ in range(self._draw.randint(1, 12)):
            if not (task.drain() if drain else task.consume()):
                break
            self.happened["pages delivered" if drain else "pages consumed"] += 1

    def _cut(self) -> None:
        """A checkpoint that everybody answers at once, or one that is given up; or everybody at his own pace."""
        if not self._together:
            self._half_a_cut() if self._inside else self._talk()
            return
        living = len(self.world.attempt.living)
        given_up = living > 1 and self._draw.random() < 0.2
        self.happened["checkpoints given up" if given_up else "checkpoints at once"] += 1
        self.world.cut(1 if given_up else 0)
        if given_up and self._draw.random() < 0.7:
            self._let_time_pass()

    def _half_a_cut(self) -> None:
        """Some answer at once, others when they get to it."""
        self.world.ask(None)
        self.world.look()
        for task in self.world.attempt.living:
            if self._draw.random() < 0.6:
                task.answer()

    def _talk(self) -> None:
        """Driver and tasks each at their own pace, as processes are."""
        task = self.world.task()
        mail: list[tuple[float, Callable[[], object]]] = [(3, self._ask), (3, self.world.look), (1, self.world.start)]
        if task is not None:
            mail += [(3, task.answer)]
        if not self._inside:
            mail += [(2, self._twin), (1, self._let_time_pass), (0.5, self._trouble)]
            mail += [(3, partial(self._run_to_end, task)), (0.5, partial(self._lose, task))] if task is not None else []
        weights = [weight for weight, _ in mail]
        self._draw.choices([what for _, what in mail], weights)[0]()

    def _ask(self) -> None:
        """Several at once are seen by the driver in one look."""
        for _ in range(self._draw.choice((1, 1, 2, 3))):
            self.happened["requests"] += 1
            self.world.ask(self._draw.choice((None, None, None, None, 1.0, 4.0, 100.0)))
        if self._draw.random() < 0.7:
            self.world.look()

    def _twin(self) -> None:
        """Begun from where the first one is; which of them is faster is open."""
        twin = self.world.start_twin()
        if twin is None:
            return
        self.happened["twins"] += 1
        for _ in range(self._draw.choice((0, 2, 5, 20))):
            twin.drain()
            twin.consume()
        if self._draw.random() < 0.6:
            self._run_to_end(next(task for task in self.world.attempt.living if task.unit == twin.unit))

    def _lose(self, task: Task) -> None:
        self.happened["tasks lost"] += 1
        self.world.attempt.lose(task)

    def _trouble(self) -> None:
        """The storage fails once while the driver looks."""
        self.happened["storage troubles"] += 1
        self.world.disk.fails_in = self._draw.randrange(12)
        self.world.look()
        self.world.disk.fails_in = None

    def _run_to_end(self, task: Task) -> None:
        """One task alone, with or without looking for requests; most often to its result."""
        listens = self._draw.choice((0.0, 0.1, 0.5))
        for _ in range(self._draw.choice((5, 20, 200, 200))):
            if self._draw.random() < listens:
                task.answer()
            if not task.drain() and not task.consume() and task.end():
                self.happened["tasks at their end"] += 1
                self._after_the_end(task)
                return

    def _after_the_end(self, task: Task) -> None:
        """The driver accepts the result; whoever else is at work on that subtask does not know."""
        if self._draw.random() < 0.7:
            self.world.look()
        twins = [other for other in self.world.attempt.living if other.unit == task.unit]
        if twins and self._draw.random() < 0.7:
            self._ask()
            for twin in twins:
                twin.answer()

    def _let_time_pass(self) -> None:
        self.world.now += self._draw.choice((1.0, 3.0, 11.0))
        self.world.look()

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


def simulate(first: int, runs: int, parts: Parts = SHIPPED, rescale: Rescale | None = None) -> Counter[str]:
    """Schedules of so many seeds; the first that fails is raised with its seed."""
    happened: Counter[str] = Counter()
    for seed in range(first, first + runs):
        try:
            happened += Schedule(seed, parts, rescale).run()
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
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep what happened there, as JSON")
    arguments = parser.parse_args()
    began = time.monotonic()
    happened = simulate(arguments.seed, arguments.runs, rescale=arguments.rescale)
    seconds = time.monotonic() - began
    print(f"{arguments.runs} schedules, nothing lost, repeated or stuck, in {seconds:.1f} s")
    for what, count in sorted(happened.items()):
        print(f"  {what}: {count}")
    if arguments.record is not None:
        arguments.record.write_text(
            json.dumps(record(arguments.seed, arguments.runs, happened, seconds), indent=2) + "\n"
        )
    return 0


def record(first: int, runs: int, happened: Counter[str], seconds: float) -> dict[str, Any]:
    """Of a run that found nothing: one that finds something ends with its seed and is not recorded."""
    return {
        "version": 1,
        "schedules": runs,
        "first_seed": first,
        "lost": 0,
        "duplicated": 0,
        "out_of_order": 0,
        "stuck": 0,
        "bad_run_rate_95_percent_upper_bound": 3 / runs,
        "happened": dict(sorted(happened.items())),
        "seconds": round(seconds),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "finished": datetime.now(UTC).date().isoformat(),
    }


if __name__ == "__main__":
    sys.exit(main())
