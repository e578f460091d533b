"""Tables of others: what a recovery cannot be appended to is refused by name, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError

from cdr_core.commit.publish_once import publish_once
from cdr_core.errors import InDoubt, Refused, Unreadable
from cdr_core.recovery.recovery_request import RecoveryRequest, check
from cdr_core.settings import load
from cdr_core.storage import s3
from tests.commit.conftest import make_target
from tests.commit.log import Log
from tests.commit.targets import SCHEMA, Target, prepare, publication
from tests.support import inline
from tests.support.bucket import Bucket
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.sinks import sink_of

TABLES = pytest.mark.parametrize("empty_target", ["iceberg", "paimon"], indirect=True)


@TABLES
@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"who": pa.string()}, "has no column pos"),
        ({"who": pa.string(), "pos": pa.int64(), "more": pa.int32()}, "has a column more"),
        ({"who": pa.string(), "pos": pa.string()}, "column pos of type string instead of int64"),
    ],
)
def test_a_table_with_other_columns_is_refused_and_the_column_is_named(
    empty_target: Target, columns: dict[str, pa.DataType], said: str
) -> None:
    sink = sink_of(empty_target.name)
    sink.create(pa.schema(list(columns.items())))
    for refuse in (sink.refuse_early, sink.create):
        with pytest.raises(Refused, match=f"table db.rows {'.*' if said.startswith('column') else ''}{said}"):
            refuse(SCHEMA)
    sink.refuse_early()


@pytest.mark.parametrize(
    "content", ["", "not json", "[]", "{}", '{"version": 1, "files": []}', '{"version": 1, "files": [{}]}']
)
def test_what_lies_in_a_manifests_place_and_is_none_is_unreadable_and_named(
    tmp_path: Path, fixture_checkpoint: FixtureCheckpoints, content: str
) -> None:
    """Nothing is begun: whose records the table holds cannot be told any more."""
    manifest = tmp_path / "out" / "_cdr" / "manifest-1.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(content)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path}/out")
    with pytest.raises(Unreadable, match=r"manifest-1\.json is no manifest"):
        inline.start(request)
    assert manifest.read_text() == content


def test_files_with_names_like_a_manifests_are_nobodys(tmp_path: Path) -> None:
    directory = tmp_path / "out" / "_cdr"
    directory.mkdir(parents=True)
    for name in ("old-manifest-3.json", "manifest-007.json", "manifest-2.json.tmp", "manifest-0.json"):
        (directory / name).write_text("somebody's")
    target = f"parquet:{tmp_path}/out"
    published, _ = publish_once(sink_of(target), "me", 1, publication("me", prepare(target, "a", [4, 5], "me")), Log())
    assert published.location.endswith("/_cdr/manifest-1.json")


@pytest.mark.parametrize("empty_target", ["iceberg"], indirect=True)
def test_a_damaged_list_of_manifests_is_unreadable_before_anything_runs_and_before_a_publication(
    empty_target: Target, tmp_path: Path
) -> None:
    """pyiceberg would read beyond its end, and the driver would be gone without a word."""
    name = empty_target.name
    sink_of(name).create(SCHEMA)
    publish_once(sink_of(name), "me", 1, publication("me", prepare(name, "a", [4, 5], "me")), Log())
    sink = sink_of(name)
    base, more = sink.look_up("me").base, publication("me", prepare(name, "b", [6], "me"), commit_id=2)
    (listed,) = tmp_path.rglob("snap-*.avro")
    listed.write_bytes(listed.read_bytes()[:-30])
    for act in (sink.refuse_early, lambda: sink.publish(base, more)):
        with pytest.raises(Unreadable, match=f"{listed.name} is no list of manifests"):
            act()
    assert sink.look_up("me").base == base


@TABLES
def test_a_table_that_cannot_hold_a_null_of_ours_is_refused(empty_target: Target) -> None:
    sink = sink_of(empty_target.name)
    sink.create(SCHEMA)
    with pytest.raises(Refused, match="column pos as not null"):
        sink.refuse_early(pa.schema([SCHEMA.field("who"), pa.field("pos", pa.int64())]))


@TABLES
def test_a_table_with_the_columns_in_another_order_is_as_good(empty_target: Target) -> None:
    sink = sink_of(empty_target.name)
    sink.create(pa.schema([SCHEMA.field("pos"), SCHEMA.field("who")]))
    sink.refuse_early(SCHEMA)
    publish_once(sink, "me", 1, publication("me", prepare(empty_target.name, "a", [4, 5], "me")), Log())
    assert sorted((row["who"], row["pos"]) for row in empty_target.rows()) == [("me", 4), ("me", 5)]


@pytest.mark.seed("004-18")
@TABLES
def test_a_request_to_a_table_of_another_job_is_refused_before_anything_is_made(
    empty_target: Target, fixture_checkpoint: FixtureCheckpoints
) -> None:
    sink_of(empty_target.name).create(SCHEMA)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", empty_target.name)
    with pytest.raises(Refused, match=r"table db\.rows has no column exchange"):
        check(request, load())


@pytest.mark.seed("004-15", "004-18")
@pytest.mark.parametrize(
    ("keys", "options", "said"),
    [
        ({"primary_keys": ["pos"]}, {"bucket": "1"}, "has a primary key"),
        ({"partition_keys": ["who"]}, {}, "is partitioned"),
        ({}, {"bucket": "4", "bucket-key": "pos"}, "has 4 buckets"),
        ({}, {"file.format": "orc"}, "keeps its files as orc"),
        ({}, {"row-tracking.enabled": "true"}, "row-tracking.enabled"),
    ],
)
def test_a_paimon_table_of_another_kind_is_refused_by_name(
    tmp_path: Path, keys: dict[str, Any], options: dict[str, str], said: str
) -> None:
    """With a primary key a commit in doubt would ask for writers that start anew; there are none."""
    from pypaimon import CatalogFactory, Schema

    catalog = CatalogFactory.create({"warehouse": str(tmp_path)})
    catalog.create_database("db", True)
    catalog.create_table("db.rows", Schema.from_pyarrow_schema(SCHEMA, options=options, **keys), False)
    with pytest.raises(Refused, match=f"table db.rows .*{said}"):
        sink_of(f"paimon:{tmp_path}/db.rows").refuse_early(SCHEMA)


def test_a_partitioned_iceberg_table_is_refused_by_name(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    target: Any = make_target("iceberg", tmp_path, request)
    sink_of(target.name).create(SCHEMA)
    with target.table().update_spec() as update:
        update.add_identity("who")
    with pytest.raises(Refused, match=r"table db\.rows is partitioned"):
        sink_of(target.name).refuse_early(SCHEMA)


def test_a_catalog_that_nobody_configured_is_refused_with_the_way_to_do_it() -> None:
    with pytest.raises(Refused, match=r"knows no catalog 'ocean'.*PYICEBERG_CATALOG__OCEAN__URI"):
        sink_of("iceberg:ocean/db.rows").refuse_early(SCHEMA)


@pytest.mark.parametrize("empty_target", ["parquet", "paimon"], indirect=True)
def test_a_place_that_cannot_be_written_is_refused(
    empty_target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "mkdir", _denied)
    with pytest.raises(Refused, match="cannot be written"):
        sink_of(empty_target.name).refuse_early(SCHEMA)


def _denied(*_: Any, **__: Any) -> None:
    raise PermissionError(13, "Permission denied")


def test_a_bucket_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' server makes buckets as they are named, others do not."""

    class Strict:
        def put_object(self, **_: Any) -> Any:
            raise ClientError({"Error": {"Code": "NoSuchBucket"}}, "PutObject")

    monkeypatch.setattr(s3, "_client", lambda _endpoint: Strict())
    with pytest.raises(Refused, match="cannot be written"):
        sink_of("parquet:s3://no-such-bucket/out").refuse_early(SCHEMA)


def test_a_server_that_lets_a_name_be_taken_twice_is_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two committers could both publish there and be told that they did."""

    class Careless:
        def __getattr__(self, name: str) -> Any:
            return getattr(bucket.client, name)

        def put_object(self, *, IfNoneMatch: str = "", **arguments: Any) -> Any:
            return bucket.client.put_object(**arguments)

    monkeypatch.setattr(s3, "_client", lambda _endpoint: Careless())
    with pytest.raises(Refused, match="ignores If-None-Match"):
        sink_of(f"parquet:{bucket.uri()}").refuse_early(SCHEMA)


@pytest.mark.seed("E49")
def test_an_iceberg_publication_that_was_rolled_back_is_in_doubt(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    target: Any = make_target("iceberg", tmp_path, request)
    sink = sink_of(target.name)
    sink.create(SCHEMA)
    target.foreign()
    first = target.table().current_snapshot().snapshot_id
    publish_once(sink, "me", 1, publication("me", prepare(target.name, "a", [1], "me")), Log())
    with target.table().manage_snapshots() as change:
        change.rollback_to_snapshot(first)
    with pytest.raises(InDoubt, match="rolled back"):
        publish_once(sink, "me", 1, publication("me"), Log())


@pytest.mark.seed("E49")
@TABLES
def test_an_intent_on_a_table_that_was_made_anew_is_in_doubt(empty_target: Any, tmp_path: Path) -> None:
    """Whether the old table held the commit is nowhere to be read any more."""
    import shutil

    sink, log = sink_of(empty_target.name), Log()
    sink.create(SCHEMA)
    empty_target.foreign()
    log.intend(sink.look_up("me").base)
    if "iceberg" in empty_target.name:
        empty_target.table().catalog.drop_table("db.rows")
    else:
        shutil.rmtree(tmp_path / "warehouse")
    sink.create(SCHEMA)
    with pytest.raises(InDoubt) as caught:
        publish_once(sink, "me", 1, publication("me"), log)
    # A recovery that was never recorded as published has no receipt, so nobody is sent to one.
    assert "cdr verify --source" in caught.value.hint
    assert "receipt" not in caught.value.hint
