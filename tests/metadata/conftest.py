"""Every test here runs on SQLite and on a real PostgreSQL, each on a database of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdr_core.metadata import Repository, upgrade
from tests.support.postgres import Postgres, database_of


@pytest.fixture(scope="session")
def migrated_postgres(postgres: Postgres) -> str:
    """Name of a database with the schema, to make others from: faster than migrating each."""
    url = postgres.create()
    upgrade(url)
    return database_of(url)


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "cdr.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without a schema."""
    if backend == "sqlite":
        yield f"sqlite:///{tmp_path / 'cdr.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = server.create()
    yield url
    server.drop(url)


@pytest.fixture
def url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database with the schema and nothing in it."""
    if backend == "sqlite":
        path = shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path / "cdr.db")
        yield f"sqlite:///{path}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = server.create(request.getfixturevalue("migrated_postgres"))
    yield url
    server.drop(url)


@pytest.fixture
def repository(url: str) -> Iterator[Repository]:
    with Repository.open(url) as repository:
        yield repository
