"""Memory of a worker process: the same for small and large checkpoints, and bounded by the budget."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cdr_core.metadata import Phase
from cdr_core.spill.tiers import SET_BUFFERS
from tests.benchmarks.figures import Bar, Bench, Figure, Sizes
from tests.benchmarks.inputs import checkpoint
from tests.benchmarks.recovering import recovery, setting
from tests.benchmarks.workers import ProcessWorkers

OVERHEAD = 48 << 20
"""What a worker may hold besides its budget and what it held when it was warm, whatever the data: a row group (at most
16 MiB, an eighth of the budget where that is less) as rows, encoded and compressed, the parts of an upload (8 MiB), and
what libraries load when they are first used.
"""

NOT_MEASURED = ("Memory of Spark's own Java process, which has a heap of a fixed size.",)


def needs(sizes: Sizes) -> int:
    return max(2 * sizes.big, 5 * sizes.bound)


def run(bench: Bench) -> Iterator[Figure]:
    peaks = {}
    for size in (bench.sizes.small, bench.sizes.big):
        bench.say(f"memory: read and filter of {size / 1e6:,.0f} MB")
        folder = checkpoint(bench.scratch / f"m{size}", size, bench.before, "900-1100")
        with ProcessWorkers(bench.processes(1)) as workers, recovery(folder, bench.after, "none:") as made:
            made.run(Phase.READ, workers)
            made.run(Phase.FILTER, workers)
            peaks[size] = workers.peak
        shutil.rmtree(folder)
    yield Figure(
        "read-and-filter-memory",
        f"the most a worker of read and filter holds at {bench.sizes.big / 1e6:,.0f} MB",
        f"the same at {bench.sizes.small / 1e6:,.0f} MB",
        "MiB",
        (peaks[bench.sizes.big] / (1 << 20),),
        (peaks[bench.sizes.small] / (1 << 20),),
        Bar(0.9, 1.1),
    )
    for figure in (_local, _afar):
        bench.say(f"memory: {bench.sizes.bound / 1e6:,.0f} MB with a budget of {bench.sizes.budget >> 20} MiB")
        yield figure(bench)


def _local(bench: Bench) -> Figure:
    folder = checkpoint(bench.scratch / "bound", bench.sizes.bound, bench.before, "900-1100")
    found = bounded(
        folder, bench.after, f"parquet:{bench.scratch / 'bound-out'}", bench.sizes.budget, bench.processes(1)
    )
    shutil.rmtree(folder)
    return _figure(bench, "five-phases-in-a-budget", "from a disk to Parquet on a disk", found)


def _afar(bench: Bench) -> Figure:
    """From a real S3 server, which has no room for the output as well."""
    from tests.support.bucket import running_bucket

    folder = checkpoint(bench.scratch / "afar", bench.sizes.bound, bench.before, "900-1100")
    (bench.scratch / "s3").mkdir()
    with running_bucket(bench.scratch / "s3") as bucket, setting(**bucket.environment):
        source = bucket.upload(folder)
        shutil.rmtree(folder)
        to = f"parquet:{bench.scratch / 'afar-out'}"
        found = bounded(source, bench.after, to, bench.sizes.budget, bench.processes(1))
    return _figure(bench, "five-phases-in-a-budget-s3", "from S3 to Parquet on a disk", found)


@dataclass(frozen=True, slots=True)
class Bounded:
    """What a worker held when it was warm, and at most beyond that, by phase; in bytes."""

    warm: int
    by_phase: Mapping[str, int]
    verdict: str

    @property
    def most(self) -> int:
        return max(self.by_phase.values())


def bounded(source: Path | str, parallelism: str, to: str, budget: int, processes: int = 1) -> Bounded:
    """Five phases with so much budget, and segments and files that fit it."""
    by_phase = {}
    segment = min(256 << 10, budget // SET_BUFFERS)
    with (
        setting(CDR_MEMORY_BUDGET=str(budget), CDR_SEGMENT_SIZE=str(segment), CDR_SPILL_FILE_SIZE="16MiB"),
        ProcessWorkers(processes) as workers,
        recovery(source, parallelism, to) as made,
    ):
        for phase in Phase:
            workers.peak = 0
            made.run(phase, workers)
            by_phase[str(phase)] = workers.peak - workers.idle
        receipt = made.repository.receipt(made.id)
        verdict = "none" if receipt is None else str(dict(receipt)["verdict"])
    return Bounded(workers.idle, by_phase, verdict)


def _figure(bench: Bench, name: str, way: str, found: Bounded) -> Figure:
    size, budget = bench.sizes.bound, bench.sizes.budget
    return Figure(
        name,
        f"what a worker holds at most beyond what it holds when warm, five phases of {size / 1e6:,.0f} MB {way} with "
        f"CDR_MEMORY_BUDGET = {budget >> 20} MiB",
        f"the budget and {OVERHEAD >> 20} MiB of overhead",
        "MiB",
        (round(found.most / (1 << 20), 1),),
        ((budget + OVERHEAD) / (1 << 20),),
        Bar(high=1),
        goal="the verdict is balanced",
        reached=found.verdict == "balanced",
        detail={
            "warm": found.warm >> 20,
            "by_phase": {phase: round(held / (1 << 20), 1) for phase, held in found.by_phase.items()},
            "verdict": found.verdict,
            "times": round(size / budget, 1),
        },
    )
