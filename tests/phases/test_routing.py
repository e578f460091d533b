"""The ways that bytes take from the source to the output: in place, by a spill set, by scratch disk; however little
room there is, and when a drain is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from cdr_core.channels.source_index import SourceIndex
from cdr_core.drain import routed_delivery as delivery
from cdr_core.drain import task
from cdr_core.drain.snapshots import Snapshot
from cdr_core.errors import SettingsRefused
from cdr_core.metadata import Phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.spill import scratch_ring as scratch
from cdr_core.spill.router import ROUTING, Routing
from tests.durability.strace_recovery import NO_STRACE, is_installed
from tests.seeds.expected import Compared, compare, records_of
from tests.support import inline, output
from tests.support.bucket import Bucket
from tests.support.draining import Started, drain_in_child, exit_status
from tests.support.generated import KEYED, generated
from tests.support.moved import OPTIONS, Stretch, Trace, chunk_begins, payload

SEGMENT = 64 << 10
BYTES = 2_000_000
EXACT = Compared(0, 0, 0)
SECONDS = 60.0
"""To wait for anything at most."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four channels of half a megabyte, eight segments each. The seed makes the last of each long enough to be read in
    place."""
    folder = tmp_path_factory.mktemp("source")
    return generated(folder / "chk", "2", str(BYTES), record_bytes="1000-2000", seed=4)


@pytest.fixture(autouse=True)
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight segments, the least that is allowed."""
    monkeypatch.setenv("CDR_SEGMENT_SIZE", str(SEGMENT))
    monkeypatch.setenv("CDR_MEMORY_BUDGET", str(8 * SEGMENT))
    monkeypatch.setenv("CDR_TABLE_RAW", "true")


def ways(started: Started) -> Mapping[str, int]:
    """What the receipt says."""
    receipt = started[0].receipt(started[1])
    assert receipt is not None
    found: Mapping[str, int] = receipt["run"][ROUTING]
    return found


def assert_exact(source: str, to: Path, parallelism: int = 2) -> None:
    assert compare(output.rows(to), records_of(source, KEYED), parallelism) == EXACT


def begin(where: str, to: Path, parallelism: str = "same", interval: str = "0s") -> Started:
    return inline.start(RecoveryRequest(where, KEYED, parallelism, f"parquet:{to}", interval))


def element_bytes(started: Started) -> int:
    """Bytes of elements that `spill` accounted for; the source has as many where nothing is added or left out."""
    repository, recovery, _ = started
    return sum(unit.bytes for unit in repository.units(recovery, Phase.SPILL))


def test_with_little_memory_a_channel_longer_than_a_segment_is_read_in_place(source: str, tmp_path: Path) -> None:
    """What the preflight check promises: none of it takes room in a spill directory."""
    started = begin(source, tmp_path / "out")
    assert inline.run_all(*started)["verdict"] == "balanced"
    total = element_bytes(started)
    assert total >= BYTES
    assert ways(started) == {"by_reference": total, "handed_over": total, "spilled": 0, "replayed": 0}
    assert_exact(source, tmp_path / "out")


def test_segments_too_short_to_be_referred_to_are_expected_to_take_room(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "16KiB")
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tmp_path}:1MiB")
    with pytest.raises(SettingsRefused, match="can take 1048576 bytes, and up to 2"):
        begin(source, tmp_path / "out")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", ["local", "s3", "s3 and copied", "rescaled"])
def test_scratch_shorter_than_a_segment_and_the_least_memory_do_not_stop_a_drain(
    source: str, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setenv("CDR_DRAIN_SCRATCH", str(SEGMENT // 2))
    monkeypatch.setenv("CDR_FAULTS", "drain.page=sleep:0.005")
    monkeypatch.setattr(delivery, "MOST_AHEAD", 1)
    monkeypatch.setenv("CDR_MATERIALISE", str(case == "s3 and copied"))
    uri = bucket.upload(Path(source)) if case.startswith("s3") else source
    started = begin(uri, tmp_path / "out", "3" if case == "rescaled" else "same")
    assert inline.run_all(*started)["verdict"] == "balanced"
    found, total = ways(started), element_bytes(started)
    copied = total if case in ("s3 and copied", "rescaled") else 0
    assert (found["by_reference"], found["handed_over"]) == (total - copied, total - copied)
    assert found["spilled"] == found["replayed"] == copied, "nothing fits the scratch disk"
    assert_exact(source, tmp_path / "out", 3 if case == "rescaled" else 2)


@pytest.mark.timeout(60)
def test_what_scratch_disk_lost_is_read_again_and_counted_once(
    source: str, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = begin(bucket.upload(Path(source)), tmp_path / "out")
    inline.run_to(Phase.SPILL, *started)
    monkeypatch.setenv("CDR_FAULTS", "drain.page=sleep:0.02")
    lost: list[int] = []
    real = scratch.Scratch.read

    def read(self: scratch.Scratch, offset: int, length: int) -> npt.NDArray[np.uint8]:
        data = real(self, offset, length)
        if not lost:
            lost.append(length)
            data[0] ^= 1
        return data

    monkeypatch.setattr(scratch.Scratch, "read", read)
    assert inline.run_all(*started)["verdict"] == "balanced"
    found, total = ways(started), element_bytes(started)
    assert found["handed_over"] + found["replayed"] == total
    assert found["spilled"] == found["replayed"] + lost[0]
    assert found["by_reference"] == total
    assert_exact(source, tmp_path / "out")


@pytest.fixture
def taken_over(monkeypatch: pytest.MonkeyPatch) -> list[Routing]:
    """The counters in the snapshots that tasks of this process begin with."""
    found: list[Routing] = []
    run = task.DrainTask.run

    def noted(self: task.DrainTask, snapshot: Snapshot) -> Snapshot:
        found.append(Routing.from_column((snapshot.cut.columns or {}).get(ROUTING)))
        return run(self, snapshot)

    monkeypatch.setattr(task.DrainTask, "run", noted)
    return found


def noted_reads(monkeypatch: pytest.MonkeyPatch) -> list[Stretch]:
    """What this process reads of the source in place from now on."""
    found: list[Stretch] = []
    real = SourceIndex.read_into

    def noted(self: SourceIndex, uri: str, offset: int, targets: list[memoryview]) -> None:
        real(self, uri, offset, targets)
        found.append(Stretch(offset, offset + sum(map(len, targets))))

    monkeypatch.setattr(SourceIndex, "read_into", noted)
    return found


def wait_for(what: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.01)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("where", ["local", "s3"])
def test_a_drain_in_place_that_is_killed_goes_on_and_reads_nothing_again_that_was_delivered(
    source: str,
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    taken_over: list[Routing],
    where: str,
) -> None:
    uri = source if where == "local" else bucket.upload(Path(source))
    started = begin(uri, tmp_path / "out", interval="50ms")
    inline.run_to(Phase.SPILL, *started)
    repository, recovery, settings = started
    total = element_bytes(started)
    child = drain_in_child(recovery, "drain.page=sleep:0.03")
    try:
        wait_for(lambda: any(row.records for row in repository.prepared(recovery)), "the drain makes no progress")
    finally:
        os.kill(child, signal.SIGKILL)
        assert exit_status(child) == -signal.SIGKILL
    read = noted_reads(monkeypatch)
    inline.run(repository, recovery, Phase.DRAIN, settings)
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    found = ways(started)
    before = Routing(*np.sum([each.to_column() for each in taken_over], axis=0).tolist())
    left = total - before.handed_over - before.replayed
    assert 0 < left < total, "it was killed in the middle"
    assert found["by_reference"] - before.by_reference == left, "all of it that was not delivered, and no more"
    assert payload(read, chunk_begins(source, KEYED)) == left
    assert found["handed_over"] + found["replayed"] == total
    assert_exact(source, tmp_path / "out")


@pytest.mark.skipif(not is_installed(), reason=NO_STRACE)
@pytest.mark.parametrize("parallelism", ["same", "3"], ids=["in place", "copied"])
def test_the_counters_are_the_bytes_that_the_system_moved(source: str, tmp_path: Path, parallelism: str) -> None:
    """Of spill sets, which only one case has; each phase is a process of its own under strace."""
    started = begin(source, tmp_path / "out", parallelism)
    inline.run_to(Phase.FILTER, *started)
    traces = {phase: traced(phase, started[1], tmp_path) for phase in (Phase.SPILL, Phase.DRAIN)}
    repository, recovery, settings = started
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    found, total = ways(started), element_bytes(started)
    copied = 0 if parallelism == "same" else total
    assert found["spilled"] == traces[Phase.SPILL].bytes_written("/spill-") == copied
    assert found["replayed"] == traces[Phase.DRAIN].bytes_read("/spill-") == copied
    assert found["by_reference"] == payload(traces[Phase.DRAIN].read("/pins/"), chunk_begins(source, KEYED))
    assert found["handed_over"] == total - copied
    assert traces[Phase.DRAIN].bytes_written("/spill-") == traces[Phase.SPILL].bytes_read("/spill-") == 0


def traced(phase: Phase, recovery: str, folder: Path) -> Trace:
    """The phase in a process under strace."""
    file = folder / f"{phase}.trace"
    strace = ["strace", "--seccomp-bpf", *OPTIONS, "-o", str(file)]
    command = [sys.executable, "-m", "tests.support.inline", str(phase), recovery]
    subprocess.run([*strace, *command], check=True, timeout=2 * SECONDS)
    return Trace(file)
