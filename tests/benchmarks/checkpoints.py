"""Recovery checkpoints while a large state drains: how soon the first is complete, and what they cost."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cdr_core.errors import JobFailed
from cdr_core.metadata import Phase, RecoveryCheckpointState
from tests.benchmarks.figures import Bar, Bench, Figure, Sizes, speeds
from tests.benchmarks.inputs import checkpoint
from tests.benchmarks.recovering import Recovery, recovery, setting
from tests.benchmarks.workers import ProcessWorkers

if TYPE_CHECKING:
    from cdr_core.phases.driver import Drive

THROTTLED = "drain.page=sleep:0.002"
"""A consumer that takes a page in no less than 2 ms: 16 MB/s a task with pages of 32 KiB."""
SOON, OFTEN = "1s", "5s"
FIRST_WITHIN = 5.0
MOST_RUNS = 3

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


class _UntilComplete(ProcessWorkers):
    """Stops the drain when the first recovery checkpoint is complete; ``after`` is how long that took."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.made: Recovery | None = None
        self.after = 0.0

    def run(self, drive: Drive, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        begun = time.perf_counter()

        def poll() -> None:
            on_poll()
            if drive.phase is Phase.DRAIN and not self.after and _complete(self.made):
                self.after = time.perf_counter() - begun
                raise JobFailed("the first recovery checkpoint is complete")

        super().run(drive, payload, units, poll)


def _complete(made: Recovery | None) -> int:
    """How many recovery checkpoints were completed, also if they are no longer kept."""
    assert made is not None
    rows = made.repository.checkpoints(made.id)
    return sum(row.state in (RecoveryCheckpointState.COMPLETED, RecoveryCheckpointState.EXPIRED) for row in rows)


def _first(bench: Bench, folder: Path) -> Figure:
    bench.say("checkpoints: the first one while a slow consumer drains")
    slow, interval = (THROTTLED, SOON) if not bench.tiny else ("drain.page=sleep:0.1", "100ms")
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
        f"from the start of drain to the first complete recovery checkpoint, {bench.sizes.large / 1e9:.1f} GB, a slow "
        f"consumer, two processes, one asked for every {interval}",
        "the interval",
        "s",
        (workers.after,),
        (float(interval.removesuffix("ms")) / 1000 if interval.endswith("ms") else float(interval.removesuffix("s")),),
        goal=f"≤ {FIRST_WITHIN:g} s",
        reached=0 < workers.after <= FIRST_WITHIN,
    )


def _cost(bench: Bench, folder: Path) -> Figure:
    bench.say("checkpoints: throughput with one every 5 s and without")
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
            lambda: drain(OFTEN), lambda: drain(""), runs=min(bench.runs, MOST_RUNS), warm=False
        )
    return Figure(
        "checkpoint-cost",
        f"draining {bench.sizes.large / 1e9:.1f} GB to Parquet with a recovery checkpoint every {OFTEN}, two processes",
        "the same without",
        "MB/s",
        speeds(bench.sizes.large, measured),
        speeds(bench.sizes.large, baseline),
        Bar(low=0.95),
        detail={"checkpoints": seen},
    )
