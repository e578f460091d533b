"""``checkpoint:DIR`` is published once: kill -9 at every durable step, zombies, strangers in the directory, S3."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cdr_core.checkpoint_target import file_copy as copying
from cdr_core.commit.sinks.base import Publication
from cdr_core.commit.sinks.checkpoint import CheckpointSink
from cdr_core.errors import JobFailed, Refused, StorageError, Unreadable
from cdr_core.flink.metadata import read_metadata
from cdr_core.metadata import Phase
from cdr_core.sweep import sweep
from tests.commit.checkpoint_target import RECORDS, Started, drained, require_one_checkpoint
from tests.commit.killing import FENCED, wait_for
from tests.support import inline
from tests.support.bucket import Bucket
from tests.support.checkpoints import FixtureCheckpoint
from tests.support.victim import Victim

BEFORE = (
    "state.written",
    "commit.before-result",
    "commit.after-record",
    "commit.assembled",
    "commit.intent",
    "commit.before-publish",
    "publish.before",
)
AFTER = ("publish.after", "commit.published", "commit.recorded", "commit.receipt-beside", "commit.before-done")


@pytest.mark.parametrize("step", [*BEFORE, *AFTER])
def test_killed_at_any_step_the_next_attempt_ends_with_one_checkpoint(
    started: Started, source: FixtureCheckpoint, tmp_path: Path, step: str
) -> None:
    repository, recovery, settings = started
    out = tmp_path / "out"
    assert Victim(Phase.COMMIT, recovery, f"{step}=kill", tmp_path / "fired").wait() == -signal.SIGKILL
    assert (tmp_path / "fired").read_text() == f"{step} kill\n"
    assert (out / "_metadata").exists() is (step in AFTER)
    before = (out / "_metadata").read_bytes() if step in AFTER else None
    result = inline.run(repository, recovery, Phase.COMMIT, settings)
    assert (result["verdict"], result["records"]) == ("balanced", RECORDS)
    assert before in (None, (out / "_metadata").read_bytes())
    require_one_checkpoint(source, str(out), started)


@pytest.mark.parametrize("step", ["commit.before-publish", "publish.before"])
def test_an_attempt_that_wakes_after_its_successor_finished_changes_nothing(
    started: Started, source: FixtureCheckpoint, tmp_path: Path, step: str
) -> None:
    repository, recovery, settings = started
    out, hold = tmp_path / "out", tmp_path / "hold"
    hold.touch()
    zombie = Victim(Phase.COMMIT, recovery, f"{step}=pause:{hold}", tmp_path / "fired")
    wait_for(tmp_path / "fired")
    os.kill(zombie.pid, signal.SIGSTOP)
    inline.run(repository, recovery, Phase.COMMIT, settings)
    published = (out / "_metadata").read_bytes()
    hold.unlink()
    os.kill(zombie.pid, signal.SIGCONT)
    assert zombie.wait() == FENCED
    assert (out / "_metadata").read_bytes() == published
    require_one_checkpoint(source, str(out), started)


def test_an_attempt_that_publishes_while_its_successor_works_is_found(
    started: Started, source: FixtureCheckpoint, tmp_path: Path
) -> None:
    """The successor has swept and written files of its own: what the older one published still has all of its files."""
    _, recovery, _ = started
    hold, second = tmp_path / "hold", tmp_path / "hold-2"
    hold.touch()
    second.touch()
    older = Victim(Phase.COMMIT, recovery, f"publish.before=pause:{hold}", tmp_path / "fired")
    wait_for(tmp_path / "fired")
    newer = Victim(Phase.COMMIT, recovery, f"commit.assembled=pause:{second}", tmp_path / "fired-2")
    wait_for(tmp_path / "fired-2")
    hold.unlink()
    assert older.wait() == FENCED
    second.unlink()
    assert newer.wait() == 0
    require_one_checkpoint(source, str(tmp_path / "out"), started)


def test_a_checkpoint_that_appears_in_the_directory_is_never_taken_for_ours(
    started: Started, source: FixtureCheckpoint, tmp_path: Path
) -> None:
    repository, recovery, settings = started
    foreign = (source.path / "_metadata").read_bytes()
    (tmp_path / "out" / "_metadata").write_bytes(foreign)
    with pytest.raises(Refused, match="cdr did not write"):
        inline.run(repository, recovery, Phase.COMMIT, settings)
    assert (tmp_path / "out" / "_metadata").read_bytes() == foreign


def test_a_prepared_file_that_was_changed_is_not_published(started: Started, tmp_path: Path) -> None:
    repository, recovery, settings = started
    file = max((tmp_path / "out").glob("cdr-r-*"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(Exception, match="was changed after it was written"):
        inline.run(repository, recovery, Phase.COMMIT, settings)
    assert not (tmp_path / "out" / "_metadata").exists()


def test_a_cancelled_recovery_leaves_nothing_of_its_own_in_the_directory(started: Started, tmp_path: Path) -> None:
    repository, recovery, settings = started
    (tmp_path / "out" / "mine").write_text("not cdr's")
    assert list((tmp_path / "out").glob("cdr-r-*"))
    repository.cancel(recovery)
    sweep(repository, settings)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize("step", ["publish.before", "publish.after", ""])
def test_a_target_on_s3_has_the_same_checkpoint(
    source: FixtureCheckpoint, tmp_path: Path, bucket: Bucket, small_inline: None, step: str
) -> None:
    target = bucket.uri()
    started = drained(source, target)
    repository, recovery, settings = started
    with repository:
        if step:
            assert Victim(Phase.COMMIT, recovery, f"{step}=kill", tmp_path / "fired").wait() == -signal.SIGKILL
        inline.run(repository, recovery, Phase.COMMIT, settings)
        require_one_checkpoint(source, target, started)


def test_files_of_a_source_on_s3_are_copied_by_the_server(
    source: FixtureCheckpoint, tmp_path: Path, bucket: Bucket
) -> None:
    target, uploaded = bucket.uri(), bucket.upload(source.path)
    started = drained(source, target, "same", uploaded)
    repository, recovery, settings = started
    with repository:
        inline.run(repository, recovery, Phase.COMMIT, settings)
        require_one_checkpoint(source, target, started)
        receipt = repository.receipt(recovery)
    assert receipt is not None
    assert receipt["checkpoint"]["copied"]
    for file in receipt["checkpoint"]["copied"]:
        assert bucket.get(f"{target}/{file['path']}") == (source.path / file["path"]).read_bytes()
    assert read_metadata(bucket.get(f"{target}/_metadata")).checkpoint_id == 2


def test_a_published_checkpoint_that_vanishes_during_commit_is_not_made_of_half_the_work(
    started: Started, source: FixtureCheckpoint, tmp_path: Path
) -> None:
    """The attempt found it published and only read it again: what that left is no checkpoint."""
    repository, recovery, settings = started
    metadata = tmp_path / "out" / "_metadata"
    assert Victim(Phase.COMMIT, recovery, "publish.after=kill", tmp_path / "fired").wait() == -signal.SIGKILL

    class Removing(inline.InlineWorkers):
        def run(self, drive: Any, payload: str, units: Any, on_poll: Any) -> None:
            super().run(drive, payload, units, on_poll)
            metadata.unlink()

    with pytest.raises(JobFailed, match="now it is gone"):
        inline.run(repository, recovery, Phase.COMMIT, settings, Removing())
    assert not metadata.exists()
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    require_one_checkpoint(source, str(tmp_path / "out"), started)


def test_the_claim_of_another_recovery_is_not_taken_for_ours(tmp_path: Path) -> None:
    """Nothing in flight and only copied state: the bytes of both are the same, and carry no name."""
    facts = {"source_metadata_sha256": "0", "files": []}
    sink = CheckpointSink(str(tmp_path / "out")).holding(b"the same", facts)

    def publication(user: str) -> Publication:
        return Publication((), {"cdr.commit-user": user, "cdr.commit-id": "1", "cdr.recovery": user})

    published = sink.publish(sink.look_up("a").base, publication("a"))
    (tmp_path / "out" / "_metadata").unlink()
    with pytest.raises(Refused, match="recovery a is publishing the same checkpoint"):
        sink.publish("nothing", publication("b"))
    assert not (tmp_path / "out" / "_metadata").exists()
    assert sink.publish("nothing", publication("a")) == published


def test_a_claim_that_was_damaged_is_unreadable_and_named(tmp_path: Path) -> None:
    directory = tmp_path / "out"
    (directory / "_cdr").mkdir(parents=True)
    (directory / "_metadata").write_bytes(b"metadata")
    claim = directory / "_cdr" / f"{hashlib.sha256(b'metadata').hexdigest()}.json"
    for content in ("", "[]", '{"version": 1}', '{"version": 1, "metadata_sha256": "", "properties": {}}'):
        claim.write_text(content)
        with pytest.raises(Unreadable, match="is no claim of a publication"):
            CheckpointSink(str(directory)).refuse_early()


def test_a_copy_that_storage_fails_is_no_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a retry helps is told by the error's class."""

    def fail(*_: Any) -> None:
        raise StorageError("the read timed out")

    (tmp_path / "state").write_bytes(b"bytes")
    monkeypatch.setattr(copying, "_pieces", fail)
    with pytest.raises(StorageError, match="timed out"):
        copying._copy_bytes(str(tmp_path / "state"), str(tmp_path / "copy"), 5, tmp_path)
