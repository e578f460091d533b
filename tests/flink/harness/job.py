"""Jobs that leave checkpoints with records in flight."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.flink.harness.java import run
from tests.support.relocate import JOB_FILE

MAX_PARALLELISM = 128
LIMIT_SECONDS = 300.0
"""Of a run, which takes 4 to 9 s on two quiet cores, and longer where they have other work as well."""
_LONG = (1 << 64) - 1
SECOND_SOURCE = 100
"""Generators of the second source of job g count from here."""


@dataclass(frozen=True)
class Job:
    """A job and how it is run.

    ``job`` is ``a`` (keyed strings), ``d`` (rebalanced bytes), ``g`` (two keyed inputs, strings and bytes), ``l`` (as
    a, with operator state of every kind) or ``t`` (as a, with timers, and windows behind a second exchange); specs go
    by letter in ``tests/fixtures/specs``, that of l is a's. Those whose spec is in ``test_shapes.py`` are ``c`` (a, and
    broadcast state behind it), ``k`` (a, with keyed state of every kind), ``n`` (a, with asynchronous access to state,
    for the newest Flink only), ``o`` (a side output), ``p`` (any ``partitioner``) and ``u`` (a union); in
    ``test_finished.py`` is that of ``m`` (a, with a chain between generators and exchange that has a list as state) and
    ``v`` (the same with a union list). ``sources`` is the parallelism of the generators if that is not 0. Each source
    has ``generators`` generators of ``records`` records: enough that none has reached its end at the last checkpoint.
    The second source of job g has ``second_records`` if that is not 0: few enough that it has. Of the first source,
    ``ending`` generators have ``ending_records`` only, so that some of its subtasks reach their end before others.
    Payloads have ``shortest`` to ``longest`` characters.
    The slow operator takes ``pause_micros`` over a record; a checkpoint is taken each time ``fill_millis`` are over,
    ``checkpoints`` in all, and not before the slow operator has taken ``after_records`` since the job was started.
    ``flink`` are options of Flink. ``shipped`` is a job of a checkpoint that this harness did not make (``b`` and ``e``
    are keyed bytes, ``f`` is SQL); there they are for the newest Flink only. ``memory`` is what the JVM has of heap,
    and again of memory outside of it.
    """

    version: str = "2.3.0"
    job: str = "a"
    parallelism: int = 3
    sources: int = 0
    partitioner: str = ""
    generators: int = 3
    records: int = 4000
    second_records: int = 0
    ending: int = 0
    ending_records: int = 0
    keys: int = 500
    shortest: int = 50
    longest: int = 200
    timestamps: bool = True
    pause_micros: int = 2000
    fill_millis: int = 2000
    checkpoints: int = 2
    after_records: int = 0
    shipped: bool = False
    memory: str = "1g"
    flink: Mapping[str, str] = field(default_factory=dict)

    def key(self, generator: int, sequence: int) -> int:
        """The key of a record; ``Records.java`` or ``Contents.java`` has the same lines."""
        if self.shipped:
            return _mixed(generator * 1_000_003 + sequence) % self.keys
        return (generator * 7919 + sequence * 104729) % self.keys

    @property
    def keyed(self) -> bool:
        return self.job not in ("d", "p")

    def records_of(self, generator: int) -> int:
        """How many records a generator has; those of a second source count from ``SECOND_SOURCE``."""
        if generator >= SECOND_SOURCE:
            return self.second_records or self.records
        return self.ending_records if generator < self.ending else self.records

    @property
    def all_records(self) -> Iterator[tuple[int, int]]:
        """Every record there ever is, as (generator, sequence number)."""
        firsts = [0, SECOND_SOURCE] if self.job in ("g", "u") else [0]
        for generator in (first + number for first in firsts for number in range(self.generators)):
            yield from ((generator, sequence) for sequence in range(self.records_of(generator)))

    @classmethod
    def of(cls, checkpoint: Path) -> Job:
        """The job of a shipped checkpoint that this harness made."""
        return cls(**json.loads((checkpoint.parent / JOB_FILE).read_text())["job"])


@dataclass(frozen=True)
class Made:
    """A job that ran, and its checkpoints in the order in which they were taken."""

    job: Job
    checkpoints: tuple[Path, ...]


_ALWAYS = {
    "taskmanager.memory.segment-size": "4kb",
    "taskmanager.memory.min-segment-size": "256b",
    "taskmanager.memory.network.min": "16mb",
    "taskmanager.memory.network.max": "16mb",
    "taskmanager.memory.managed.size": "32mb",
    "taskmanager.network.memory.buffer-debloat.enabled": "false",
    "state.backend.type": "hashmap",
}
_CHECKPOINTS = {
    "execution.checkpointing.storage": "filesystem",
    "execution.checkpointing.interval": "10h",  # they are asked for, one by one
    "execution.checkpointing.unaligned.enabled": "true",
    "execution.checkpointing.aligned-checkpoint-timeout": "0s",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "execution.checkpointing.num-retained": "10",
    "execution.checkpointing.data-inline-threshold": "0b",
}


def make(job: Job, to: Path) -> Made:
    """Runs the job until it has taken its checkpoints below ``to``, and ends it. The checkpoints stay."""
    to.mkdir(parents=True, exist_ok=True)
    flink = {**_ALWAYS, **_CHECKPOINTS, "execution.checkpointing.dir": to.resolve().as_uri(), **job.flink}
    lines = run_job(replace(job, flink=flink))
    paths = [line.removeprefix("checkpoint ").removeprefix("file:") for line in lines if line.startswith("checkpoint ")]
    assert len(paths) == job.checkpoints, f"{job.checkpoints} checkpoints were asked for, Flink told of {paths}"
    return Made(job, tuple(Path(path) for path in paths))


def go_on(job: Job, checkpoint: Path, parallelism: int, to: Path) -> Made:
    """As :func:`make`, from a checkpoint on: the restored job takes its checkpoints and is ended."""
    begun = restored(job, checkpoint, parallelism)
    flink = {**begun.flink, "execution.checkpointing.checkpoints-after-tasks-finish.enabled": "true"}
    kept = {name: getattr(job, name) for name in ("pause_micros", "checkpoints", "after_records")}
    return make(replace(begun, **kept, flink=flink), to)


def seconds_to_restore(job: Job, checkpoint: Path, parallelism: int) -> float:
    """Restores at this parallelism and ends the job when all of it runs; from the first subtask that began to restore
    to the last one that ran.
    """
    lines = run_job(restored(job, checkpoint, parallelism), only_restored=True)
    (millis,) = (line.removeprefix("restored ") for line in lines if line.startswith("restored "))
    return int(millis) / 1000


def run_job(job: Job, *, seen: Path | None = None, only_restored: bool = False) -> list[str]:
    """Runs the job exactly with its options of Flink; what it printed."""
    options = {**_camel(asdict(job)), "maxParallelism": MAX_PARALLELISM, "limitMillis": int(LIMIT_SECONDS * 1000)}
    options["seen"] = str(seen) if seen else None
    options["onlyRestored"] = only_restored
    del options["version"], options["shipped"], options["memory"]
    with tempfile.NamedTemporaryFile("w", prefix="cdr-flink-", suffix=".json") as file:
        json.dump(options, file)
        file.flush()
        return run(job.version, _program(job), [file.name], LIMIT_SECONDS + 30, job.memory)


def _program(job: Job) -> str:
    if job.shipped:
        return "cdr.shipped.Main"
    return "cdr.asynchronous.Main" if job.job == "n" else "cdr.Run"


def restored(job: Job, checkpoint: Path, parallelism: int) -> Job:
    """The same job, to be started from a checkpoint, in a hurry."""
    flink = {
        **_ALWAYS,
        **job.flink,
        "execution.state-recovery.path": checkpoint.resolve().as_uri(),
        # Or a task that has reached its end would wait for a checkpoint that nobody takes.
        "execution.checkpointing.checkpoints-after-tasks-finish.enabled": "false",
    }
    return replace(job, parallelism=parallelism, pause_micros=0, checkpoints=0, after_records=0, flink=flink)


def _mixed(value: int) -> int:
    """In 64 bits with a sign, as Java computes."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        value &= _LONG
        value = (value ^ value >> 33) * factor
    value &= _LONG
    value ^= value >> 33
    return value - (value >> 63 << 64)


def _camel(options: Mapping[str, Any]) -> dict[str, Any]:
    return {re.sub("_([a-z])", lambda letter: letter[1].upper(), name): value for name, value in options.items()}
