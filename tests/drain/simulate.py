"""Random schedules of a drain and its recovery checkpoints: step, ask, look, lose a task or think so, crash.

    .venv/bin/python -m tests.drain.simulate --seed 1 --runs 10000 --record docs/schedules-runs.json

runs the schedules of seeds 1 to 10000, says what happened and keeps it (``make schedules``). A schedule that loses or
repeats a record, brings one out of order, does not end, lets a checkpoint name what is not durable, publishes a file
twice, leaves a request without an answer, or fails an attempt for no reason, ends the run with its seed: ``--seed S
--runs 1`` plays the very same schedule again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from tests.drain.world import SHIPPED, Parts, World

STEPS = 60
"""Random steps at most, before the drain is driven to its end."""
BOUND = 400
"""Rounds within which every drain must end."""


class Schedule:
    """All of it follows from the seed."""

    def __init__(self, seed: int, parts: Parts = SHIPPED) -> None:
        self._draw = Random(seed)
        self.world = World(self._draw, self._draw.choice((1, 1, 2, 3)), self._draw.choice((3, 8, 20)), parts)
        self.happened = self.world.happened

    def run(self) -> Counter[str]:
        world = self.world
        with world.mounted():
            try:
                world.begin()
                self._begin_tasks()
                for _ in range(self._draw.randint(0, STEPS)):
                    self._act()
                    world.settle()
                world.disk.fails_in = None
                world.finish(BOUND)
            finally:
                world.disk.fails_in = None
                for task in world.living:
                    task.kill()
        return self.happened

    def _begin_tasks(self) -> None:
        """All at once, or in waves."""
        waves = self._draw.random() < 0.3
        while not (waves and self._draw.random() < 0.5) and self.world.start():
            pass

    def _act(self) -> None:
        world = self.world
        acts: list[tuple[float, Callable[[], object]]] = [
            (30, world.step),
            (12, world.look),
            (5, self._ask),
            (6, self._let_time_pass),
            (4, world.start),
            (2, self._twin),
            (2, self._lose_task),
            (1, self._lose_set),
            (2, self._trouble),
            (2, self._crash),
        ]
        self._draw.choices([act for _, act in acts], [weight for weight, _ in acts])[0]()

    def _ask(self) -> None:
        """Several at once are seen by the driver in one look."""
        for _ in range(self._draw.choice((1, 1, 2, 3))):
            self.happened["requests"] += 1
            self.world.ask(self._draw.choice((None, None, 1.0, 4.0, 100.0)))
        if self._draw.random() < 0.7:
            self.world.look()

    def _let_time_pass(self) -> None:
        self.world.now += self._draw.choice((1.0, 3.0, 6.0, 11.0))
        self.world.look()

    def _twin(self) -> None:
        """A second task for a subtask, because the first is thought lost."""
        self.happened["twins"] += self.world.start(twin=True)

    def _lose_task(self) -> None:
        self.happened["tasks lost"] += bool(self.world.living)
        self.world.lose_task()

    def _lose_set(self) -> None:
        self.happened["sets lost"] += 1
        self.world.lose_set()

    def _trouble(self) -> None:
        """The storage fails once, for the driver or for a task."""
        self.happened["storage troubles"] += 1
        self.world.disk.fails_in = self._draw.randrange(12)
        self._draw.choice((self.world.look, self.world.step))()
        self.world.disk.fails_in = None

    def _crash(self) -> None:
        self.happened["crashes"] += 1
        self.world.crash()
        self._begin_tasks()


def simulate(first: int, runs: int, parts: Parts = SHIPPED) -> Counter[str]:
    """Schedules of so many seeds; the first that fails is raised with its seed."""
    happened: Counter[str] = Counter()
    for seed in range(first, first + runs):
        try:
            happened += Schedule(seed, parts).run()
        except BaseException as error:
            error.add_note(f"replay it: python -m tests.drain.simulate --seed {seed} --runs 1")
            raise
    return happened


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep what happened there, as JSON")
    arguments = parser.parse_args()
    began = time.monotonic()
    happened = simulate(arguments.seed, arguments.runs)
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
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "version": 2,
        "schedules": runs,
        "first_seed": first,
        "lost": 0,
        "duplicated": 0,
        "out_of_order": 0,
        "stuck": 0,
        "bad_run_rate_95_percent_upper_bound": 3 / runs,
        "happened": dict(sorted(happened.items())),
        "seconds": round(seconds),
        "commit": commit,
        "command": f"python -m tests.drain.simulate --seed {first} --runs {runs}",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "finished": datetime.now(UTC).date().isoformat(),
    }


if __name__ == "__main__":
    sys.exit(main())
