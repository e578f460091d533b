"""Every rule of publishing is tested on every kind of target."""

from __future__ import annotations

from pathlib import Path

import pytest

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
