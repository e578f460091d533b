"""The kernels of read and filter, on channels that lie in memory; fingerprints included, as the phases compute them."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from cdr_core.channels.channel_scan import scan_channel
from cdr_core.channels.channel_selection import Selection, Selector
from cdr_core.channels.channel_source import open_channel
from cdr_core.channels.filter_context import FilterContext
from cdr_core.planning.plan import Plan
from cdr_core.settings import DEFAULT_PAGE_SIZE
from tests.benchmarks.baselines import beside_python, copy_memory
from tests.benchmarks.figures import Bar, Bench, Figure, Sizes, core_seconds, speeds
from tests.benchmarks.inputs import LONG_KEY, SPLIT, SQL_KEY, STRING_KEY, checkpoint, plan_of

GATHERED = 1 << 20
"""Bytes under the runs that are gathered at once, as a spill segment is."""

NOT_MEASURED = (
    "Two cores as two threads: numba's kernels release the interpreter's lock, but Spark runs a process a core.",
)


def needs(sizes: Sizes) -> int:
    return 5 * sizes.buffer


class Chain:
    """One virtual channel, from its bytes to the bytes of each new owner, by the very functions of the phases."""

    def __init__(self, folder: Path, parallelism: str, kind: str = LONG_KEY) -> None:
        self.plan: Plan = plan_of(folder, parallelism, kind)
        self.channel = open_channel(self.plan, 0)
        self.size = self.channel.size
        self.splits = [
            {"channel": 0, "number": number, "damaged": False, **split}
            for number, split in enumerate(scan_channel(self.plan, 0)["splits"])
        ]
        self._context = FilterContext(True, DEFAULT_PAGE_SIZE, (str(folder.parent),))
        self._target = np.zeros(SPLIT, np.uint8)

    @property
    def data(self) -> Any:
        data = np.empty(self.size, np.uint8)
        self.channel.copy(0, self.size, data)
        return data

    def scan(self) -> None:
        """What `read` does: frames and fingerprint."""
        scan_channel(self.plan, 0)

    def filter(self) -> int:
        """What `filter` does (frames, keys, hashes, owners, fingerprints, runs), and the runs gathered; their bytes."""
        with closing(Selector(self.plan, self._context)) as selector:
            return sum(self._gather(split, selector.select(split)) for split in self.splits)

    def both(self) -> None:
        self.scan()
        self.filter()

    def _gather(self, split: Mapping[str, Any], selection: Selection) -> int:
        done = 0
        for lane in range(len(selection.tallies)):
            starts, ends, _, _ = selection.of_lane(lane)
            first = 0
            while first < len(starts):
                base = int(starts[first])
                last = max(int(np.searchsorted(ends, base + GATHERED, side="right")), first + 1)
                done += self._gather_runs(starts[first:last], ends[first:last])
                first = last
        assert done == split["end"] - split["start"] or len(selection.tallies) > 1
        return done

    def _gather_runs(self, starts: Any, ends: Any) -> int:
        return self.channel.gather(starts, ends, self._target)


def run(bench: Bench) -> Iterator[Figure]:
    bench.say("kernels: making 1 KB records")
    folder = checkpoint(bench.scratch / "k1", bench.sizes.buffer, "1", "1000-1048")
    divided, passing = Chain(folder, "gen=1,slow=2"), Chain(folder, "1")
    yield _beside_memcpy(
        bench, "filter-1k", f"{_FILTER}, 1 KB records, one core", divided, divided.filter, Bar(low=0.12)
    )
    yield _beside_memcpy(bench, "read-1k", f"{_READ}, 1 KB records, one core", divided, divided.scan, Bar())
    yield _beside_memcpy(
        bench, "read-and-filter-1k", f"{_READ}; then {_FILTER}: both phases", divided, divided.both, Bar()
    )
    yield _beside_memcpy(
        bench,
        "pass-through-1k",
        "channels that pass through: scan and fingerprint in read, nothing in filter, one copy",
        passing,
        passing.both,
        Bar(low=0.2),
    )
    yield from _small_records(bench)
    yield from _two_cores(bench, divided)


_READ = "scan + fingerprint"
_FILTER = "scan + key + hash + owner + fingerprint + select + gather"


def _beside_memcpy(bench: Bench, name: str, what: str, chain: Chain, work: Callable[[], object], bar: Bar) -> Figure:
    data = chain.data
    target = np.zeros(len(data), np.uint8)
    measured, baseline = bench.taking_turns(
        lambda: core_seconds(work), lambda: core_seconds(lambda: copy_memory(data, target))
    )
    return Figure(name, what, "memcpy", "MB/s", speeds(chain.size, measured), speeds(chain.size, baseline), bar)


def _small_records(bench: Bench) -> Iterator[Figure]:
    asked = 8.0
    for kind in (LONG_KEY, STRING_KEY, SQL_KEY):
        bench.say(f"kernels: making 100-byte records with {kind} keys")
        folder = checkpoint(bench.scratch / f"k-{kind}", bench.sizes.buffer, "1", "100-100", kind)
        chain = Chain(folder, "gen=1,slow=2", kind)
        measured, baseline, detail = beside_python(bench, chain.data.tobytes(), chain.filter)
        yield Figure(
            f"filter-100-{kind.lower()}",
            f"{_FILTER}, 100-byte records, {kind} keys, one core",
            "a script in Python that scans the frames",
            "MB/s",
            measured,
            baseline,
            Bar(low=asked),
            detail=detail,
        )
        asked = 4.0


def _two_cores(bench: Bench, chain: Chain) -> Iterator[Figure]:
    """What a second process adds, beside what a second memcpy adds, at the same time on the same machine."""
    data = chain.data
    targets = [np.zeros(len(data), np.uint8) for _ in range(2)]
    kinds: dict[str, Callable[[int], object]] = {
        "kernels": lambda _: chain.both(),
        "memcpy": lambda number: copy_memory(data, targets[number]),
    }
    gains: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(bench.runs):
        for name, work in kinds.items():
            alone, together = _in_processes(1, work), _in_processes(2, work)
            gains[name].append(2 * alone / together)
    yield Figure(
        "two-cores-1k",
        "what two processes do of read and filter in the time in which one does it once",
        "two memcpys in place of one",
        "×",
        tuple(gains["kernels"]),
        tuple(gains["memcpy"]),
        Bar(low=0.9),
        detail={"in": "two processes"},
    )


def _in_processes(count: int, work: Callable[[int], object]) -> float:
    """Seconds from the first start to the last end of that many processes that do the work at once, each warm."""
    fork = multiprocessing.get_context("fork")
    ready, times = fork.Barrier(count), fork.Queue()

    def run(number: int) -> None:
        work(number)
        ready.wait()
        begun = time.monotonic()
        work(number)
        times.put((begun, time.monotonic()))

    children = [fork.Process(target=run, args=(number,)) for number in range(count)]
    for child in children:
        child.start()
    seen: list[tuple[float, float]] = [times.get(timeout=600) for _ in children]
    for child in children:
        child.join()
    return max(end for _, end in seen) - min(begin for begin, _ in seen)
