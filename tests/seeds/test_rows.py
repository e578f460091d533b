"""Behaviours of the published designs that no other test shows through the real phases; docs/seeds.md lists them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from cdr_core import settings as settings_module
from cdr_core.drain import checkpoint_driver as watch
from cdr_core.drain import routed_delivery as delivery
from cdr_core.drain import task
from cdr_core.drain.checkpoint_manifest import manifest_bytes, read_manifest
from cdr_core.errors import JobFailed, SettingsRefused, StorageError
from cdr_core.metadata import CommandState, Phase, RecoveryCheckpointState, Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime.driver import PhaseRun
from cdr_core.runtime.unit_runner import run_unit
from cdr_core.runtime.workspace import read_json
from cdr_core.settings import Settings
from cdr_core.spill.set_reader import SourceBytes, read_body
from cdr_core.spill.spill_set import SpillSet
from tests.seeds.expected import compare, records_of
from tests.support import inline, output
from tests.support.generated import generated

NEW = 2
EXCHANGE = """
  - name: input{n}
    upstream: {{operator: gen{n}, partition: 0}}
    downstream: {{operator: join, gate: {n}}}
    partitioner: hash
    record: TUPLE<LONG, INT, LONG, STRING>
    key: [f0]
"""
Started = tuple[Repository, str, Settings]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDR_TABLE_RAW", "true")
    monkeypatch.setenv("CDR_PAGE_SIZE", "4KiB")
    monkeypatch.setenv("CDR_MEMORY_BUDGET", "64KiB")
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "1KiB")
    monkeypatch.setattr(task, "LISTEN_SECONDS", 0.005)
    monkeypatch.setattr("cdr_core.runtime.driver.HEARTBEAT_SECONDS", -1.0)
    monkeypatch.setattr(watch, "GRACE_SECONDS", 0.0)  # tasks that stall close no file


def spec_of(inputs: int) -> str:
    return "job: generated\nexchanges:" + "".join(EXCHANGE.format(n=n) for n in range(inputs))


def spilled(source: str, to: Path, interval: str = "0s") -> Started:
    started = inline.start(RecoveryRequest(source, f"{source}.yaml", str(NEW), f"parquet:{to}", interval))
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
        inline.run(started[0], started[1], phase, started[2])
    return started


def finish(started: Started, source: str, to: Path) -> None:
    for phase in (Phase.DRAIN, Phase.COMMIT):
        inline.run(started[0], started[1], phase, started[2])
    assert compare(output.rows(to), records_of(source, f"{source}.yaml"), NEW).is_exact
    started[0].close()


class WhileStalled(inline.InlineWorkers):
    """The units run in threads until all of them hang in their output; then ``look`` is called, and they go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, look: Callable[[Callable[[], None]], None]) -> None:
        super().__init__()
        self._look, self._go_on, self._pages = look, threading.Event(), threading.local()
        self._stalled = threading.Barrier(NEW + 1)
        monkeypatch.setattr(task, "reach", self._reach)

    def _reach(self, step: str) -> None:
        if step == "drain.page":
            self._pages.seen = getattr(self._pages, "seen", 0) + 1
            if self._pages.seen == 5:
                self._stalled.wait(60)
                assert self._go_on.wait(60)

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        with ThreadPoolExecutor(len(units)) as pool:
            jobs = [pool.submit(run_unit, payload, unit, 0) for unit in units]
            self._stalled.wait(60)
            try:
                self._look(on_poll)
            finally:
                self._go_on.set()
            for job in jobs:
                job.result()
        on_poll()


@pytest.mark.seed("000-20", "002-18", "002-28", "003-03", "003-06")
def test_a_checkpoint_never_waits_for_a_task_that_stalls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task hangs in its output with most of its data on disk: a request completes at once from what the tasks
    made durable, and a second one finds the same, because a checkpoint moves nothing.
    """
    monkeypatch.setenv("CDR_OUTPUT_FILE_SIZE", "2KiB")
    source = generated(tmp_path / "chk", "3", "60kB")
    started = spilled(source, tmp_path / "out")
    repository, recovery, settings = started

    def look(poll: Callable[[], None]) -> None:
        taken = []
        for _ in range(2):
            command = repository.request(recovery, "checkpoint", {"aligned_timeout": None})
            poll()
            (asked,) = [each for each in repository.commands(recovery) if each.id == command.id]
            assert asked.state is CommandState.DONE
            taken.append(repository.checkpoints(recovery)[-1])
        first, second = (read_manifest(manifest_bytes(row)).cuts for row in taken)
        assert taken[0].checkpoint_id < taken[1].checkpoint_id
        assert first == second
        assert all(not cut.final and cut.read().files for cut in first)

    inline.run(repository, recovery, Phase.DRAIN, settings, WhileStalled(monkeypatch, look))
    finish(started, source, tmp_path / "out")


@pytest.mark.seed("E33")
def test_a_newer_checkpoint_subsumes_an_older_one_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request is answered with the newer one, and the older one never completes afterwards."""
    source = generated(tmp_path / "chk", "3", "60kB")
    started = spilled(source, tmp_path / "out")
    repository, recovery, settings = started

    def look(poll: Callable[[], None]) -> None:
        repository.request(recovery, "checkpoint", {"aligned_timeout": 20.0})
        poll()
        (older,) = repository.checkpoints(recovery)
        assert older.state is RecoveryCheckpointState.TRIGGERED
        repository.request(recovery, "checkpoint", {"aligned_timeout": None})
        poll()
        newer = repository.checkpoints(recovery)[-1].checkpoint_id
        assert [(each.answer or {})["checkpoint"] for each in repository.commands(recovery)] == [newer, newer]

    inline.run(repository, recovery, Phase.DRAIN, settings, WhileStalled(monkeypatch, look))
    older, *_ = repository.checkpoints(recovery)
    assert older.state is RecoveryCheckpointState.SUBSUMED
    finish(started, source, tmp_path / "out")


@pytest.mark.seed("002-08", "002-36")
def test_a_segment_that_cannot_be_read_fails_the_drain_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's thread hands its error to the task and the attempt fails; the next one ends well."""
    source = generated(tmp_path / "chk", "3", "60kB")
    started = spilled(source, tmp_path / "out")
    real = read_body

    def fails(spill_set: SpillSet, number: int, source: SourceBytes) -> npt.NDArray[np.uint8]:
        if number == 3:
            raise OSError("the disk is away")
        return real(spill_set, number, source)

    with monkeypatch.context() as patch:
        patch.setattr(delivery, "read_body", fails)
        with pytest.raises(JobFailed, match="the disk is away"):
            inline.run(started[0], started[1], Phase.DRAIN, started[2])
    assert "the disk is away" in (started[0].recovery(started[1]).error or "")
    assert output.manifest(tmp_path / "out") is None
    finish(started, source, tmp_path / "out")


@pytest.mark.seed("000-07", "000-09", "000-10", "000-12", "002-25")
def test_spilled_bytes_come_back_whatever_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records smaller and much larger than a segment, in a memory tier and behind it on a disk, arrive in order; files
    end between two segments once they are full, and none is empty.
    """
    size, segment = 16 * 1024, 1024
    monkeypatch.setenv("CDR_SPILL_FILE_SIZE", "16KiB")
    for name in ("memory", "disk"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tmp_path / 'memory'}:100kB,{tmp_path / 'disk'}:10MB")
    source = generated(tmp_path / "chk", "3", "300kB", record_bytes="30-9000")
    started = spilled(source, tmp_path / "out")
    rotated, tiers = 0, set()
    for row in started[0].spill_sets(started[1]):
        found = SpillSet.from_json(read_json(row.manifest))
        file, length = found.columns["file"], found.columns["length"]
        sizes = np.bincount(file, weights=length).astype(int)
        assert sizes.tolist() == [each.bytes for each in found.files[: len(sizes)]]
        assert all(0 < each < size + max(length.max(), segment) for each in sizes)
        assert (sizes[:-1] >= size).all(), "only the last file ends early"
        rotated += len(sizes) - 1
        tiers |= {Path(each.path).relative_to(tmp_path).parts[0] for each in found.files[: len(sizes)]}
        assert length.max() > segment, "a record that is larger than a segment is alone in one"
    assert rotated > NEW
    assert tiers == {"memory", "disk"}
    finish(started, source, tmp_path / "out")


@pytest.mark.seed("002-47")
@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_a_drain_of_one_two_and_several_inputs_goes_on_from_a_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: int
) -> None:
    """A cut counts what was delivered of every input; an attempt that fails behind it repeats and loses nothing."""
    monkeypatch.setenv("CDR_OUTPUT_FILE_SIZE", "2KiB")
    source = generated(tmp_path / "chk", "3", "90kB", spec=spec_of(inputs))
    started = spilled(source, tmp_path / "out", "1ms")
    with monkeypatch.context() as patch:
        patch.setenv("CDR_FAULTS", "drain.page=sleep:0.003,drain.prepared=raise")
        with pytest.raises(JobFailed, match="fault injected"):
            inline.run(started[0], started[1], Phase.DRAIN, started[2], inline.ThreadedWorkers())
    complete = [row for row in started[0].checkpoints(started[1]) if row.state is RecoveryCheckpointState.COMPLETED]
    assert any(cut.read().files for cut in read_manifest(manifest_bytes(complete[-1])).cuts), "the cut is not the start"
    finish(started, source, tmp_path / "out")


@pytest.mark.seed("004-17", "E30")
def test_output_of_a_checkpoint_that_was_given_up_is_published_with_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Giving a checkpoint up takes nothing back, also where each complete checkpoint is published."""
    monkeypatch.setenv("CDR_COMMIT", "per-checkpoint")
    monkeypatch.setenv("CDR_CHECKPOINT_TIMEOUT", "0s")
    monkeypatch.setenv("CDR_OUTPUT_FILE_SIZE", "1KiB")
    source = generated(tmp_path / "chk", "3", "60kB")
    started = spilled(source, tmp_path / "out")
    repository, recovery, settings = started

    def fails(*_: object) -> None:
        raise StorageError("the disk is away")

    def look(poll: Callable[[], None]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(watch, "write_manifest", fails)
            repository.request(recovery, "checkpoint", {"aligned_timeout": None})
            poll()
        assert [row.state for row in repository.checkpoints(recovery)] == [RecoveryCheckpointState.ABORTED]
        assert output.manifest(tmp_path / "out") is None
        repository.request(recovery, "checkpoint", {"aligned_timeout": None})
        poll()
        later = repository.checkpoints(recovery)[-1]
        assert later.state is RecoveryCheckpointState.COMPLETED
        cuts = [cut.read() for cut in read_manifest(manifest_bytes(later)).cuts]
        prepared = {Path(file.path).name for cut in cuts for file in cut.files}
        deadline = time.monotonic() + 60
        while (published := output.manifest(tmp_path / "out")) is None:
            assert time.monotonic() < deadline, "it is not published"
            time.sleep(0.01)
        assert {Path(file["path"]).name for file in published["files"]} == prepared

    inline.run(repository, recovery, Phase.DRAIN, settings, WhileStalled(monkeypatch, look))
    finish(started, source, tmp_path / "out")


@pytest.mark.seed("002-27", "E16")
def test_a_spill_directory_that_is_missing_is_refused_before_a_recovery_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its row, its workspace or its target; without any directory a recovery spills into its workspace."""
    source = generated(tmp_path / "chk", "3", "60kB")
    with monkeypatch.context() as patch:
        patch.setenv("CDR_SPILL_DIRS", f"{tmp_path / 'missing'}:1MB")
        with pytest.raises(SettingsRefused, match=f"{tmp_path / 'missing'}"):
            spilled(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with Repository.open(settings_module.load().database_url) as repository:
        assert list(repository.recoveries()) == []
    finish(spilled(source, tmp_path / "out"), source, tmp_path / "out")
