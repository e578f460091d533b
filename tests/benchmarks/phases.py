"""The phases read and filter as they run: on the embedded Spark server, warm, without what an empty job takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cdr_core import settings
from cdr_core.metadata import Phase
from tests.benchmarks.baselines import read_files
from tests.benchmarks.figures import Bench, Figure, Sizes, seconds, speeds
from tests.benchmarks.inputs import checkpoint, state_files
from tests.benchmarks.recovering import recovery
from tests.benchmarks.workers import ProcessWorkers, SessionWorkers, spark

GOAL = 300.0
"""MB/s of both phases together."""

NOT_MEASURED = (
    "Phases on a Spark cluster, and on more than two cores.",
    "A cold page cache: what is read from a disk for the first time comes as fast as that disk.",
)


def needs(sizes: Sizes) -> int:
    return 2 * sizes.checkpoint


def run(bench: Bench) -> Iterator[Figure]:
    bench.say("phases: making a checkpoint")
    folder = checkpoint(bench.scratch / "phases", bench.sizes.checkpoint, bench.before, "900-1100")
    files = state_files(folder)
    size = sum(file.stat().st_size for file in files)
    if bench.tiny:
        with ProcessWorkers(bench.processes(1)) as processes:
            times = bench.taking_turns(
                lambda: _own_work(bench, folder, processes), lambda: seconds(lambda: read_files(files))
            )
        yield _figure("read-and-filter-work", "in one process of the benchmark", size, *times)
        return
    bench.say("phases: starting Spark")
    with spark(settings.load()) as workers:
        times = bench.taking_turns(
            lambda: _on_spark(bench, folder, workers), lambda: seconds(lambda: read_files(files))
        )
    yield _figure("read-and-filter-16-12", "on Spark's two cores, an empty job's time subtracted", size, *times)


def _figure(name: str, how: str, size: int, measured: list[float], baseline: list[float]) -> Figure:
    found = speeds(size, measured)
    return Figure(
        name,
        f"the phases read and filter together, 16 → 12, {how}",
        "reading the same files once, plainly",
        "MB/s",
        found,
        speeds(size, baseline),
        goal=f"≥ {GOAL:g} MB/s",
        reached=sorted(found)[len(found) // 2] >= GOAL,
    )


def _own_work(bench: Bench, folder: Path, workers: ProcessWorkers) -> float:
    before = workers.busy
    with recovery(folder, bench.after, "none:") as made:
        made.run(Phase.READ, workers)
        made.run(Phase.FILTER, workers)
    return workers.busy - before


def _on_spark(bench: Bench, folder: Path, workers: SessionWorkers) -> float:
    with recovery(folder, bench.after, "none:") as made:
        taken = made.run(Phase.READ, workers) - workers.empty()
        return taken + made.run(Phase.FILTER, workers) - workers.empty()
