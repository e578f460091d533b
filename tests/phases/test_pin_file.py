"""The advisory file beside a source checkpoint: there while a recovery needs it, where the user allows it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdr_core.errors import Cancelled
from cdr_core.metadata import Phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime import pin_file
from cdr_core.runtime.phase_command import own_runner
from cdr_core.runtime.pin_file import unpin
from tests.support import inline
from tests.support.bucket import Bucket
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints


@pytest.fixture
def checkpoint(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path) -> FixtureCheckpoint:
    original = fixture_checkpoint("a_p3_thr0", 2)
    return replace(original, path=original.copy(tmp_path / "source" / "chk-2"))


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDR_PIN_FILES", "true")


def request(checkpoint: FixtureCheckpoint, to: Path, source: str = "") -> RecoveryRequest:
    return RecoveryRequest(source or str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{to}")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def beside(checkpoint: FixtureCheckpoint) -> list[str]:
    return sorted(path.name for path in checkpoint.path.parent.iterdir() if path != checkpoint.path)


def test_unless_it_is_allowed_there_is_no_file(checkpoint: FixtureCheckpoint, tmp_path: Path) -> None:
    repository, recovery, _ = inline.start(request(checkpoint, tmp_path / "out"))
    assert repository.recovery(recovery).source.pinned
    assert beside(checkpoint) == []
    repository.close()


def test_it_names_the_recovery_until_that_is_done_and_the_source_stays_as_it_was(
    allowed: None, checkpoint: FixtureCheckpoint, tmp_path: Path
) -> None:
    before = contents(checkpoint.path)
    repository, recovery, settings = inline.start(request(checkpoint, tmp_path / "out"))
    (name,) = beside(checkpoint)
    file = checkpoint.path.parent / name
    assert name == f"chk-2.cdr-pin-{recovery}"
    assert json.loads(file.read_text())["recovery"] == recovery
    again = inline.start(request(checkpoint, tmp_path / "out"))
    assert (again[1], beside(checkpoint)) == (recovery, [name]), "whoever attaches makes no second one"
    again[0].close()
    for phase in Phase:
        assert beside(checkpoint) == [name]
        inline.run(repository, recovery, phase, settings)
    assert beside(checkpoint) == []
    assert contents(checkpoint.path) == before
    inline.start(request(checkpoint, tmp_path / "out"))[0].close()
    assert beside(checkpoint) == [], "asking for a recovery that is done pins nothing"
    repository.close()


def test_only_its_owner_removes_it(allowed: None, checkpoint: FixtureCheckpoint, tmp_path: Path) -> None:
    """Two recoveries have two files; one that says another's name stays, whatever it is called."""
    first, one, settings = inline.start(request(checkpoint, tmp_path / "one"))
    second, two, _ = inline.start(request(checkpoint, tmp_path / "two"))
    inline.run_all(first, one, settings)
    inline.start(request(checkpoint, tmp_path / "one"))[0].close()
    assert beside(checkpoint) == [f"chk-2.cdr-pin-{two}"], "the one that is done does not come back"
    file = checkpoint.path.parent / f"chk-2.cdr-pin-{two}"
    for foreign in (json.dumps({"recovery": "r-somebody"}), "no json", "[]"):
        file.write_text(foreign)
        assert not unpin(second.recovery(two))
        assert file.read_text() == foreign
    first.close()
    second.close()


def test_a_cancelled_recovery_needs_it_no_longer(
    allowed: None, checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdr_core.runtime.driver.HEARTBEAT_SECONDS", -1.0)
    repository, recovery, settings = inline.start(request(checkpoint, tmp_path / "out"))

    class Asking(inline.InlineWorkers):
        def run(self, drive: Any, payload: str, units: Any, on_poll: Any) -> None:
            repository.cancel(recovery)
            super().run(drive, payload, units, on_poll)

    with pytest.raises(Cancelled):
        inline.run(repository, recovery, Phase.READ, settings, Asking())
    assert beside(checkpoint) == []
    repository.close()


def test_a_place_that_cannot_be_written_is_no_obstacle(
    allowed: None, checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel itself says no, to root as well: a directory of /proc takes no files."""
    monkeypatch.setattr(pin_file, "pin_file_of", lambda *_: "/proc/sys/chk-2.cdr-pin")
    monkeypatch.setattr("cdr_core.recovery.recovery_request.pin_file_of", lambda *_: "/proc/sys/chk-2.cdr-pin")
    repository, recovery, settings = inline.start(request(checkpoint, tmp_path / "out"))
    assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"
    assert beside(checkpoint) == []
    repository.close()


def test_beside_a_checkpoint_on_s3_it_is_an_object(
    allowed: None, bucket: Bucket, checkpoint: FixtureCheckpoint, tmp_path: Path
) -> None:
    where = bucket.upload(checkpoint.path)
    repository, recovery, settings = inline.start(request(checkpoint, tmp_path / "out", where))
    assert json.loads(bucket.get(f"{where}.cdr-pin-{recovery}"))["recovery"] == recovery
    inline.run_all(repository, recovery, settings)
    assert not [key for key in bucket.keys(where) if "cdr-pin" in key]
    repository.close()


def test_whoever_finds_nothing_left_to_do_removes_what_a_dead_attempt_left(
    allowed: None, checkpoint: FixtureCheckpoint, tmp_path: Path
) -> None:
    """Killed after the commit was recorded, and before the file was removed."""
    repository, recovery, settings = inline.start(request(checkpoint, tmp_path / "out"))
    inline.run_all(repository, recovery, settings)
    assert pin_file.pin(repository.recovery(recovery))
    assert len(beside(checkpoint)) == 1
    assert pin_file.begin(repository, recovery, Phase.COMMIT, own_runner("commit")) is None
    assert beside(checkpoint) == []
    repository.close()


def test_a_cancel_that_the_next_attempt_carries_out_removes_it_too(
    allowed: None, checkpoint: FixtureCheckpoint, tmp_path: Path
) -> None:
    repository, recovery, _ = inline.start(request(checkpoint, tmp_path / "out"))
    assert pin_file.begin(repository, recovery, Phase.READ, own_runner("read")) is not None, "and it dies"
    repository.cancel(recovery)
    assert len(beside(checkpoint)) == 1
    with pytest.raises(Cancelled):
        pin_file.begin(repository, recovery, Phase.READ, own_runner("read"))
    assert beside(checkpoint) == []
    repository.close()
