"""Memory of a worker process: the same for small and large checkpoints, and bounded by the budget."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from cdr_core.metadata import Phase
from tests.benchmarks.figures import Bar, Bench, Figure, Sizes
from tests.benchmarks.inputs import checkpoint
from tests.benchmarks.recovering import recovery, setting
from tests.benchmarks.workers import ProcessWorkers

OVERHEAD = 96 << 20
"""What a worker may hold besides its budget and what it held when it was warm, whatever the data: the rows of a row
group (16 MiB), the same encoded and compressed, a segment, and what Arrow's allocator keeps of all that.
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
    yield _bounded(bench)


def _bounded(bench: Bench) -> Figure:
    size, budget = bench.sizes.bound, bench.sizes.budget
    bench.say(f"memory: five phases of {size / 1e6:,.0f} MB with a budget of {budget >> 20} MiB")
    folder = checkpoint(bench.scratch / "bound", size, bench.before, "900-1100")
    by_phase = {}
    with (
        setting(CDR_MEMORY_BUDGET=str(budget), CDR_SEGMENT_SIZE="256KiB", CDR_SPILL_FILE_SIZE="16MiB"),
        ProcessWorkers(bench.processes(1)) as workers,
        recovery(folder, bench.after, f"parquet:{bench.scratch / 'bound-out'}") as made,
    ):
        for phase in Phase:
            workers.peak = 0
            made.run(phase, workers)
            by_phase[str(phase)] = round((workers.peak - workers.idle) / (1 << 20), 1)
        receipt = made.repository.receipt(made.id)
        verdict = "none" if receipt is None else str(dict(receipt)["verdict"])
    grown = max(by_phase.values())
    allowed = (budget + OVERHEAD) / (1 << 20)
    return Figure(
        "five-phases-in-a-budget",
        f"what a worker holds at most beyond what it holds when warm, five phases of {size / 1e6:,.0f} MB to Parquet "
        f"with CDR_MEMORY_BUDGET = {budget >> 20} MiB",
        f"the budget and {OVERHEAD >> 20} MiB of overhead",
        "MiB",
        (grown,),
        (allowed,),
        Bar(high=1),
        detail={"warm": workers.idle >> 20, "by_phase": by_phase, "verdict": verdict, "times": round(size / budget, 1)},
    )
