"""Tests against a real Flink. ``make test`` runs a sample of them, ``make test-flink`` all."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.flink.harness import FlinkUnavailable, install
from tests.flink.harness.java import NEWEST, compiled
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.relocate import relocate

ALL = os.environ.get("FLINK_TESTS") == "all"

SECONDS = 1500
"""Of a test, where all run: some start Flink six times, one JVM at a time, on cores that others may need as well. A JVM
has a time limit of its own (``harness/job.py``).
"""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: runs in make test-flink only")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if ALL:
            item.add_marker(pytest.mark.timeout(SECONDS))
        elif item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="make test-flink runs it"))


@pytest.fixture(scope="session")
def flink() -> str:
    """The newest Flink, ready to run. Where it cannot be had, the sample is skipped and says why; all of it fails."""
    try:
        install(NEWEST)
        compiled(NEWEST)
    except FlinkUnavailable as reason:
        if ALL:
            raise
        pytest.skip(str(reason))
    return NEWEST


@pytest.fixture(scope="session")
def fixture_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FixtureCheckpoints]:
    """As everywhere else, with absolute paths put right: Flink finds no file that was moved."""
    checkpoints = FixtureCheckpoints(tmp_path_factory.mktemp("checkpoints"), prepare=relocate)
    yield checkpoints
    changed = checkpoints.changed()
    assert not changed, f"a test has changed the shipped checkpoint {', '.join(changed)}"
