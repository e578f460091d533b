"""kill -9 where ``checkpoint:`` has steps of its own: copies, joined channels, files of a drain that dies; S3 too."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cdr_core.checkpoint_target import file_copy as copying
from cdr_core.metadata import Phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.storage.atomic_write import making
from tests.commit.checkpoint_target import RECORDS, Started, drained, require_one_checkpoint
from tests.support import draining, inline
from tests.support.bucket import Bucket
from tests.support.checkpoints import FixtureCheckpoint
from tests.support.victim import Victim


def slowly_drained(source: FixtureCheckpoint, target: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """Ready to be drained, with so many recovery checkpoints that every subtask leaves several files."""
    draining.make_slow(monkeypatch)
    place = f"checkpoint:{target}"
    return draining.spilled(RecoveryRequest(str(source.path), str(source.spec), "2", place, checkpoint_interval="20ms"))


def killed_in_commit(recovery: str, step: str, log: Path) -> None:
    assert Victim(Phase.COMMIT, recovery, f"{step}=kill", log).wait() == -signal.SIGKILL
    assert log.read_text() == f"{step} kill\n"


@pytest.mark.parametrize("step", ["state.copied"])
def test_killed_between_copies_the_next_attempt_takes_what_is_there(
    source: FixtureCheckpoint, tmp_path: Path, step: str
) -> None:
    """At the same parallelism all state is copied."""
    out = tmp_path / "out"
    started = drained(source, str(out), "same")
    repository, recovery, settings = started
    with repository:
        before = {path.name for path in out.iterdir()}
        killed_in_commit(recovery, step, tmp_path / "fired")
        copies = {path.name for path in out.iterdir()} - before
        assert copies, "a copy is there when it is said to be"
        assert inline.run(repository, recovery, Phase.COMMIT, settings)["records"] == RECORDS
        require_one_checkpoint(source, str(out), started)
        receipt = repository.receipt(recovery)
    assert receipt is not None
    assert len(receipt["checkpoint"]["copied"]) > 1


def test_killed_when_channels_are_joined_the_next_attempt_joins_them_again(
    source: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = slowly_drained(source, tmp_path / "out", monkeypatch)
    repository, recovery, settings = started
    with repository:
        inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
        monkeypatch.delenv("CDR_FAULTS")
        killed_in_commit(recovery, "channels.joined", tmp_path / "fired")
        assert inline.run(repository, recovery, Phase.COMMIT, settings)["records"] == RECORDS
        require_one_checkpoint(source, str(tmp_path / "out"), started)


@pytest.mark.parametrize("step", ["drain.cut-prepared", "checkpoint.completed", "drain.prepared"])
def test_a_drain_that_is_killed_leaves_files_of_which_none_is_published_twice(
    source: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    started = slowly_drained(source, tmp_path / "out", monkeypatch)
    repository, recovery, settings = started
    with repository:
        pid = draining.drain_in_child(recovery, f"{step}=kill", log=tmp_path / "fired")
        assert draining.exit_status(pid) == -signal.SIGKILL
        assert f"{step} kill" in (tmp_path / "fired").read_text()
        monkeypatch.delenv("CDR_FAULTS")
        for phase in (Phase.DRAIN, Phase.COMMIT):
            inline.run(repository, recovery, phase, settings, inline.ThreadedWorkers())
        require_one_checkpoint(source, str(tmp_path / "out"), started)


@pytest.mark.parametrize(
    ("step", "parallelism"), [("state.written", "2"), ("state.copied", "same"), ("commit.receipt-beside", "2")]
)
def test_killed_with_a_target_on_s3_the_next_attempt_ends_with_one_checkpoint(
    source: FixtureCheckpoint, tmp_path: Path, bucket: Bucket, small_inline: None, step: str, parallelism: str
) -> None:
    target = bucket.uri()
    started = drained(source, target, parallelism)
    repository, recovery, settings = started
    with repository:
        killed_in_commit(recovery, step, tmp_path / "fired")
        inline.run(repository, recovery, Phase.COMMIT, settings)
        require_one_checkpoint(source, target, started)


def test_a_file_on_its_way_to_s3_is_made_in_the_scratch_of_the_job(
    source: FixtureCheckpoint, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary directory may be small, and is not what CDR_SCRATCH says."""
    used: list[Path] = []
    made = making
    monkeypatch.setattr(copying, "making", lambda uri, scratch: used.append(scratch) or made(uri, scratch))
    repository, recovery, settings = drained(source, bucket.uri(), "same")
    with repository:
        inline.run(repository, recovery, Phase.COMMIT, settings)
        root = Path(repository.recovery(recovery).workspace)
    assert used
    assert all(scratch.is_relative_to(root) for scratch in used)
