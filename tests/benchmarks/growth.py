"""How the cost of a recovery grows: with subtasks at the same bytes, and with bytes at the same subtasks.

Each recovery is ``cdr recover`` in a process of its own, on its own Spark server; the phases after `read` are timed, so
the server's start is not among them. The driver's memory is the most that process held (``VmHWM``: what ``wait4`` says
of a child begins with what its parent held), the workers' the most that one of Spark's Python processes held by itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Bar, Bench, Figure, Sizes
from tests.benchmarks.inputs import checkpoint
from tests.benchmarks.plot import write_plot
from tests.benchmarks.workers import held

PHASES = ("filter", "spill", "drain", "commit")
SHAPES = ((16, 12), (128, 96), (512, 384), (1000, 800))
TINY_SHAPES = ((3, 2), (6, 4))
ROUNDS = (1, 10, 100)
"""Bytes of the second part, in those of the first."""

SAMPLE_SECONDS = 0.1

PLOT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "growth.svg"

NOT_MEASURED = ("Growth on a cluster of several hosts, and of targets other than `parquet:`.",)


def needs(sizes: Sizes) -> int:
    return 4 * max(ROUNDS) * sizes.small


@dataclass(frozen=True, slots=True)
class Run:
    """One recovery: seconds by phase; bytes of its driver, its largest worker, database, receipt and ledger; and its
    channels.
    """

    seconds: dict[str, float]
    driver: int
    worker: int
    database: int
    receipt: int
    ledger: int
    channels: int

    @property
    def total(self) -> float:
        return sum(self.seconds[name] for name in PHASES)

    def detail(self) -> dict[str, Any]:
        sizes = {name: getattr(self, name) for name in ("driver", "worker", "database", "receipt", "ledger")}
        return {
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            "channels": self.channels,
            **{f"{name}_mb": round(value / 1e6, 3) for name, value in sizes.items()},
        }


def run(bench: Bench) -> Iterator[Figure]:
    shapes = TINY_SHAPES if bench.tiny else SHAPES
    size = bench.sizes.small // 10 if bench.tiny else bench.sizes.small
    folders = {shape: _made(bench, size, shape) for shape in shapes}
    found: dict[tuple[int, int], list[Run]] = {shape: [] for shape in shapes}
    for number in range(bench.runs):
        for shape, folder in folders.items():
            bench.say(f"growth: {shape[0]} → {shape[1]}, run {number + 1}")
            found[shape].append(_recover(bench, folder, shape))
    for folder in folders.values():
        shutil.rmtree(folder)
    yield from _by_subtasks(bench, found)
    if not bench.tiny:
        yield from _by_bytes(bench)


def _made(bench: Bench, size: int, shape: tuple[int, int]) -> Path:
    old, _ = shape
    records = "60-100" if old >= 1000 else "100-200"
    options: dict[str, Any] = {
        "upstream": old,
        "max_parallelism": 128 if bench.tiny else 4096,
        "keys": 2000 if bench.tiny else 50_000,
    }
    return checkpoint(bench.scratch / f"p{old}-{size}", size, str(old), records, **options)


def _by_subtasks(bench: Bench, found: dict[tuple[int, int], list[Run]]) -> Iterator[Figure]:
    first, *others = found
    base = found[first]
    if not bench.tiny:
        medians = {f"{old} → {new}": _median(runs) for (old, new), runs in found.items()}
        write_plot(PLOT, {name: each.seconds for name, each in medians.items()}, PHASES)
    for shape in others:
        runs, middle = found[shape], _median(found[shape])
        old, new = shape
        bounds = {512: (700e6, Bar(high=12)), 1000: (1.5e9, Bar())}.get(old, (1.5e9, Bar()))
        small = middle.driver <= bounds[0] and middle.database <= 20e6 and middle.receipt <= 1e6
        yield Figure(
            f"growth-{old}",
            f"filter to commit at {old} → {new} ({middle.channels:,} channels)",
            f"the same bytes at {first[0]} → {first[1]}",
            "s",
            tuple(each.total for each in runs),
            tuple(each.total for each in base),
            bounds[1],
            f"driver ≤ {bounds[0] / 1e6:,.0f} MB, database ≤ 20 MB, receipt ≤ 1 MB",
            small,
            detail={"at": middle.detail(), "beside": _median(base).detail()},
        )
    if len(others) > 1:
        last, before = others[-1], others[-2]
        yield Figure(
            "growth-a-channel",
            f"microseconds a channel at {last[0]} → {last[1]}",
            f"those at {before[0]} → {before[1]}",
            "µs",
            tuple(1e6 * each.total / each.channels for each in found[last]),
            tuple(1e6 * each.total / each.channels for each in found[before]),
            Bar(high=1.2),
        )


def _by_bytes(bench: Bench) -> Iterator[Figure]:
    shape, taken = SHAPES[0], {}
    for times in ROUNDS:
        size = times * bench.sizes.small
        bench.say(f"growth: {size / 1e9:g} GB at {shape[0]} → {shape[1]}")
        folder = _made(bench, size, shape)
        taken[times] = [_recover(bench, folder, shape) for _ in range(1 if times == max(ROUNDS) else bench.runs)]
        shutil.rmtree(folder)
    for times, before in ((10, 1), (100, 10)):
        middle, base = _median(taken[times]), _median(taken[before])
        yield Figure(
            f"growth-{times}-times",
            f"filter to commit of {times * bench.sizes.small / 1e9:g} GB at {shape[0]} → {shape[1]}",
            f"of {before * bench.sizes.small / 1e9:g} GB",
            "s",
            (middle.total,),
            (base.total,),
            Bar(high=10.5),
            detail={"at": middle.detail(), "beside": base.detail()},
        )


def _median(runs: list[Run]) -> Run:
    return sorted(runs, key=lambda each: each.total)[len(runs) // 2]


def _recover(bench: Bench, folder: Path, shape: tuple[int, int]) -> Run:
    """One recovery in a home of its own; nothing of it stays."""
    home = bench.scratch / "grown"
    environment = {**os.environ, "CDR_HOME": str(home), "NUMBA_CACHE_DIR": os.environ["NUMBA_CACHE_DIR"]}
    command = [sys.executable, "-m", "cdr_core.cli.main", "recover", str(folder)]
    command += ["--spec", str(folder.with_name(f"{folder.name}.yaml")), "--parallelism", str(shape[1])]
    command += ["--to", f"parquet:{home / 'out'}", "--trust-key", "--json"]
    (home / "java").mkdir(parents=True)
    for archive in (Path(os.environ["CDR_HOME"]) / "java").glob("*.aot"):
        (home / "java" / archive.name).symlink_to(archive.resolve())
    with (bench.scratch / "recover.log").open("w") as log:
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        assert child.stdout is not None
        with Memory(home, child.pid) as memory:
            text = child.stdout.read()
    if child.wait():
        raise SystemExit(f"bench: growth: {text}{(bench.scratch / 'recover.log').read_text()[-2000:]}")
    value = json.loads(text.splitlines()[-1])
    receipt = Path(value["receipt"])
    channels = json.loads(receipt.read_text())["proof"]["ledgers"]["read"]["lines"]
    result = Run(
        value["seconds"],
        memory.driver,
        memory.worker,
        sum(path.stat().st_size for path in home.glob("cdr.db*")),
        receipt.stat().st_size,
        receipt.with_name("ledger.parquet").stat().st_size,
        channels,
    )
    shutil.rmtree(home)
    return result


class Memory:
    """What a driver, and one of the Python workers of its home's Spark server, held at most; sampled."""

    def __init__(self, home: Path, driver: int) -> None:
        self._mark, self._driver = f"CDR_HOME={home}".encode(), Path(f"/proc/{driver}/status")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.driver = self.worker = 0

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        ours: dict[Path, bool] = {}
        while not self._ended.wait(SAMPLE_SECONDS):
            there = [process for process in Path("/proc").iterdir() if process.name.isdigit()]
            ours |= {process: self._is_worker(process) for process in set(there) - ours.keys()}
            self.worker = max([self.worker, *(held(int(process.name)) for process in there if ours[process])])
            self.driver = max(self.driver, self._most())

    def _most(self) -> int:
        try:
            lines = self._driver.read_text().splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

    def _is_worker(self, process: Path) -> bool:
        try:
            command, environment = ((process / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        except OSError:
            return False
        return b"cdr_core.spark.daemon" in command and self._mark in environment
