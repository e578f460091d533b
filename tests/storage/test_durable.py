"""What a power cut must not take: the bytes of a file are synced before it gets its name, and its name right after."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cdr_core.spill.tiers import Tier
from cdr_core.storage import storage_for
from cdr_core.storage.atomic_write import making
from cdr_core.storage.local import make_directories
from tests.support.spill import places, write

Event = tuple[str, int]
"""``sync`` or ``link``, and the inode it was done to."""


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Syncs and links in their order."""
    seen: list[Event] = []
    fsync, link = os.fsync, os.link

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        seen.append(("sync", os.fstat(descriptor).st_ino))

    def noted_link(source: Path, target: Path) -> None:
        link(source, target)
        seen.append(("link", target.stat().st_ino))

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    return seen


def create(path: Path) -> None:
    assert storage_for(str(path)).create(str(path), b"bytes")


def create_from(path: Path) -> None:
    source = path.parents[2] / "source"
    source.write_bytes(b"bytes")
    assert storage_for(str(path)).create_from(str(path), source)


def make(path: Path) -> None:
    with making(str(path), path.parent) as temporary:
        temporary.write_bytes(b"bytes")


@pytest.mark.parametrize("write", [create, create_from, make])
def test_bytes_are_synced_before_the_link_and_its_directory_after_it(
    tmp_path: Path, events: list[Event], write: Callable[[Path], None]
) -> None:
    file = tmp_path / "new" / "below" / "file"
    write(file)
    inode, directory = file.stat().st_ino, file.parent.stat().st_ino
    at = events.index(("link", inode))
    assert ("sync", inode) in events[:at]
    assert ("sync", directory) in events[at:]


def test_the_names_of_new_directories_are_synced(tmp_path: Path, events: list[Event]) -> None:
    (tmp_path / "there").mkdir()
    make_directories(tmp_path / "there" / "a" / "b")
    parents = [tmp_path / "there", tmp_path / "there" / "a"]
    assert {("sync", path.stat().st_ino) for path in parents} <= set(events)
    events.clear()
    make_directories(tmp_path / "there" / "a" / "b")
    assert events == []


def test_everything_of_a_sealed_spill_set_is_synced(tmp_path: Path, events: list[Event]) -> None:
    """Bodies in a tier, runs in the workspace, and the names of the directories that were made for them."""
    tier, home = tmp_path / "tier", tmp_path / "workspace" / "set-1"
    tier.mkdir()
    batches = [(0, [b"x" * 90] * 9), (1, [b"y" * 90] * 9)]
    spill_set = write(home, batches, where=places([Tier(str(tier), None)]))
    files = [Path(file.path) for file in spill_set.files]
    assert len(files) > 2
    assert files[-1].is_relative_to(home)
    made = {*files, *files[0].parents, *home.parents, home}
    ours = {path for path in made if path.is_relative_to(tmp_path)}
    assert [path for path in ours if ("sync", path.stat().st_ino) not in events] == []
