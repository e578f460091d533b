"""The three paths of one pass against a real consumer: stalled, slow, on one page, failing; nobody hangs."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdr_core.errors import DiskFull, JobFailed, SpillLost
from cdr_core.metadata import Phase
from cdr_core.phases.driver import Drive
from cdr_core.phases.onepass.disk import DiskQueue
from cdr_core.phases.onepass.parcels import Parcel
from cdr_core.spill import placement
from tests.phases.test_thread import compare
from tests.support import inline, output
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.generated import KEYED, generated
from tests.support.onepass import passed, request, set_flags, set_small, spilled_bytes, spilled_files

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def checkpoint(fixture_checkpoint: FixtureCheckpoints) -> FixtureCheckpoint:
    return fixture_checkpoint("a_p3_thr0", 2)


class Watching(inline.ThreadedWorkers):
    """Calls ``look`` at every poll of the driver while the units run."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    def run(self, drive: Drive, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        def poll() -> None:
            on_poll()
            if drive.phase is Phase.READ:
                self._look()

        super().run(drive, payload, units, poll)


def test_a_stalled_consumer_does_not_stop_the_reader(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """000-01, 000-04, 000-18: all is read while nothing is consumed, and lies on disk; then all of it arrives."""
    spill, hold, log = tmp_path / "spill", tmp_path / "hold", tmp_path / "log"
    set_flags(monkeypatch, spill)
    set_small(monkeypatch, 2)
    hold.touch()
    monkeypatch.setenv("CDR_FAULTS_LOG", str(log))
    monkeypatch.setenv("CDR_FAULTS", f"onepass.page=pause:{hold},onepass.drain=pause:{tmp_path / 'no'}")
    seen: list[int] = []

    def look() -> None:
        seen.append(spilled_bytes(spill))
        if hold.exists() and log.exists() and log.read_text().count("onepass.drain") == 2:
            hold.unlink()

    wish = request(str(checkpoint.path), str(checkpoint.spec), "2", tmp_path / "out", one_pass=True)
    after, counters = passed(wish, Watching(look))
    compare(after.rows, checkpoint, 2)
    total = sum(counters[name] for name in ("memory_bytes", "disk_bytes", "replay_bytes"))
    assert counters["memory_bytes"] <= 2 * 2 * 4096, "no more than the two queues hold"
    assert max(seen) >= total - counters["memory_bytes"] > 200_000, "the rest was on disk at one moment"
    assert sorted(seen[: seen.index(max(seen)) + 1]) == seen[: seen.index(max(seen)) + 1]
    assert spilled_files(spill) == []


def test_a_consumer_that_moves_again_midway_gets_everything_in_order(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """000-05, 000-07: some from memory, some spilled, the rest behind it; per channel the source's order."""
    spill, hold = tmp_path / "spill", tmp_path / "hold"
    set_flags(monkeypatch, spill)
    set_small(monkeypatch, 3)
    hold.touch()
    monkeypatch.setenv("CDR_FAULTS", f"onepass.page=pause:{hold},onepass.spilled=sleep:0.004")

    def look() -> None:
        if hold.exists() and spilled_bytes(spill) > 20_000:
            hold.unlink()

    wish = request(str(checkpoint.path), str(checkpoint.spec), "2", tmp_path / "out", one_pass=True)
    after, counters = passed(wish, Watching(look))
    compare(after.rows, checkpoint, 2)
    assert min(counters[name] for name in ("memory_bytes", "disk_bytes", "replay_bytes")) > 0
    assert spilled_files(spill) == []


@pytest.mark.parametrize("both", [True, False])
def test_one_page_of_output_is_enough(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, both: bool
) -> None:
    """000-01, 000-02, 000-08: seventy times what the queue holds, under a watchdog; the read page is not of it."""
    set_flags(monkeypatch, tmp_path / "spill", output=both)
    set_small(monkeypatch, 1)
    wish = request(str(checkpoint.path), str(checkpoint.spec), "2", tmp_path / "out", one_pass=True)
    after, counters = passed(wish)
    compare(after.rows, checkpoint, 2)
    assert counters["most_pages"] == 1
    assert counters["pages"] > 70
    assert counters["read_page_bytes"] > 0


@pytest.mark.parametrize("both", [True, False])
def test_a_record_of_six_megabytes_passes_pages_of_four_kilobytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, both: bool
) -> None:
    """000-01, 001-12: longer than the whole queue, so with both flags it goes over the disk; nothing is left of it."""
    set_flags(monkeypatch, tmp_path / "spill", output=both)
    set_small(monkeypatch, 4)
    source = generated(tmp_path / "chk", "gen=1,slow=1", "13MB", record_bytes="6MB-6MB", keys=8)
    wish = request(source, KEYED, "gen=1,slow=2", tmp_path / "out", one_pass=True)
    after, counters = passed(wish)
    assert len(after.rows) == len({row["pos"] for row in after.rows}) >= 2
    assert all(len(row["raw"]) > 5_900_000 for row in after.rows)
    assert (counters["disk_bytes"] + counters["replay_bytes"] > 12_000_000) == both
    assert counters["most_pages"] <= 4
    assert list(Path(after.repository.recovery(after.recovery).workspace).rglob("record-*")) == []
    assert not (tmp_path / "spill").exists() or spilled_files(tmp_path / "spill") == []


def test_a_consumer_that_fails_fails_the_task_with_its_own_reason(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """002-08: a reader that waits for the queue is woken by the failure; nothing is published, nothing is left."""
    for both in (True, False):
        set_flags(monkeypatch, tmp_path / "spill", output=both)
        set_small(monkeypatch, 1)
        to = tmp_path / f"out-{both}"
        monkeypatch.setenv("CDR_FAULTS", f"onepass.page=once:{tmp_path / f'once-{both}'}:raise")
        wish = request(str(checkpoint.path), str(checkpoint.spec), "2", to, one_pass=True)
        with pytest.raises(JobFailed, match=r"fault injected at onepass\.page"):
            passed(wish)
        assert output.manifest(to) is None
        assert not list(to.rglob("*.parquet"))
        monkeypatch.delenv("CDR_FAULTS")
        after, _ = passed(wish)
        compare(after.rows, checkpoint, 2)
    assert spilled_files(tmp_path / "spill") == []


def test_a_full_disk_fails_the_task_with_its_name_and_nothing_stays_on_it(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E15: never fewer bytes; with room again the same recovery goes on."""
    spill = tmp_path / "spill"
    set_flags(monkeypatch, spill)
    set_small(monkeypatch, 1)
    wish = request(str(checkpoint.path), str(checkpoint.spec), "2", tmp_path / "out", one_pass=True)
    with monkeypatch.context() as patched:

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patched.setattr(placement, "_write_all", full)
        with pytest.raises(DiskFull, match="no room left in spill directory"):
            passed(wish)
    assert spilled_files(spill) == []
    after, _ = passed(wish)
    compare(after.rows, checkpoint, 2)


def test_a_reader_that_fails_ends_the_consumer(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """002-08: no thread and no file stays behind."""
    set_flags(monkeypatch, tmp_path / "spill")
    set_small(monkeypatch, 1)
    monkeypatch.setenv("CDR_FAULTS", "onepass.read-done=raise")
    wish = request(str(checkpoint.path), str(checkpoint.spec), "2", tmp_path / "out", one_pass=True)
    with pytest.raises(JobFailed, match=r"onepass\.read-done"):
        passed(wish)
    assert not [thread for thread in threading.enumerate() if thread.name == "cdr-consumer"]
    assert not list((tmp_path / "out").rglob("*.parquet"))
    assert spilled_files(tmp_path / "spill") == []


def test_a_spill_file_that_was_damaged_fails_the_task_and_the_next_try_reads_the_source_again(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E23: the spill is a cache and the checkpoint is the truth; never fewer records."""
    spill = tmp_path / "spill"
    set_flags(monkeypatch, spill)
    set_small(monkeypatch, 1)
    wish = request(str(checkpoint.path), str(checkpoint.spec), "2", tmp_path / "out", one_pass=True)
    real = DiskQueue.take

    def damaged(disk: DiskQueue) -> Parcel:
        for name in spilled_files(spill):
            data = bytearray(Path(name).read_bytes())
            data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
            Path(name).write_bytes(data)
        return real(disk)

    monkeypatch.setattr(DiskQueue, "take", damaged)
    with pytest.raises(SpillLost, match=r"damaged|header"):
        passed(wish)
    assert spilled_files(spill) == []
    monkeypatch.setattr(DiskQueue, "take", real)
    after, _ = passed(wish)
    compare(after.rows, checkpoint, 2)
