"""Asset events: one per publication, whatever is retried, cleared or triggered again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdr_airflow import recoveries
from cdr_airflow.assets import RECOVERED, Publication, announce, asset_for
from cdr_core.metadata import Phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints

PUBLISHED = Publication("r-1", 1, "parquet:/out", "/out/_cdr/manifest-1.json", "ab" * 32)


class Events(list[Any]):
    """What Airflow's accessor of earlier events offers of it."""

    def ascending(self, way: bool) -> Events:
        return self if way else Events(reversed(self))

    def limit(self, most: int) -> Events:
        return Events(self[:most])


class Outlet:
    """What Airflow's accessor of an outlet's events offers; as if the task succeeded at once."""

    def __init__(self, events: Events) -> None:
        self.events = events

    def add(self, asset: Any, extra: dict[str, Any]) -> None:
        self.events.append(SimpleNamespace(asset=asset, extra=extra))


@pytest.fixture
def context() -> Any:
    events = Events([SimpleNamespace(extra={}), SimpleNamespace(extra={"recovery": "r-0", "commit_id": 1})])
    return {"inlet_events": {RECOVERED: events}, "outlet_events": {RECOVERED: Outlet(events)}}


def test_a_publication_is_announced_once(context: Any) -> None:
    assert announce(context, PUBLISHED)
    assert not announce(context, PUBLISHED)
    (event,) = [event for event in context["inlet_events"][RECOVERED] if event.extra.get("recovery") == "r-1"]
    assert event.asset.uri == "file:///out"
    assert event.extra["proof_sha256"] == PUBLISHED.proof_sha256


def test_another_recovery_to_the_same_target_is_news(context: Any) -> None:
    assert announce(context, PUBLISHED)
    assert announce(context, Publication("r-2", 1, "parquet:/out", "", ""))


@pytest.mark.parametrize(
    ("target", "uri"),
    [
        ("parquet:/data/out", "file:///data/out"),
        ("parquet:s3://lake/recovered/out", "s3://lake/recovered/out"),
        ("parquet:/with space/ö", "file:///with%20space/%C3%B6"),
        ("checkpoint:/chk/new", "file:///chk/new"),
        ("iceberg:lake/db.rows", "iceberg://lake/db.rows"),
        ("paimon:/warehouse/db.rows", "paimon://warehouse/db.rows"),
        ("paimon:s3://lake/warehouse/db.rows", "paimon+s3://lake/warehouse/db.rows"),
    ],
)
def test_each_target_has_an_asset_that_airflow_takes(target: str, uri: str) -> None:
    assert asset_for(target).uri == uri


def test_only_a_commit_log_that_is_done_is_a_publication(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    source, target = fixture_checkpoint("a_p3_thr0", 2), f"parquet:{tmp_path / 'out'}"
    request = RecoveryRequest(checkpoint=str(source.path), spec=str(source.spec), parallelism="2", to=target)
    repository, recovery, settings = inline.start(request)
    with repository:
        for phase in Phase:
            assert recoveries.publication(recovery) is None
            inline.run(repository, recovery, phase, settings)
        published = recoveries.publication(recovery)
        assert published is not None
        assert (published.recovery, published.target) == (recovery, target)
        assert published.proof_sha256 == (repository.receipt(recovery) or {})["proof_sha256"]
