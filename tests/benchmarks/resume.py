"""A drain that is killed late in one long channel, and resumed: bytes that are read again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from cdr_core.errors import JobFailed
from cdr_core.metadata import Phase
from tests.benchmarks.figures import Bar, Bench, Figure, Sizes
from tests.benchmarks.inputs import checkpoint
from tests.benchmarks.recovering import Recovery, recovery, setting
from tests.benchmarks.workers import ProcessWorkers

if TYPE_CHECKING:
    from cdr_core.runtime.driver import PhaseRun

DONE_BEFORE = 0.8
"""Part of the records that a complete recovery checkpoint holds when the task is killed."""

NOT_MEASURED = ("A resume from S3: there the bytes that are fetched again are counted in the receipt.",)


def needs(sizes: Sizes) -> int:
    return 3 * sizes.channel


def run(bench: Bench) -> Iterator[Figure]:
    size = bench.sizes.channel
    bench.say(f"resume: making a checkpoint with one channel of {size / 1e9:.1f} GB")
    folder = checkpoint(bench.scratch / "channel", size, "1", "900-1100")
    to = bench.scratch / "out"
    slow = {"CDR_FAULTS": "drain.page=sleep:0.1", "CDR_SEGMENT_SIZE": "16KiB"} if bench.tiny else {}
    interval = "100ms" if bench.tiny else "1s"
    with setting(**slow), recovery(folder, "1", f"parquet:{to}", checkpoint_interval=interval) as made:
        with _KilledLate(bench.processes(1), made) as workers:
            _until_killed(made, workers)
            delivered = _delivered(made)
        bench.say(f"resume: killed with {delivered / workers.total:.0%} in a checkpoint")
        with ProcessWorkers(bench.processes(1)) as again:
            before = again.bytes_read()
            made.run(Phase.DRAIN, again)
            read = again.bytes_read() - before
            made.run(Phase.COMMIT, again)
            assert _delivered(made) == workers.total, "the resumed drain delivered every record once"
    shutil.rmtree(to)
    left = size * (1 - delivered / workers.total)
    yield Figure(
        "resume-in-a-channel",
        f"bytes that a resumed drain reads, killed at {delivered / workers.total:.0%} of one channel of "
        f"{size / 1e9:.1f} GB",
        "the bytes that no recovery checkpoint held",
        "MB",
        (read / 1e6,),
        (left / 1e6,),
        Bar(high=1.1),
        detail={"channel_bytes": size, "records": workers.total, "records_before": delivered},
    )


class _KilledLate(ProcessWorkers):
    """Kills the drain's process when a complete recovery checkpoint holds most of the records."""

    def __init__(self, count: int, made: Recovery) -> None:
        super().__init__(count)
        self._made, self.total = made, 0

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        if drive.phase is Phase.DRAIN:
            self.total = sum(row.records for row in self._made.repository.units(self._made.id, Phase.SPILL))

        def poll() -> None:
            on_poll()
            if drive.phase is Phase.DRAIN and _delivered(self._made) >= DONE_BEFORE * self.total:
                raise JobFailed("late enough")

        super().run(drive, payload, units, poll)


def _until_killed(made: Recovery, workers: _KilledLate) -> None:
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
        made.run(phase, workers)
    try:
        made.run(Phase.DRAIN, workers)
    except JobFailed as error:
        if error.what != "late enough":
            raise


def _delivered(made: Recovery) -> int:
    """Records in files that the last complete recovery checkpoint names."""
    return sum(row.records for row in made.repository.prepared(made.id))
