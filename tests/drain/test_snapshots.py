"""The chain of a subtask's snapshots: who may add to it, and what a checkpoint names of it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdr_core.commit.committable import PreparedFile
from cdr_core.drain.checkpoint_manifest import write_manifest
from cdr_core.drain.snapshots import START, Cut, CutEntry, Snapshot, Snapshots
from cdr_core.errors import JobFailed

MINE = Snapshot(0, 2, "mine", START, Cut("2-mine", "set"))


def test_a_task_that_did_not_hear_that_its_snapshot_is_there_goes_on(tmp_path: Path) -> None:
    """The answer got lost, the object bears the task's own name."""
    snapshots = Snapshots(str(tmp_path))
    first, again = (snapshots.create("00000", MINE) for _ in range(2))
    assert (first.uri, first.sha256) == (again.uri, again.sha256)
    with pytest.raises(JobFailed, match="task mine took subtask 0 over from other"):
        snapshots.create("00000", replace(MINE, task="other"))


def test_a_checkpoint_names_the_files_that_say_where_chunks_are(tmp_path: Path) -> None:
    """Or a sweep would take them for leftovers."""
    files = (PreparedFile("a", 1, 10, 7, pieces=("/w/a.chunks", "sha")), PreparedFile("b", 1, 10, 7))
    stored = Snapshots(str(tmp_path)).create("00000", replace(MINE, cut=replace(MINE.cut, files=files)))
    entry = CutEntry.of(stored)
    assert entry.owned == ("/w/a.chunks",)
    assert entry.read().files == files


def test_the_manifest_of_an_earlier_try_at_a_number_is_replaced(tmp_path: Path) -> None:
    """It was not recorded, and may hold other cuts."""
    drive: Any = SimpleNamespace(epoch=1, workspace=SimpleNamespace(attempt=lambda *_: str(tmp_path)))
    for position in ("first", "second"):
        uri, sha256 = write_manifest(drive, 3, [CutEntry(0, position, "set")])
        assert hashlib.sha256(Path(uri).read_bytes()).hexdigest() == sha256
