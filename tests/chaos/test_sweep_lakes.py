"""What killed tasks left in a table of Iceberg or Paimon: removed when the recovery is over, and nothing else is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdr_core.metadata import Phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.sweep import sweep
from tests.chaos.leftovers import Case
from tests.support import inline
from tests.support.bucket import NAME, Bucket
from tests.support.checkpoints import FixtureCheckpoints


@pytest.fixture(params=["iceberg", "paimon"])
def lake(
    request: pytest.FixtureRequest,
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Case]:
    """A recovery into a table of which only a library knows what is in it."""
    monkeypatch.setenv("PYICEBERG_CATALOG__SWEPT__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__SWEPT__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__SWEPT__WAREHOUSE", f"file://{tmp_path}/out")
    target = "iceberg:swept/db.t" if request.param == "iceberg" else f"paimon:{tmp_path}/out/db.t"
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    repository, recovery_id, settings = inline.start(
        RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", target)
    )
    yield Case(repository, recovery_id, settings, tmp_path)
    repository.close()


def data_files(case: Case) -> set[Path]:
    return set((case.root / "out").rglob("*.parquet"))


@pytest.mark.seed("E35", "E36")
def test_unpublished_files_in_a_table_go_when_the_recovery_is_over(lake: Case) -> None:
    """Killed tasks leave data files that no snapshot lists; commit removes them, a sweep what comes later."""
    lake.run_before(Phase.DRAIN)
    lake.die(Phase.DRAIN, "drain.before-result")
    orphans = data_files(lake)
    assert orphans
    lake.run(Phase.DRAIN)
    assert orphans < data_files(lake)
    lake.run(Phase.COMMIT)
    published = data_files(lake)
    assert published
    assert not published & orphans
    late = next(iter(orphans))
    strange = late.with_name("part-of-somebody.parquet")
    for path in (late, strange):
        path.write_bytes(b"rows")
    assert sweep(lake.repository, lake.settings, dry_run=True).removed == 0
    report = sweep(lake.repository, lake.settings)
    assert late in {Path(leftover.path) for leftover in report.leftovers if leftover.removed}
    assert data_files(lake) == {*published, strange}


def test_files_that_a_snapshot_lists_stay_though_the_rows_are_lost(lake: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.run_from(Phase.READ)
    published = data_files(lake)
    monkeypatch.setattr(type(lake.repository), "prepared", lambda *_: ())
    assert not [left for left in sweep(lake.repository, lake.settings).leftovers if left.path.endswith(".parquet")]
    assert data_files(lake) == published
    # Nor does anything go when what a snapshot lists cannot be read.
    for manifest in (lake.root / "out").rglob("*manifest*/*" if "paimon" in lake.recovery.target else "*-m0.avro"):
        manifest.write_bytes(manifest.read_bytes()[:-9])
    report = sweep(lake.repository, lake.settings)
    assert data_files(lake) == published
    assert any("what it lists cannot be told" in left.why for left in report.left)


@pytest.mark.parametrize("kind", ["iceberg", "paimon"])
def test_in_a_warehouse_on_s3_the_same_goes_and_the_same_stays(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket, kind: str
) -> None:
    warehouse, checkpoint = bucket.uri(), fixture_checkpoint("a_p3_thr0", 2)
    monkeypatch.setenv("PYICEBERG_CATALOG__SWEPT__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__SWEPT__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__SWEPT__WAREHOUSE", warehouse)
    target = "iceberg:swept/db.t" if kind == "iceberg" else f"paimon:{warehouse}/db.t"
    repository, recovery, settings = inline.start(
        RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", target)
    )
    inline.run_all(repository, recovery, settings)
    published = {f"s3://{NAME}/{key}" for key in bucket.keys(warehouse) if key.endswith(".parquet")}
    place, _, name = next(iter(published)).rpartition("/")
    late, strange = f"{place}/{re.sub(r'e[0-9]+-0', 'e1-0', name, count=1)}", f"{place}/part-of-somebody.parquet"
    assert late not in published
    for uri in (late, strange):
        bucket.put(uri, b"rows")
    report = sweep(repository, settings)
    assert [left.path for left in report.leftovers if left.removed and left.path.endswith(".parquet")] == [late]
    there = {f"s3://{NAME}/{key}" for key in bucket.keys(warehouse) if key.endswith(".parquet")}
    assert there == {*published, strange}
    repository.close()
