"""Real targets of every kind, seen as their users see them: rows, other committers, snapshots that expire."""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdr_core.commit.committable import PreparedFile
from cdr_core.commit.sinks import Publication, Published
from tests.support.bucket import Bucket
from tests.support.s3 import ACCESS_KEY, SECRET_KEY
from tests.support.sinks import sink_of

SCHEMA = pa.schema([pa.field("who", pa.string(), nullable=False), pa.field("pos", pa.int64(), nullable=False)])
FOREIGN = "somebody else"
KINDS = ("parquet", "s3", "iceberg", "paimon", "paimon-s3")
SERVICES = {
    "s3": pytest.mark.s3,
    "paimon-s3": pytest.mark.s3,
    "iceberg-postgresql": pytest.mark.postgres,
}


def kinds(*names: str, also: tuple[Any, ...] = ()) -> list[Any]:
    """Parameters for these kinds of target, or for all of them, with the markers of the services that they need."""
    return [pytest.param(name, *also, marks=SERVICES.get(name, ())) for name in names or KINDS]


class Target(Protocol):
    """A place to publish to, on which nothing was published yet."""

    name: str

    def rows(self) -> list[dict[str, Any]]:
        """What a reader sees, by the format's own means."""

    def commits(self) -> int:
        """How many publications are in the target's history."""

    def properties(self) -> dict[str, str]:
        """Those of the newest publication."""

    def foreign(self) -> None:
        """Somebody else appends a row, without cdr where the format has writers of its own."""

    def forget(self) -> None:
        """All history but the newest state goes, as expiry does it."""


class ParquetTarget:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "out"
        self.name = f"parquet:{self._folder}"

    def _manifests(self) -> list[Path]:
        found = self._folder.glob("_cdr/manifest-*.json")
        return sorted(found, key=lambda path: int(path.stem.split("-")[1]))

    def rows(self) -> list[dict[str, Any]]:
        manifests = self._manifests()
        files = json.loads(manifests[-1].read_text())["files"] if manifests else []
        return [row for file in files for row in pq.read_table(self._folder / file["path"]).to_pylist()]

    def commits(self) -> int:
        return len(self._manifests())

    def properties(self) -> dict[str, str]:
        return dict(json.loads(self._manifests()[-1].read_text())["properties"])

    def foreign(self) -> None:
        append_by_cdr(self.name, FOREIGN)

    def forget(self) -> None:
        for path in self._manifests()[:-1]:
            path.unlink()


class S3Target:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._uri = bucket, bucket.uri()
        self.name = f"parquet:{self._uri}"

    def _manifests(self) -> list[str]:
        found = [key for key in self._bucket.keys(self._uri) if "/_cdr/manifest-" in key]
        keys = sorted(found, key=lambda key: int(key.rpartition("-")[2].removesuffix(".json")))
        return [f"{self._uri.rpartition('/')[0]}/{key}" for key in keys]

    def rows(self) -> list[dict[str, Any]]:
        manifests = self._manifests()
        files = json.loads(self._bucket.get(manifests[-1]))["files"] if manifests else []
        found = [pa.BufferReader(self._bucket.get(f"{self._uri}/{file['path']}")) for file in files]
        return [row for data in found for row in pq.read_table(data).to_pylist()]

    def commits(self) -> int:
        return len(self._manifests())

    def properties(self) -> dict[str, str]:
        return dict(json.loads(self._bucket.get(self._manifests()[-1]))["properties"])

    def foreign(self) -> None:
        append_by_cdr(self.name, FOREIGN)

    def forget(self) -> None:
        for uri in self._manifests()[:-1]:
            self._bucket.delete(uri)


class IcebergTarget:
    """A catalog by the name of ``lake``, configured by the environment as a user would."""

    def __init__(self, folder: Path, uri: str = "") -> None:
        uri = uri or f"sqlite:///{folder / 'lake.db'}"
        self._properties = {"type": "sql", "uri": uri, "warehouse": f"file://{folder / 'lake'}"}
        self.environment = {f"PYICEBERG_CATALOG__LAKE__{k.upper()}": v for k, v in self._properties.items()}
        self.name = "iceberg:lake/db.rows"

    @cached_property
    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("lake", **self._properties)

    def table(self) -> Any:
        return self._catalog.load_table("db.rows")

    def close(self) -> None:
        """Connections to a server that is about to end."""
        sink: Any = sink_of(self.name)
        sink._catalog.close()
        self._catalog.close()

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table().scan().to_arrow().to_pylist()
        return rows

    def commits(self) -> int:
        return len(self.table().metadata.snapshots)

    def properties(self) -> dict[str, str]:
        return dict(self.table().current_snapshot().summary.additional_properties)

    def foreign(self) -> None:
        table = self.table()
        table.append(pa.table({"who": [FOREIGN], "pos": [0]}, schema=SCHEMA))

    def forget(self) -> None:
        table = self.table()
        current = table.current_snapshot().snapshot_id
        with table.maintenance.expire_snapshots() as expiry:
            expiry.by_ids([each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id != current])


class PaimonTarget:
    def __init__(self, folder: Path) -> None:
        self._warehouse: Any = folder / "warehouse"
        self.name = f"paimon:{self._warehouse}/db.rows"

    def options(self) -> dict[str, str]:
        return {"warehouse": str(self._warehouse)}

    def table(self) -> Any:
        from pypaimon import CatalogFactory

        return CatalogFactory.create(self.options()).get_table("db.rows")

    def rows(self) -> list[dict[str, Any]]:
        builder = self.table().new_read_builder()
        found = builder.new_read().to_arrow(builder.new_scan().plan().splits())
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows

    def commits(self) -> int:
        return len(self.table().snapshot_manager().list_snapshots())

    def properties(self) -> dict[str, str]:
        return dict(self.table().snapshot_manager().get_latest_snapshot().properties)

    def foreign(self) -> None:
        append_by_pypaimon(self.table(), FOREIGN, 0)

    def forget(self) -> None:
        snapshots = self.table().snapshot_manager().list_snapshots()
        for snapshot in snapshots[:-1]:
            self._remove(f"{self._warehouse}/db.db/rows/snapshot/snapshot-{snapshot.id}")

    def _remove(self, uri: str) -> None:
        Path(uri).unlink()


class PaimonS3Target(PaimonTarget):
    """As its other readers reach it, with options that they were told and cdr was not."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._warehouse = bucket, bucket.uri()
        self.name = f"paimon:{self._warehouse}/db.rows"

    def options(self) -> dict[str, str]:
        key, secret = {"s3.access-key": ACCESS_KEY}, {"s3.secret-key": SECRET_KEY}
        where = {"s3.endpoint": self._bucket.endpoint, "s3.region": "us-east-1", "s3.path-style-access": "true"}
        return super().options() | where | key | secret

    def _remove(self, uri: str) -> None:
        self._bucket.delete(uri)


def append_by_pypaimon(table: Any, who: str, pos: int) -> None:
    """By the library as it comes."""
    builder = table.new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    write.write_arrow(pa.table({"who": [who], "pos": [pos]}, schema=SCHEMA))
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()


def prepare(target: str, name: str, positions: list[int], who: str = "") -> PreparedFile:
    """A prepared file of a small table, written as an executor does it."""
    batch = pa.record_batch({"who": [who or name] * len(positions), "pos": positions}, schema=SCHEMA)
    with sink_of(target).writer(name, SCHEMA) as writer:
        writer.write(batch)
    assert writer.prepared is not None
    return writer.prepared


def publication(user: str, *files: PreparedFile, commit_id: int = 1, **more: str) -> Publication:
    """``more``: further properties, such as ``proof_sha256``."""
    given = {f"cdr.{name.replace('_', '-')}": value for name, value in more.items()}
    return Publication(files, {"cdr.commit-user": user, "cdr.commit-id": str(commit_id), "cdr.recovery": "r", **given})


def append_by_cdr(target: str, user: str) -> Published:
    sink = sink_of(target)
    file = prepare(target, f"{user.replace(' ', '-')}/{os.urandom(4).hex()}", [0], user)
    return sink.publish(sink.look_up(user).base, publication(user, file))
