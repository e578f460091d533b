"""Spilling and draining, in memory and on a disk, beside plain copies and plain writes of the same bytes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cdr_core.metadata import Phase
from tests.benchmarks.baselines import copy_files, write_files, write_tables
from tests.benchmarks.figures import Bar, Bench, Figure, Sizes, seconds, speeds
from tests.benchmarks.inputs import checkpoint, state_files
from tests.benchmarks.recovering import Recovery, recovery, setting
from tests.benchmarks.workers import ProcessWorkers

NOT_MEASURED = ("Spill on several disks at once.",)


@dataclass(frozen=True, slots=True)
class Consumer:
    """Who takes what is drained: a target, what it does with a record, and what is asked with it."""

    name: str
    target: str
    does: str
    bar: Bar


CONSUMERS = (
    Consumer("", "none:raw", "the bytes of every record are framed, tallied and let go", Bar(low=0.4)),
    Consumer("-decoded", "none:", "every record is decoded to columns, tallied and let go", Bar()),
)
"""What is asked is asked of spilling and draining as such, so the consumer that only takes the bytes is meant."""


@dataclass(frozen=True, slots=True)
class Crew:
    """Who does the units, and how long that took: one by its own work, two by the clock, as Spark has them do it."""

    processes: int
    suffix: str
    says: str
    taken: Callable[[ProcessWorkers], float]


ONE = Crew(1, "", "one process", attrgetter("busy"))
TWO = Crew(2, "-two-cores", "two processes, by the clock", attrgetter("wall"))


RECORDS = {"1k": "900-1100", "150": "100-200"}


def needs(sizes: Sizes) -> int:
    return 5 * sizes.checkpoint


def run(bench: Bench) -> Iterator[Figure]:
    bench.say("spill: making a checkpoint")
    folder = checkpoint(bench.scratch / "spill", bench.sizes.checkpoint, bench.before, "900-1100")
    for crew in (ONE, TWO):
        with ProcessWorkers(bench.processes(crew.processes)) as workers:
            for consumer in CONSUMERS:
                yield _in_memory(bench, folder, workers, crew, consumer)
            yield from _on_disk(bench, folder, workers, crew)
            for name, records in RECORDS.items():
                yield _to_parquet(bench, name, records, workers, crew)


def _to_parquet(bench: Bench, name: str, records: str, workers: ProcessWorkers, crew: Crew) -> Figure:
    """Drain as users have it: what it takes besides the writing itself is reading, framing, sums and decoding."""
    bench.say(f"spill: drain to Parquet, records of {records} bytes")
    folder = checkpoint(bench.scratch / f"drained-{name}", bench.sizes.checkpoint, bench.before, records)
    size = sum(file.stat().st_size for file in state_files(folder))
    tables: list[tuple[pa.Table, int]] = []
    targets = (bench.scratch / f"drained-{name}{crew.suffix}-{number}" for number in count())

    def drain() -> float:
        target = next(targets)
        with recovery(folder, bench.after, f"parquet:{target}") as made:
            _, taken = _spill_and_drain(made, workers, crew)
        if not tables:
            tables.extend((pq.read_table(file), _group_rows(file)) for file in sorted(target.rglob("*.parquet")))
        shutil.rmtree(target)
        return taken

    try:
        measured, baseline = bench.taking_turns(drain, lambda: seconds(lambda: write_tables(bench.scratch, tables)))
    finally:
        shutil.rmtree(folder)
    return Figure(
        f"drain-parquet-{name}{crew.suffix}",
        f"the work of drain to `parquet:`, records of {records} bytes, {crew.says}",
        "pyarrow writing the same tables from memory with the same options, each file synced, one process",
        "MB/s",
        speeds(size, measured),
        speeds(size, baseline),
        Bar(low=0.85),
    )


def _group_rows(file: Path) -> int:
    return max(1, int(pq.ParquetFile(file).metadata.row_group(0).num_rows))


def _in_memory(bench: Bench, folder: Path, workers: ProcessWorkers, crew: Crew, consumer: Consumer) -> Figure:
    files = state_files(folder)
    size = sum(file.stat().st_size for file in files)
    room = Path(tempfile.mkdtemp(prefix="cdr-bench-", dir=bench.memory))
    if shutil.disk_usage(room).free < 3 * size:
        shutil.rmtree(room)
        raise SystemExit(f"bench: {bench.memory} has no room for {3 * size / 1e9:.1f} GB; give --memory DIR with more")
    parts: dict[str, list[float]] = {"spill": [], "drain": []}

    def spill_and_drain() -> float:
        with setting(CDR_WORKSPACE=str(room / "workspace")), recovery(folder, bench.after, consumer.target) as made:
            taken = _spill_and_drain(made, workers, crew)
        for name, value in zip(parts, taken, strict=True):
            parts[name].append(value)
        return sum(taken)

    def plain_copy() -> float:
        taken = seconds(lambda: copy_files(files, room / "copy"))
        shutil.rmtree(room / "copy")
        return taken

    try:
        measured, baseline = bench.taking_turns(spill_and_drain, plain_copy)
    finally:
        shutil.rmtree(room, ignore_errors=True)
    return Figure(
        f"spill-and-drain-memory{consumer.name}{crew.suffix}",
        f"the work of spill and drain (target `{consumer.target}`: {consumer.does}), {crew.says}, all in a memory tier",
        "reading and writing the same bytes there, one process",
        "MB/s",
        speeds(size, measured),
        speeds(size, baseline),
        consumer.bar,
        detail={f"{name}_seconds": values[-bench.runs :] for name, values in parts.items()},
    )


def _spill_and_drain(
    made: Recovery, workers: ProcessWorkers, crew: Crew, spilled: Callable[[], object] = lambda: None
) -> tuple[float, float]:
    """Seconds of the crew in both phases; ``spilled`` is called between them."""
    made.run(Phase.READ, workers)
    made.run(Phase.FILTER, workers)
    begun = crew.taken(workers)
    made.run(Phase.SPILL, workers)
    after = crew.taken(workers)
    spilled()
    made.run(Phase.DRAIN, workers)
    return after - begun, crew.taken(workers) - after


def _files_of_units(made: Recovery) -> dict[Path, int]:
    """What the units of spill left for good, with its size: segments, positions, manifests, results."""
    manifests = [Path(row.manifest) for row in made.repository.units(made.id, Phase.SPILL)]
    folders = {Path(row.manifest).parent for row in made.repository.spill_sets(made.id)}
    files = {file for folder in folders for file in folder.rglob("*") if file.is_file()}
    return {file: file.stat().st_size for file in sorted({*files, *manifests})}


def _on_disk(bench: Bench, folder: Path, workers: ProcessWorkers, crew: Crew) -> Iterator[Figure]:
    spilled: list[float] = []
    drained: list[float] = []
    sizes: dict[Path, int] = {}

    def spill() -> float:
        sizes.clear()
        with recovery(folder, bench.after, "none:") as made:
            first, second = _spill_and_drain(made, workers, crew, lambda: sizes.update(_files_of_units(made)))
        spilled.append(first)
        drained.append(second)
        return first

    def plain_writes() -> float:
        taken = seconds(lambda: write_files(bench.scratch / "written", list(sizes.values())))
        shutil.rmtree(bench.scratch / "written")
        return taken

    _, baseline = bench.taking_turns(spill, plain_writes)
    both = [first + second for first, second in zip(spilled[-bench.runs :], drained[-bench.runs :], strict=True)]
    total = sum(sizes.values())
    for name, what, measured, bar in (
        ("spill-disk", f"the work of spill, {crew.says}, on a disk", spilled[-bench.runs :], Bar(low=0.8)),
        ("spill-and-drain-disk", "the same, and of drain (target `none:`) from that disk", both, Bar()),
    ):
        yield Figure(
            f"{name}{crew.suffix}",
            what,
            "writing the files that it leaves, of the same sizes, one after another, each synced",
            "MB/s",
            speeds(total, measured),
            speeds(total, baseline),
            bar,
            detail={"files": len(sizes)},
        )
