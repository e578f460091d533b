"""Recovery of a recovered checkpoint: records eight times a page, a slow consumer, another parallelism each time."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from cdr_core.checkpoint_target.export import export_checkpoint
from cdr_core.drain import task
from cdr_core.flink.read_page import PageCounts
from cdr_core.metadata import CommandState, Phase, Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.settings import Settings
from tests.seeds.expected import records_of
from tests.seeds.waiting import NotEnoughCheckpoints, draining, in_flight, wait_for_checkpoints
from tests.support import inline, output
from tests.support.generated import KEYED, generated

RECORD = "32KiB-32KiB"
PRIMES = (2, 3, 5, 7)
"""None divides another, so that in every step some channels have more than one new owner."""
MORE = 5
"""Checkpoints that the last recovery completes while records are in flight."""


@pytest.fixture(autouse=True)
def _slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest page there is, a few of them, segments of one record, and a drain that takes its time with each."""
    monkeypatch.setenv("CDR_TABLE_RAW", "true")
    monkeypatch.setenv("CDR_PAGE_SIZE", "4KiB")
    monkeypatch.setenv("CDR_MEMORY_BUDGET", "64KiB")
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "8KiB")
    monkeypatch.setenv("CDR_FAULTS", "drain.page=sleep:0.04")
    monkeypatch.setattr(task, "LISTEN_SECONDS", 0.005)
    monkeypatch.setattr("cdr_core.runtime.driver.HEARTBEAT_SECONDS", 0.02)


def spilled(source: str, parallelism: int, to: Path) -> tuple[Repository, str, Settings]:
    """A recovery that is ready to be drained, with a recovery checkpoint every few milliseconds."""
    repository, recovery, settings = inline.start(
        RecoveryRequest(source, KEYED, str(parallelism), f"parquet:{to}", "20ms")
    )
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
        inline.run(repository, recovery, phase, settings)
    return repository, recovery, settings


def asked_for(repository: Repository, recovery: str) -> int:
    """The number of a recovery checkpoint that a user asks a running drain for; it is kept until commit."""
    command = repository.request(recovery, "checkpoint", {"aligned_timeout": None})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        answered = next(each for each in repository.commands(recovery) if each.id == command.id)
        if answered.state is CommandState.DONE:
            return int((answered.answer or {})["checkpoint"])
        time.sleep(0.01)
    raise AssertionError("the drain did not answer")


@pytest.mark.parametrize("seed", [1, 2])
def test_a_checkpoint_of_a_running_recovery_is_recovered_and_completes_five_more(tmp_path: Path, seed: int) -> None:
    """001-16, 001-17, 002-48, E34: three parallelisms; each record once, at the owner of the last of them."""
    first, second, third = Random(seed).sample(PRIMES, 3)
    source = generated(tmp_path / "first", str(first), "2MB", record_bytes=RECORD, keys=64, seed=seed)
    records = records_of(source, str(tmp_path / "first.yaml"))
    assert min(len(record.raw) for record in records.values()) > 7 * 4096

    repository, recovery, settings = spilled(source, second, tmp_path / "never")
    with draining(recovery) as child:
        wait_for_checkpoints(repository, recovery, 1)
        number = asked_for(repository, recovery)
        exported = export_checkpoint(repository, recovery, number, str(tmp_path / "second"))
        child.kill()
    row = next(row for row in repository.checkpoints(recovery) if row.checkpoint_id == number)
    assert in_flight(repository, recovery, row) > 0, "it was taken while the drain was under way"
    assert exported.records == len(records)
    assert output.manifest(tmp_path / "never") is None
    repository.close()
    shutil.rmtree(source)
    shutil.rmtree(settings.workspace)

    repository, recovery, settings = spilled(exported.directory, third, tmp_path / "out")
    with draining(recovery) as child:
        assert len(wait_for_checkpoints(repository, recovery, MORE)) >= MORE
        assert child.wait() == 0
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    filtered = PageCounts.from_json(inline.run(repository, recovery, Phase.FILTER, settings)["page"])
    assert filtered.spanning > 0, "records that do not fit the page passed it"
    rows = output.rows(tmp_path / "out")
    wanted = Counter((record.raw, record.owner(third)) for record in records.values())
    assert Counter((row["raw"], row["new_down"]) for row in rows) == wanted
    repository.close()


def test_waiting_counts_only_complete_checkpoints_that_leave_records_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """001-09: the last one of a drain is complete and leaves nothing, so it is not what was waited for."""
    monkeypatch.setenv("CDR_CHECKPOINT_DURING_RECOVERY", "false")
    source = generated(tmp_path / "chk", "3", "200kB")
    repository, recovery, _ = spilled(source, 2, tmp_path / "out")
    with draining(recovery) as child:
        assert child.wait() == 0
    assert wait_for_checkpoints(repository, recovery, 1, with_in_flight=False) == [1]
    with pytest.raises(NotEnoughCheckpoints, match="0 of 1 came; 1 were complete"):
        wait_for_checkpoints(repository, recovery, 1)
    repository.close()
