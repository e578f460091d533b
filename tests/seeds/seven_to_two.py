"""One recovery from parallelism 7 to 2 with two keyed inputs, as bad luck would have it: all of it follows from a seed.

Small pages, few of them, segments of any size, recovery checkpoints all the time, and kill -9: somewhere in the drain,
or at a durable step of spill, drain or commit, up to twice. Whatever happens, the published table holds each record of
the source once, at its owner, in order.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from cdr_core.channels import batch_scan as scan_batch
from cdr_core.channels import batch_selection as select_batch
from cdr_core.channels import channel_scan as scanning
from cdr_core.drain import task
from cdr_core.errors import CdrError
from cdr_core.metadata import Phase, RecoveryCheckpointState, Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.settings import Settings
from tests.seeds.expected import Compared, Place, Record, compare, records_of
from tests.support import inline, output
from tests.support.checkpoints import FIXTURES, FixtureCheckpoints
from tests.support.generated import generated

NEW = 2
REAL = (("g_p7_thr0", 1), ("g_p7_thr0", 2))
SPEC = FIXTURES / "specs" / "g.yaml"
GENERATED: Mapping[str, Mapping[str, object]] = {
    "small records": {"size": "120kB", "record_bytes": "30-300", "seed": 1},
    "a few keys": {"size": "120kB", "record_bytes": "30-300", "skew": True, "keys": 40, "seed": 2},
    "records longer than a page": {"size": "300kB", "record_bytes": "40-20000", "seed": 3},
    "inside the metadata": {"size": "100kB", "record_bytes": "30-300", "inline": True, "timestamps": True, "seed": 4},
}
SIZES = (("512", 1), ("512", 4), ("1KiB", 2), ("1KiB", 8), ("8KiB", 16), ("8KiB", 32))
"""Of a segment, and pages of 4 KiB for the output."""
SIZES_OF_REAL = SIZES[-2:]
"""Ten times the bytes of the others: with tiny segments a single run would take half a minute."""
PAUSES = (0.0, 0.0005, 0.001)
"""Seconds that the consumer takes over a page."""
REAL_EVERY = 5
STEPS = (
    (Phase.SPILL, "spill.sealed"),
    (Phase.DRAIN, "checkpoint.asked"),
    (Phase.DRAIN, "drain.cut-prepared"),
    (Phase.DRAIN, "drain.taken-over"),
    (Phase.DRAIN, "drain.snapshot"),
    (Phase.DRAIN, "checkpoint.manifest"),
    (Phase.DRAIN, "checkpoint.completed"),
    (Phase.DRAIN, "drain.prepared"),
    (Phase.COMMIT, "publish.before"),
    (Phase.COMMIT, "publish.after"),
)
COMPLETE = {RecoveryCheckpointState.COMPLETED, RecoveryCheckpointState.EXPIRED}


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint of parallelism 7, and every record in it."""

    name: str
    path: str
    records: Mapping[Place, Record] = field(repr=False)
    real: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """What a run came to. ``failure``: it published nothing and said why; that is not a loss, and not a success."""

    seed: int
    source: str
    records: int
    checkpoints: int
    crashes: int
    compared: Compared
    failure: str | None = None
    seconds: float = 0.0

    @property
    def is_exact(self) -> bool:
        return self.failure is None and self.compared.is_exact


@dataclass(frozen=True, slots=True)
class Crash:
    """Kill -9 in a phase: at a step, or so many seconds after its beginning."""

    phase: Phase
    step: str = ""
    seconds: float = 0.0


def sources(folder: Path) -> tuple[Source, ...]:
    """The shipped checkpoints of a real Flink, and generated ones that are worse."""
    unpacked = folder / "real"
    unpacked.mkdir()
    shipped = FixtureCheckpoints(unpacked)
    found = []
    for name, number in REAL:
        path = str(shipped(name, number).path)
        found.append(Source(f"{name}/chk-{number}", path, records_of(path, str(SPEC)), real=True))
    for number, (name, options) in enumerate(GENERATED.items()):
        path = generated(folder / f"generated-{number}", "7", spec=SPEC.read_text(), **options)  # type: ignore[arg-type]
        found.append(Source(name, path, records_of(path, str(SPEC))))
    return tuple(found)


def choose(seed: int, found: Sequence[Source]) -> Source:
    """Generated ones in turn, every fifth time a real one, which takes longer."""
    real = [source for source in found if source.real]
    others = [source for source in found if not source.real]
    return real[seed // REAL_EVERY % len(real)] if seed % REAL_EVERY == 0 else others[seed % len(others)]


def run(seed: int, source: Source, folder: Path) -> Run:
    """One recovery in a folder of its own, which is gone afterwards unless something was wrong."""
    draw, begin = Random(seed), time.monotonic()
    home = folder / f"run-{seed}"
    with pytest.MonkeyPatch.context() as patch:
        _settings(draw, home, source, patch)
        to = home / "out"
        wish = RecoveryRequest(source.path, str(SPEC), str(NEW), f"parquet:{to}", draw.choice(("5ms", "10ms", "30ms")))
        repository, recovery, settings = inline.start(wish)
        crashes, failure = 0, None
        try:
            crashes = _recover(repository, recovery, settings, bad_luck(draw))
        except (CdrError, AssertionError) as error:
            failure = f"{type(error).__name__}: {error}"
        taken = sum(row.state in COMPLETE for row in repository.checkpoints(recovery))
        repository.close()
        published = output.manifest(to) is not None
        compared = compare(output.rows(to), source.records, NEW) if published else Compared(0, 0, 0)
    seconds = time.monotonic() - begin
    done = Run(seed, source.name, len(source.records), taken, crashes, compared, failure, seconds)
    if done.is_exact:
        shutil.rmtree(home)
    return done


def _settings(draw: Random, home: Path, source: Source, patch: pytest.MonkeyPatch) -> None:
    segment, pages = draw.choice(SIZES_OF_REAL if source.real else SIZES)
    values = {
        "CDR_HOME": str(home),
        "CDR_TABLE_RAW": "true",
        "CDR_PAGE_SIZE": "4KiB",
        "CDR_MEMORY_BUDGET": f"{4 * pages}KiB",
        "CDR_SEGMENT_SIZE": segment,
        "CDR_SPLIT_SIZE": draw.choice(("20kB", "1MB")),
        "CDR_FAULTS": f"drain.page=sleep:{draw.choice(PAUSES)}",
    }
    for name, value in values.items():
        patch.setenv(name, value)
    patch.setattr(task, "LISTEN_SECONDS", 0.002)
    # In half of the runs every part of a channel with one owner is read from the source in place, however short.
    worth = draw.choice((1, scanning.WORTH_A_SUM))
    for module in (scan_batch, select_batch, scanning):
        patch.setattr(module, "WORTH_A_SUM", worth)


def bad_luck(draw: Random) -> list[Crash]:
    """No crash in a quarter of the runs, one in half of them, else two; most of them anywhere in the drain."""
    found = []
    for _ in range(draw.choice((0, 1, 1, 2))):
        phase, step = draw.choice(STEPS)
        anywhere = draw.random() < 0.6
        found.append(Crash(Phase.DRAIN, seconds=draw.uniform(0.02, 0.7)) if anywhere else Crash(phase, step))
    order = list(Phase)
    return sorted(found, key=lambda crash: order.index(crash.phase))


def _recover(repository: Repository, recovery: str, settings: Settings, crashes_wished: list[Crash]) -> int:
    """All phases; a phase that is to crash is tried in children first. How often one was killed."""
    crashes = 0
    for phase in Phase:
        for crash in (each for each in crashes_wished if each.phase is phase):
            status = _in_child(recovery, crash)
            assert status in (0, -signal.SIGKILL), f"{phase} ended with exit status {status}"
            crashes += status != 0
        result = inline.run(repository, recovery, phase, settings, inline.ThreadedWorkers())
    assert result["verdict"] == "balanced"
    return crashes


def _in_child(recovery: str, crash: Crash) -> int:
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            if crash.step:
                os.environ["CDR_FAULTS"] += f",{crash.step}=kill"
            else:
                threading.Timer(crash.seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
            code = inline.main([str(crash.phase), recovery], inline.ThreadedWorkers())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
