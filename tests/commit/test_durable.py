"""What a power cut must not take: everything a publication refers to is on the disk before it is visible."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from cdr_core.commit.publish_once import publish_once
from cdr_core.commit.sinks import Publication
from tests.commit.log import Log
from tests.commit.targets import SCHEMA, PaimonTarget, Target, prepare, publication
from tests.support.sinks import sink_of


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Inodes of what was synced."""
    inodes: set[int] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        inodes.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return inodes


def files_of(folder: Path) -> list[Path]:
    """Without the catalog's database, which syncs by itself, and hints for readers."""
    return [path for path in folder.rglob("*") if path.is_file() and ".db" not in path.name and path.name != "LATEST"]


@pytest.mark.seed("004-07")
@pytest.mark.parametrize("empty_target", ["parquet", "iceberg", "paimon"], indirect=True)
def test_prepared_files_are_closed_and_on_the_disk_when_they_are_handed_over(
    target: Target, tmp_path: Path, synced: set[int]
) -> None:
    before = set(files_of(tmp_path))
    prepare(target.name, "a", [1, 2, 3])
    (new,) = set(files_of(tmp_path)) - before
    assert {new.stat().st_ino, new.parent.stat().st_ino} <= synced
    assert str(new) not in {each.path for each in psutil.Process().open_files()}


@pytest.mark.parametrize("empty_target", ["parquet", "iceberg", "paimon"], indirect=True)
def test_everything_a_publication_consists_of_is_synced(empty_target: Target, tmp_path: Path, synced: set[int]) -> None:
    sink = sink_of(empty_target.name)
    sink.create(SCHEMA)
    publish_once(sink, "me", 1, publication("me", prepare(empty_target.name, "a", [1, 2, 3])), Log())
    files = files_of(tmp_path)
    assert len(files) > 1
    assert [path for path in files if path.stat().st_ino not in synced] == []


@pytest.mark.seed("004-23")
def test_a_paimon_snapshot_carries_the_watermark_and_it_never_falls(tmp_path: Path) -> None:
    target = PaimonTarget(tmp_path)
    sink: Any = sink_of(target.name)
    sink.create(SCHEMA)
    seen = []
    for commit_id, watermark in enumerate([None, 1000, 900, None, 2000], start=1):
        given = {} if watermark is None else {"cdr.watermark": str(watermark)}
        bare = publication("me", commit_id=commit_id)
        publish_once(sink, "me", commit_id, Publication((), {**bare.properties, **given}), Log())
        seen.append(target.table().snapshot_manager().get_latest_snapshot().watermark)
    assert seen == [None, 1000, 1000, 1000, 2000]
