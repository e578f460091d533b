"""Tests against a real Flink. ``make test`` runs those that are not slow, ``make test-flink`` all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flink.harness import FlinkUnavailable, install
from tests.flink.harness.java import NEWEST, compiled
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.relocate import relocate

SECONDS = 1500
"""Of a test: some start Flink six times, one JVM at a time, on cores that others may need as well. A JVM has a time
limit of its own (``harness/job.py``).
"""
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def flink(request: pytest.FixtureRequest) -> str:
    """The newest Flink, ready to run. Where it cannot be had, tests are skipped and say why; where all of them were
    asked for, they fail.
    """
    try:
        install(NEWEST)
        compiled(NEWEST)
    except FlinkUnavailable as reason:
        chosen = (item for item in request.session.items if item.get_closest_marker("flink"))
        if any(item.get_closest_marker("slow") for item in chosen):
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
