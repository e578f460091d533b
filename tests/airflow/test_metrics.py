"""Metrics as a backend of Airflow's ``stats`` receives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.sdk.observability import stats

from cdr_airflow import metrics


class Backend:
    """What StatsD or OpenTelemetry would be told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any, dict[str, str]]] = []

    def incr(self, stat: str, count: int = 1, rate: float = 1, *, tags: dict[str, str] | None = None) -> None:
        self.told.append((stat, count, tags or {}))

    def timing(self, stat: str, dt: Any, *, tags: dict[str, str] | None = None) -> None:
        self.told.append((stat, dt.total_seconds(), tags or {}))

    def gauge(self, stat: str, value: float, rate: float = 1, **more: Any) -> None:
        self.told.append((stat, value, more["tags"]))

    def of(self, name: str) -> list[tuple[Any, dict[str, str]]]:
        return [(value, labels) for stat, value, labels in self.told if stat == name]


@pytest.fixture
def backend() -> Iterator[Backend]:
    found = Backend()
    made: Any = found  # as far as the plugin uses one
    stats.initialize(factory=lambda: made, export_legacy_names=False)
    yield found
    stats.initialize(factory=NoStatsLogger, export_legacy_names=False)


def test_a_phase_is_counted_and_timed_with_its_outcome(backend: Backend) -> None:
    metrics.phase_ended("spill", metrics.DONE, 1.5, dag="cdr_recover")
    labels = {"phase": "spill", "dag_id": "cdr_recover", "outcome": "done"}
    assert backend.of("cdr.phase.ended") == [(1, labels)]
    assert backend.of("cdr.phase.duration") == [(1.5, labels)]
    assert backend.of("cdr.failures") == []


def test_what_was_recovered_is_counted_by_the_commit_that_published_it_and_not_by_one_that_found_it_done(
    backend: Backend,
) -> None:
    result = {"records": 1878, "bytes": 300_000}
    for phase, outcome in (("drain", metrics.DONE), ("commit", metrics.DONE), ("commit", metrics.STORED)):
        metrics.phase_ended(phase, outcome, 1.0, dag="cdr_recover", result=result)
    assert backend.of("cdr.recovered.records") == [(1878, {"dag_id": "cdr_recover"})]
    assert backend.of("cdr.recovered.bytes") == [(300_000, {"dag_id": "cdr_recover"})]


def test_failures_are_told_apart_by_their_class_and_fenced_ones_have_a_counter(backend: Backend) -> None:
    metrics.phase_ended("drain", "DiskFull", 1.0)
    metrics.phase_ended("drain", "Fenced", 1.0)
    assert [labels["error"] for _, labels in backend.of("cdr.failures")] == ["DiskFull", "Fenced"]
    assert backend.of("cdr.fenced") == [(1, {"phase": "drain"})]


def test_a_drill_tells_its_result_and_only_the_times_it_knows(backend: Backend) -> None:
    metrics.drill_ended("PASSED", "nightly", 12.5, 300.0)
    metrics.drill_ended("COULD_NOT_RUN", "nightly", None, None)
    assert [labels["result"] for _, labels in backend.of("cdr.drill.ended")] == ["PASSED", "COULD_NOT_RUN"]
    assert backend.of("cdr.drill.rto") == [(12.5, {"plan": "nightly"})]
    assert backend.of("cdr.drill.rpo") == [(300.0, {"plan": "nightly"})]


def test_a_backend_that_fails_does_not_fail_the_recovery(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(Backend, "incr", broken)
    metrics.deadline_missed("cdr_recover")
    assert "could not be sent" in caplog.text
