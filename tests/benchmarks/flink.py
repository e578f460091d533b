"""A checkpoint of 430 MB that a real Flink made, recovered by cdr and restored by Flink itself, all in one run.

Flink's times are from the first subtask that begins to restore to the last one that runs; the start of its cluster is
not in them, as the start of Spark is not in ours.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdr_core import settings
from cdr_core.metadata import Phase
from tests.benchmarks.figures import Bench, Figure, Sizes
from tests.benchmarks.inputs import held
from tests.benchmarks.recovering import Recovery, recovery
from tests.benchmarks.workers import ProcessWorkers, SessionWorkers, spark
from tests.flink.harness import Job, make
from tests.flink.harness.job import seconds_to_restore

NOT_MEASURED = (
    "Flink's restore of a checkpoint in more than one process: all TaskManagers share one JVM here.",
    "What a slow operator does to Flink's restore, and to the records that arrive meanwhile.",
)

TARGETS = ("checkpoint", "parquet", "iceberg")


def needs(sizes: Sizes) -> int:
    return 8 * sizes.checkpoint


def job(bench: Bench, times: int = 1) -> Job:
    """Under back-pressure until all buffers are full: what is in flight grows with parallelism and segment size."""
    if bench.tiny:
        return Job(checkpoints=1, timestamps=False)
    network = {f"taskmanager.memory.network.{end}": f"{96 * times}mb" for end in ("min", "max")}
    return Job(
        parallelism=int(bench.before),
        generators=int(bench.before),
        records=10_000_000,
        keys=20_000,
        shortest=900,
        longest=1100,
        timestamps=False,
        fill_millis=25_000 * times,
        checkpoints=1,
        memory="4g" if times == 1 else "14g",
        flink={"taskmanager.memory.segment-size": f"{512 * times}kb", **network},
    )


@dataclass(slots=True)
class Round:
    """One turn of everything: seconds by name, and by phase of each recovery."""

    seconds: dict[str, float] = field(default_factory=dict)
    phases: dict[str, dict[str, float]] = field(default_factory=dict)


def run(bench: Bench, group: str = "flink", times: int = 1) -> Iterator[Figure]:
    bench.say(f"{group}: making a checkpoint")
    made = job(bench, times)
    source = make(made, bench.scratch / "made").checkpoints[-1]
    _configure_lake(bench.scratch / "lake")
    if bench.tiny:
        with ProcessWorkers(0) as workers:
            rounds = _rounds(bench, made, source, workers)
    else:
        with spark(settings.load()) as session:
            rounds = _rounds(bench, made, source, session)
    yield from _figures(bench, rounds, held(source), group)


def _configure_lake(folder: Path) -> None:
    folder.mkdir()
    place = {"type": "sql", "uri": f"sqlite:///{folder / 'lake.db'}", "warehouse": f"file://{folder / 'tables'}"}
    os.environ.update({f"PYICEBERG_CATALOG__BENCH__{name.upper()}": value for name, value in place.items()})


def _rounds(bench: Bench, made: Job, source: Path, workers: Any) -> list[Round]:
    """One that does not count first, so that every part is warm."""
    found = [_round(bench, made, source, workers, number) for number in range(bench.runs + (not bench.tiny))]
    return found[-bench.runs :]


def _round(bench: Bench, made: Job, source: Path, workers: Any, number: int) -> Round:
    turn, after = Round(), int(bench.after)
    turn.seconds["rescaling"] = seconds_to_restore(made, source, after)
    for kind in TARGETS:
        place = bench.scratch / f"{kind}-{number}"
        to = f"iceberg:bench/db.t{number}" if kind == "iceberg" else f"{kind}:{place}"
        with recovery(source, bench.after, to) as one:
            turn.phases[kind] = _phases(one, workers)
        turn.seconds[kind] = sum(turn.phases[kind].values())
        if kind == "checkpoint":
            turn.seconds["rewritten"] = seconds_to_restore(made, place, after)
    for each in (*bench.scratch.glob(f"*-{number}"), bench.scratch / "lake" / "tables"):
        shutil.rmtree(each, ignore_errors=True)
    bench.say(f"flink: round {number}: " + ", ".join(f"{name} {value:.2f} s" for name, value in turn.seconds.items()))
    return turn


def _phases(one: Recovery, workers: Any) -> dict[str, float]:
    times = {}
    for phase in Phase:
        taken = one.run(phase, workers)
        times[str(phase)] = taken - (workers.empty() if isinstance(workers, SessionWorkers) else 0.0)
    return times


def _figures(bench: Bench, rounds: list[Round], size: int, group: str) -> Iterator[Figure]:
    old, new = bench.before, bench.after
    rescaling = tuple(turn.seconds["rescaling"] for turn in rounds)
    what = {
        "rewritten": f"Flink's restore at {new} of what cdr re-wrote for {new}: it has nothing to rescale",
        "checkpoint": f"a whole recovery {old} → {new} in five phases to `checkpoint:`, empty jobs subtracted",
        "parquet": f"the same to `parquet:` ({old} → {new}, five phases)",
        "iceberg": f"the same to `iceberg:` ({old} → {new}, five phases)",
    }
    for name, words in what.items():
        phases = [turn.phases[name] for turn in rounds if name in turn.phases]
        medians = {each: round(statistics.median(turn[each] for turn in phases), 3) for each in (phases or [{}])[0]}
        yield Figure(
            f"{group}-{name}",
            words,
            f"Flink's own restore of the same checkpoint, {old} → {new}",
            "s",
            tuple(turn.seconds[name] for turn in rounds),
            rescaling,
            detail={"seconds": medians, "checkpoint_bytes": size},
        )
