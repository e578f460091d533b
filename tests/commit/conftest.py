"""Every rule of publishing is tested on every kind of target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commit.checkpoint_target import Started, drained
from tests.commit.targets import (
    SCHEMA,
    IcebergTarget,
    PaimonS3Target,
    PaimonTarget,
    ParquetTarget,
    S3Target,
    Target,
    kinds,
)
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.sinks import sink_of


def make_target(kind: str, folder: Path, request: pytest.FixtureRequest) -> Target:
    if kind == "s3":
        return S3Target(request.getfixturevalue("bucket"))
    if kind == "paimon-s3":
        return PaimonS3Target(request.getfixturevalue("bucket"))
    if kind.startswith("iceberg"):
        uri = request.getfixturevalue("postgres").create() if kind == "iceberg-postgresql" else ""
        target = IcebergTarget(folder, uri)
        for name, value in target.environment.items():
            request.getfixturevalue("monkeypatch").setenv(name, value)
        request.addfinalizer(target.close)
        return target
    return PaimonTarget(folder) if kind == "paimon" else ParquetTarget(folder)


@pytest.fixture(params=kinds())
def empty_target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """Nothing was made there yet, not even a table."""
    return make_target(str(request.param), tmp_path, request)


@pytest.fixture
def target(empty_target: Target) -> Target:
    """With a table of two columns."""
    sink_of(empty_target.name).create(SCHEMA)
    return empty_target


@pytest.fixture
def small_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged state goes to files, or there would be none of it to lose."""
    monkeypatch.setattr("cdr_core.checkpoint_target.state_migration.INLINE", 64)


@pytest.fixture
def source(fixture_checkpoint: FixtureCheckpoints) -> FixtureCheckpoint:
    return fixture_checkpoint("a_p3_thr0")


@pytest.fixture
def started(source: FixtureCheckpoint, tmp_path: Path, small_inline: None) -> Iterator[Started]:
    found = drained(source, str(tmp_path / "out"))
    yield found
    found[0].close()
