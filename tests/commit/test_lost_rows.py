"""A metadata database that lost its last transactions: nothing that the target shows is published again."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdr_core.commit.committable import Committable
from cdr_core.commit.sinks.base import COMMIT_ID
from cdr_core.drain.checkpoint_store import prepared
from cdr_core.errors import InDoubt, StorageError
from cdr_core.metadata import Phase, Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime.phase_command import own_runner
from cdr_core.settings import Settings
from tests.commit.targets import ParquetTarget
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.draining import drain_in_child, exit_status, make_slow, spilled

RECORDS = 1878


class Backup:
    """A database on SQLite as it was, to be brought back as a replica that was behind would be."""

    def __init__(self, settings: Settings, repository: Repository, folder: Path) -> None:
        repository.close()
        self._file = Path(settings.database_url.removeprefix("sqlite:///"))
        self._copy = folder / "replica.db"
        shutil.copy(self._file, self._copy)

    def bring_back(self) -> None:
        for log in ("-wal", "-shm"):
            self._file.with_name(f"{self._file.name}{log}").unlink(missing_ok=True)
        shutil.copy(self._copy, self._file)


@pytest.fixture
def target(tmp_path: Path) -> ParquetTarget:
    return ParquetTarget(tmp_path)


@pytest.fixture(params=["at-end", "per-checkpoint"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CDR_COMMIT", str(request.param))
    return str(request.param)


@pytest.fixture
def behind(
    mode: str,
    target: ParquetTarget,
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Repository, str, Settings]]:
    """Something is published, and the database knows nothing of what happened since the drain began."""
    make_slow(monkeypatch, "drain.page=sleep:0.01")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    interval = "10ms" if mode == "per-checkpoint" else "0"
    wish = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", target.name, interval)
    repository, recovery, settings = spilled(wish)
    backup = Backup(settings, repository, tmp_path)
    if mode == "per-checkpoint":
        assert exit_status(drain_in_child(recovery, "commit.recorded=kill")) == -signal.SIGKILL
    else:
        monkeypatch.delenv("CDR_FAULTS")
        with Repository.open(settings.database_url) as lost:
            inline.run(lost, recovery, Phase.DRAIN, settings)
            inline.run(lost, recovery, Phase.COMMIT, settings)
    assert target.commits() == 1
    backup.bring_back()
    with Repository.open(settings.database_url) as left:
        assert (left.commit_log(recovery), left.checkpoints(recovery)) == ((), ())
        yield left, recovery, settings


@pytest.mark.seed("E59")
@pytest.mark.parametrize("mode", ["per-checkpoint"], indirect=True)
def test_a_drain_that_would_go_back_behind_a_publication_stops_before_it_forgets_anything(
    behind: tuple[Repository, str, Settings], target: ParquetTarget
) -> None:
    """What it drained again would be published again."""
    repository, recovery, settings = behind
    number = target.properties()[COMMIT_ID]  # a checkpoint before the first output publishes nothing
    with repository.fenced(recovery, repository.recovery(recovery).epoch) as transaction:
        transaction.add_prepared(prepared(Committable(0, 99, ())))
    for _ in range(2):
        with pytest.raises(InDoubt, match=f"the target shows commit {number} of this recovery") as caught:
            inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    assert (caught.value.exit_code, caught.value.retry_helps) == (3, False)
    assert (target.commits(), repository.checkpoints(recovery)) == (1, ())
    assert [row.checkpoint_id for row in repository.prepared(recovery)] == [99]


@pytest.mark.seed("E59")
@pytest.mark.parametrize("mode", ["at-end"], indirect=True)
def test_at_the_end_the_same_output_under_the_same_number_is_found_and_recorded(
    behind: tuple[Repository, str, Settings], target: ParquetTarget
) -> None:
    """The phases are done again, and the look-up tells that there is nothing to publish."""
    repository, recovery, settings = behind
    inline.run(repository, recovery, Phase.DRAIN, settings)
    result = inline.run(repository, recovery, Phase.COMMIT, settings)
    assert (result["verdict"], result["records"]) == ("balanced", RECORDS)
    assert (target.commits(), len(target.rows())) == (1, RECORDS)
    receipt = repository.receipt(recovery)
    assert receipt is not None
    assert receipt["publication"]["found_by_look_up"] is True


@pytest.mark.seed("E59")
@pytest.mark.parametrize("mode", ["at-end"], indirect=True)
def test_a_ledger_file_of_a_lost_attempt_counts_only_if_it_is_the_same(
    behind: tuple[Repository, str, Settings], target: ParquetTarget
) -> None:
    """An epoch that is given out again finds the file of its first use."""
    repository, recovery, settings = behind
    (ledger,) = Path(settings.workspace).rglob("ledger.parquet")
    ledger.write_bytes(ledger.read_bytes()[:-1])
    inline.run(repository, recovery, Phase.DRAIN, settings)
    with pytest.raises(StorageError, match=r"ledger\.parquet was taken by another process"):
        inline.run(repository, recovery, Phase.COMMIT, settings)
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    assert (target.commits(), len(target.rows())) == (1, RECORDS)


@pytest.mark.seed("E59")
@pytest.mark.parametrize("mode", ["at-end"], indirect=True)
def test_at_the_end_under_another_number_it_stops_and_publishes_nothing(
    behind: tuple[Repository, str, Settings], target: ParquetTarget
) -> None:
    """No look-up would find it under the new number."""
    repository, recovery, settings = behind
    attempt = repository.begin_attempt(recovery, Phase.DRAIN, own_runner("drain"))
    assert attempt is not None
    with repository.fenced(recovery, attempt.epoch) as transaction:
        transaction.begin_checkpoint(1)
        transaction.abort_checkpoint(1, "given up")
    inline.run(repository, recovery, Phase.DRAIN, settings)
    with pytest.raises(InDoubt, match="the target shows commit 1 of this recovery"):
        inline.run(repository, recovery, Phase.COMMIT, settings)
    assert (target.commits(), len(target.rows())) == (1, RECORDS)
    assert repository.commit_log(recovery) == ()
    assert repository.receipt(recovery) is None
