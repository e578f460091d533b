"""Did a restored job see each record once? Judged by what it wrote down, record by record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

from tests.flink.harness.job import Job

WINDOW_MILLIS = 200
"""Of job t; ``Jobs.java`` has the same number."""

Identity = tuple[int, int]
"""(generator, sequence number)."""


class Sight(NamedTuple):
    """A record in the slow operator. ``so_far`` is the number of its key's records so far, by the restored state."""

    generator: int
    sequence: int
    key: int
    subtask: int
    intact: bool
    home: bool
    so_far: int

    @property
    def identity(self) -> Identity:
        return self.generator, self.sequence


@dataclass(frozen=True)
class Seen:
    """What a restored job wrote down: records of each subtask in order, and where each generator went on.

    ``rescaled`` is in how many inputs of subtasks Flink had to tell the data of several old channels apart.
    ``others`` are the lines of what else the job wrote, by name and subtask.
    """

    sights: tuple[Sight, ...]
    first: Mapping[int, int]
    rescaled: int = 0
    others: Mapping[tuple[str, int], tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, rescaled: int = 0) -> Seen:
        first: dict[int, int] = {}
        for file in sorted(folder.glob("first-*.csv")):
            for generator, sequence in _rows(file):
                assert generator not in first, f"generator {generator} went on in two subtasks"
                first[generator] = sequence
        sights = tuple(
            Sight(generator, sequence, key, subtask, bool(intact), bool(home), so_far)
            for file in sorted(folder.glob("slow-*.csv"))
            for generator, sequence, key, subtask, intact, home, so_far in _rows(file)
        )
        others = {
            (name, int(subtask)): tuple(tuple(row) for row in _rows(file))
            for file in sorted(folder.glob("*.csv"))
            for name, subtask in [file.stem.rsplit("-", 1)]
            if name != "slow" and not name.startswith("first-")
        }
        return cls(sights, first, rescaled, others)


@dataclass(frozen=True)
class Verdict:
    """Everything that is wrong; exactly-once is when nothing is."""

    lost: tuple[Identity, ...] = ()
    extra: tuple[Identity, ...] = ()
    repeated: tuple[Identity, ...] = ()
    damaged: tuple[Identity, ...] = ()
    misplaced: tuple[Identity, ...] = ()
    """Seen by a subtask that does not own the key."""
    out_of_order: tuple[Identity, ...] = ()
    """Seen after a later record of the same generator and key."""
    miscounted: tuple[int, ...] = ()
    """Keys whose final count is not the number of their records."""
    processed: int = field(default=0, compare=False)

    @property
    def exactly_once(self) -> bool:
        return not any(getattr(self, wrong.name) for wrong in fields(self) if wrong.compare)


def judge(job: Job, in_flight: Iterable[Identity], seen: Seen) -> Verdict:
    """``in_flight`` are the records of the checkpoint's channel state, by an oracle of the original checkpoint."""
    ahead = {(gen, sequence) for gen, first in seen.first.items() for sequence in range(first, job.records_of(gen))}
    expected = {*in_flight} | ahead
    times = Counter(sight.identity for sight in seen.sights)
    return Verdict(
        lost=tuple(sorted(expected - times.keys())),
        extra=tuple(sorted(times.keys() - expected)),
        repeated=tuple(sorted(identity for identity, n in times.items() if n > 1)),
        damaged=tuple(sight.identity for sight in seen.sights if not sight.intact),
        misplaced=tuple(sight.identity for sight in seen.sights if not sight.home),
        out_of_order=out_of_order(seen.sights) if job.keyed else (),
        miscounted=_miscounted(job, seen.sights) if job.keyed else (),
        processed=len(seen.sights),
    )


def out_of_order(sights: Iterable[Sight]) -> tuple[Identity, ...]:
    last: dict[tuple[int, int], int] = {}
    wrong = []
    for sight in sights:
        at = (sight.generator, sight.key)
        if sight.sequence < last.get(at, -1):
            wrong.append(sight.identity)
        last[at] = max(sight.sequence, last.get(at, -1))
    return tuple(wrong)


def _miscounted(job: Job, sights: Iterable[Sight]) -> tuple[int, ...]:
    final: Counter[int] = Counter()
    for sight in sights:
        final[sight.key] = max(final[sight.key], sight.so_far)
    wanted = Counter(job.key(generator, sequence) for generator, sequence in job.all_records)
    return tuple(sorted(number for number, count in final.items() if count != wanted[number]))


@dataclass(frozen=True)
class TimedVerdict:
    """What is wrong with the timers and windows of job t, each as Counter of what there is too much or too little of.

    Every record there ever was has a timer that fires at the end, and is counted in a window that is given up then.
    """

    timers_lost: Counter[tuple[int, ...]]
    timers_extra: Counter[tuple[int, ...]]
    windows_lost: Counter[tuple[int, ...]]
    windows_extra: Counter[tuple[int, ...]]

    @property
    def exactly_once(self) -> bool:
        return not any(getattr(self, wrong.name) for wrong in fields(self))


def judge_timed(job: Job, seen: Seen) -> TimedVerdict:
    """Timers are (generator, sequence, key), windows (key, start, number of records)."""
    told: dict[str, Counter[tuple[int, ...]]] = {"timers": Counter(), "windows": Counter()}
    for (name, _), rows in seen.others.items():
        told[name].update(rows)
    records = [(generator, sequence, job.key(generator, sequence)) for generator, sequence in job.all_records]
    timers = Counter[tuple[int, ...]](records)
    sizes = Counter((number, sequence - sequence % WINDOW_MILLIS) for _, sequence, number in records)
    windows = Counter[tuple[int, ...]]((*window, size) for window, size in sizes.items())
    return TimedVerdict(
        timers - told["timers"], told["timers"] - timers, windows - told["windows"], told["windows"] - windows
    )


def _rows(file: Path) -> Iterable[list[int]]:
    return [[int(cell) for cell in line.split(",")] for line in file.read_text().splitlines()]
