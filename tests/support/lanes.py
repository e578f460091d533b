"""What a test needs, as markers: they follow from the fixtures that it uses and from the helpers that its file imports.

The start of every service asks :func:`require`, so that a test without the marker fails instead of slowing down or
breaking a lane that leaves the marker out.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).resolve().parents[1]

OF_FIXTURE: Mapping[str, tuple[str, ...]] = {
    "_s3": ("s3",),
    "browser": ("browser",),
    "cluster": ("spark",),
    "flink": ("flink",),
    "installed": ("soak", "spark"),
    "live": ("airflow", "spark"),
    "own_postgres": ("postgres",),
    "own_server": ("spark",),
    "page": ("airflow", "phases"),
    "postgres": ("postgres",),
    "recovered": ("phases",),
    "rehearsal": ("phases",),
    "server": ("spark",),
    "spilled": ("phases",),
    "stage": ("airflow", "spark"),
    "started": ("phases",),
    "warm_home": ("spark",),
}
"""Fixtures start these; a test that uses one of them through another fixture counts as well."""

OF_FOLDER: Mapping[str, tuple[str, ...]] = {
    "airflow": ("airflow",),
    "docker": ("tools",),
    "mutants": ("tools",),
    "page": ("airflow",),
    "project": ("tools",),
}
"""A test below this folder of the tests imports Airflow at least, or runs the project's own scripts."""

DURATIONS = tomllib.loads((TESTS / "slow.toml").read_text())

THOROUGH: Collection[str] = frozenset(DURATIONS["thorough"])
"""These tests take more than a second."""

KEPT: Mapping[str, Collection[str]] = DURATIONS["keep"]
"""Of these parametrised tests all cases are slow but those."""

OF_HELPER: Mapping[str, tuple[str, ...]] = {"tests.support.inline": ("phases",)}
"""A file that imports one of these modules, itself or through another module of the tests, starts these."""

_running: list[frozenset[str]] = []
"""The markers of the test that runs; empty outside of tests."""


def mark(items: Iterable[pytest.Item]) -> None:
    """Add the markers that follow; those that a file or a test carries already stay."""
    helpers: dict[str, frozenset[str]] = {}
    for item in items:
        assert isinstance(item, pytest.Function)
        found = set(_of_module(item.module, helpers))
        found.update(OF_FOLDER.get(item.path.relative_to(TESTS).parts[0], ()))
        found.update(*(OF_FIXTURE.get(name, ()) for name in item.fixturenames))
        test, _, case = item.nodeid.removeprefix("tests/").partition("[")
        if test in KEPT and case.removesuffix("]") not in KEPT[test]:
            found.add("slow")
        if test in THOROUGH:
            found.add("thorough")
        if "soak" in found or item.get_closest_marker("soak"):
            found.add("slow")
        for name in sorted(found):
            item.add_marker(name)


def _of_module(module: ModuleType, known: dict[str, frozenset[str]]) -> frozenset[str]:
    """The markers of the helpers that a module of the tests imports."""
    if module.__name__ in known:
        return known[module.__name__]
    known[module.__name__] = frozenset(OF_HELPER.get(module.__name__, ()))  # ends a circle of imports
    found = set(known[module.__name__])
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str) and name.startswith("tests.") and name in sys.modules:
            found |= _of_module(sys.modules[name], known)
    known[module.__name__] = frozenset(found)
    return known[module.__name__]


def enter(item: pytest.Item) -> None:
    """Tell :func:`require` which test runs."""
    _running[:] = [frozenset(marker.name for marker in item.iter_markers())]


def leave() -> None:
    """No test runs."""
    _running.clear()


def require(marker: str) -> None:
    """Raise ``AssertionError`` in a test without this marker. Outside of tests everything may start."""
    if _running and marker not in _running[0]:
        raise AssertionError(
            f"this test starts what only tests marked {marker!r} may start: use the fixture that brings the marker "
            "(tests/support/lanes.py), or give the test or its file the marker"
        )
