"""Whole recoveries on a warm Spark server, beside writing their output twice."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cdr_core import settings
from cdr_core.metadata import Phase
from tests.benchmarks.baselines import write_files
from tests.benchmarks.figures import Bar, Bench, Figure, Sizes, seconds
from tests.benchmarks.inputs import checkpoint
from tests.benchmarks.recovering import Recovery, recovery
from tests.benchmarks.workers import ProcessWorkers, SessionWorkers, spark

NOT_MEASURED = ("Recoveries to `paimon:` and `checkpoint:`, and to S3.",)


def needs(sizes: Sizes) -> int:
    return 6 * sizes.checkpoint


def run(bench: Bench) -> Iterator[Figure]:
    bench.say("recoveries: making a checkpoint")
    folder = checkpoint(bench.scratch / "whole", bench.sizes.checkpoint, bench.before, "900-1100")
    _configure_lake(bench.scratch / "lake")
    if bench.tiny:
        with ProcessWorkers(0) as processes:
            yield from _figures(bench, folder, processes)
        return
    bench.say("recoveries: starting Spark")
    with spark(settings.load()) as workers:
        yield from _figures(bench, folder, workers)


def _configure_lake(folder: Path) -> None:
    folder.mkdir()
    place = {"type": "sql", "uri": f"sqlite:///{folder / 'lake.db'}", "warehouse": f"file://{folder / 'tables'}"}
    os.environ.update({f"PYICEBERG_CATALOG__BENCH__{name.upper()}": value for name, value in place.items()})


def _figures(bench: Bench, folder: Path, workers: Any) -> Iterator[Figure]:
    for kind in ("parquet",) if bench.tiny else ("parquet", "iceberg"):
        bench.say(f"recoveries: {kind}")
        yield _Measured(bench, folder, workers, kind).figure()


class _Measured:
    """One way to one kind of target, again and again, each time to a new place."""

    def __init__(self, bench: Bench, folder: Path, workers: Any, kind: str) -> None:
        self._bench, self._folder, self._workers = bench, folder, workers
        self._kind = kind
        self._times: list[dict[str, float]] = []
        self._sizes: list[int] = []

    def figure(self) -> Figure:
        measured, baseline = self._bench.taking_turns(self._recover, self._write_twice)
        counted = self._times[-len(measured) :]
        return Figure(
            f"five-phases-{self._kind}",
            f"a whole recovery 16 → 12 in five phases to `{self._kind}:`, Spark's start and empty jobs subtracted",
            "writing its output twice, file by file, each synced",
            "s",
            tuple(measured),
            tuple(baseline),
            Bar(high=2),
            detail={
                "seconds": {name: round(statistics.median(each[name] for each in counted), 3) for name in counted[0]},
                "output_bytes": sum(self._sizes),
                "output_files": len(self._sizes),
            },
        )

    def _recover(self) -> float:
        number = len(self._times)
        place = self._bench.scratch / f"out-{self._kind}-{number}"
        to = f"parquet:{place}" if self._kind == "parquet" else f"iceberg:bench/db.t{number}"
        with recovery(self._folder, self._bench.after, to) as made:
            times = self._run(made)
            self._sizes = [file["bytes"] for result in made.results(Phase.DRAIN) for file in result["files"]]
        self._times.append(times)
        for each in (place, self._bench.scratch / "lake" / "tables"):
            shutil.rmtree(each, ignore_errors=True)
        return sum(times.values())

    def _run(self, made: Recovery) -> dict[str, float]:
        workers, times = self._workers, {}
        for phase in Phase:
            times[str(phase)] = made.run(phase, workers) - self._empty()
        return times

    def _empty(self) -> float:
        return self._workers.empty() if isinstance(self._workers, SessionWorkers) else 0.0

    def _write_twice(self) -> float:
        folder = self._bench.scratch / "twice"
        taken = seconds(lambda: write_files(folder, self._sizes * 2))
        shutil.rmtree(folder)
        return taken
