"""Recovery checkpoints while a large state drains: how soon the first is complete, and what they cost."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdr_core.errors import JobFailed
from cdr_core.metadata import Command, Phase, RecoveryCheckpointState
from tests.benchmarks.figures import Bar, Bench, Figure, Sizes, speeds
from tests.benchmarks.inputs import checkpoint
from tests.benchmarks.recovering import Recovery, recovery, setting
from tests.benchmarks.workers import ProcessWorkers
from tests.support.stuck import FrozenDisk, frozen_disk

if TYPE_CHECKING:
    from cdr_core.runtime.driver import PhaseRun

THROTTLED = "drain.page=sleep:0.002"
"""A consumer that takes a page in no less than 2 ms: 16 MB/s a task with pages of 32 KiB."""
INTERVAL = "1s"
FIRST_WITHIN = STUCK_WITHIN = 2.0
MOST_RUNS = 3
STUCK_BYTES = 10_000_000
SETTLED = 0.5
"""Seconds after which every task waits for the frozen target."""

NOT_MEASURED = (
    f"The cost of recovery checkpoints more than {MOST_RUNS} times: a large state is spilled anew for every drain.",
)


def needs(sizes: Sizes) -> int:
    return 4 * sizes.large


def run(bench: Bench) -> Iterator[Figure]:
    bench.say(f"checkpoints: making a checkpoint of {bench.sizes.large / 1e9:.1f} GB")
    folder = checkpoint(bench.scratch / "large", bench.sizes.large, bench.before, "900-1100")
    yield _first(bench, folder)
    yield _cost(bench, folder)
    try:
        yield _stuck(bench)
    except pytest.skip.Exception as reason:
        bench.say(f"checkpoints: no figure of a frozen target: {reason}")


class _UntilComplete(ProcessWorkers):
    """Stops the drain when the first recovery checkpoint that holds records is complete; ``after`` is how long that
    took.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.made: Recovery | None = None
        self.after = 0.0

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        begun = time.perf_counter()

        def poll() -> None:
            on_poll()
            if drive.phase is Phase.DRAIN and not self.after and _has_output(self.made):
                self.after = time.perf_counter() - begun
                raise JobFailed("the first recovery checkpoint is complete")

        super().run(drive, payload, units, poll)


def _has_output(made: Recovery | None) -> bool:
    assert made is not None
    return any(row.records for row in made.repository.prepared(made.id))


def _complete(made: Recovery | None) -> int:
    """How many recovery checkpoints were completed, also if they are no longer kept."""
    assert made is not None
    rows = made.repository.checkpoints(made.id)
    return sum(row.state in (RecoveryCheckpointState.COMPLETED, RecoveryCheckpointState.EXPIRED) for row in rows)


def _first(bench: Bench, folder: Path) -> Figure:
    bench.say("checkpoints: the first one while a slow consumer drains")
    slow, interval = (THROTTLED, INTERVAL) if not bench.tiny else ("drain.page=sleep:0.1", "100ms")
    with setting(CDR_FAULTS=slow):
        workers = _UntilComplete(bench.processes(2))
    with (
        setting(CDR_FAULTS=slow),
        workers,
        recovery(folder, bench.after, f"parquet:{bench.scratch / 'first'}", checkpoint_interval=interval) as made,
    ):
        workers.made = made
        for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
            made.run(phase, workers)
        try:
            made.run(Phase.DRAIN, workers)
        except JobFailed:
            if not workers.after:
                raise
    shutil.rmtree(bench.scratch / "first", ignore_errors=True)
    return Figure(
        "first-checkpoint",
        f"from the start of drain to the first complete recovery checkpoint that holds records, "
        f"{bench.sizes.large / 1e9:.1f} GB, a slow consumer, two processes, one every {interval}",
        "the interval",
        "s",
        (workers.after,),
        (float(interval.removesuffix("ms")) / 1000 if interval.endswith("ms") else float(interval.removesuffix("s")),),
        goal=f"≤ {FIRST_WITHIN:g} s",
        reached=0 < workers.after <= FIRST_WITHIN,
    )


def _cost(bench: Bench, folder: Path) -> Figure:
    bench.say(f"checkpoints: throughput with one every {INTERVAL} and without")
    seen: list[int] = []
    numbers = itertools.count()
    with ProcessWorkers(bench.processes(2)) as workers:

        def drain(interval: str) -> float:
            to = bench.scratch / f"cost-{next(numbers)}"
            with recovery(folder, bench.after, f"parquet:{to}", checkpoint_interval=interval) as made:
                for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
                    made.run(phase, workers)
                begun = workers.wall
                made.run(Phase.DRAIN, workers)
                if interval:
                    seen.append(_complete(made) - 1)
                taken = workers.wall - begun
            shutil.rmtree(to, ignore_errors=True)
            return taken

        measured, baseline = bench.taking_turns(
            lambda: drain(INTERVAL), lambda: drain(""), runs=min(bench.runs, MOST_RUNS), warm=False
        )
    return Figure(
        "checkpoint-cost",
        f"draining {bench.sizes.large / 1e9:.1f} GB to Parquet, a recovery checkpoint every {INTERVAL}, two processes",
        "the same without",
        "MB/s",
        speeds(bench.sizes.large, measured),
        speeds(bench.sizes.large, baseline),
        Bar(low=0.95),
        detail={"checkpoints": seen},
    )


class _Frozen(ProcessWorkers):
    """Freezes the target when a checkpoint holds records, and asks for another one; ``taken`` is how long that took."""

    def __init__(self, count: int, disk: FrozenDisk) -> None:
        super().__init__(count)
        self.made: Recovery | None = None
        self.taken = 0.0
        self._disk = disk
        self._frozen_at = 0.0
        self._asked: Command | None = None

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        def poll() -> None:
            on_poll()
            if drive.phase is Phase.DRAIN and not self.taken:
                self._go_on()

        super().run(drive, payload, units, poll)

    def _go_on(self) -> None:
        made = self.made
        assert made is not None
        if not self._frozen_at and _has_output(made):
            self._disk.freeze()
            self._frozen_at = time.perf_counter()
        elif self._frozen_at and self._asked is None and time.perf_counter() - self._frozen_at > SETTLED:
            self._asked = made.repository.request(made.id, "checkpoint", {"aligned_timeout": None})
        elif self._asked is not None:
            found = next(each for each in made.repository.commands(made.id) if each.id == self._asked.id)
            if found.answered_at is not None:
                self.taken = (found.answered_at - found.requested_at).total_seconds()
                self._disk.thaw()


def _stuck(bench: Bench) -> Figure:
    """The time from a request's row to its answer's, while the target's file system is frozen."""
    bench.say("checkpoints: one that is asked for while the target is frozen")
    folder = checkpoint(bench.scratch / "stuck", STUCK_BYTES, bench.before, "900-1100")
    taken = tuple(_answer_while_frozen(bench, folder, number) for number in range(bench.runs))
    return Figure(
        "stuck-checkpoint",
        "from the request for a recovery checkpoint to its answer, while the target's file system is frozen",
        "the time that is allowed",
        "s",
        taken,
        (STUCK_WITHIN,) * len(taken),
        goal=f"≤ {STUCK_WITHIN:g} s",
        reached=0 < max(taken) <= STUCK_WITHIN,
    )


def _answer_while_frozen(bench: Bench, folder: Path, number: int) -> float:
    place = bench.scratch / f"frozen-{number}"
    place.mkdir()
    slow = {"CDR_FAULTS": "drain.page=sleep:0.05", "CDR_SEGMENT_SIZE": "64KiB"}
    with frozen_disk(place) as disk, setting(**slow), _Frozen(bench.processes(2), disk) as workers:
        target = f"parquet:{disk.path / 'out'}"
        with recovery(folder, bench.after, target, checkpoint_interval="200ms") as made:
            workers.made = made
            for phase in (Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN):
                made.run(phase, workers)
    return workers.taken
