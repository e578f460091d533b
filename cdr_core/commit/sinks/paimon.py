"""``paimon:WAREHOUSE/db.table``, on disks or S3, through pypaimon: append tables without buckets only.

Executors write one Parquet file each into the table's only bucket; the driver turns them into one snapshot. What
pypaimon does not do is done here: finding an earlier commit, looking at files before they are published, a publication
that cannot replace another one (see ``paimon_snapshot``), and reading back what was published. Nothing is ever aborted:
that would delete files of a commit that may have succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema
from pypaimon.catalog.catalog_exception import DatabaseNotExistException, TableNotExistException
from pypaimon.data.timestamp import Timestamp
from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.manifest.schema.data_file_meta import DataFileMeta
from pypaimon.manifest.schema.simple_stats import SimpleStats
from pypaimon.schema.data_types import PyarrowFieldParser
from pypaimon.table.bucket_mode import BucketMode
from pypaimon.table.row.generic_row import GenericRow
from pypaimon.utils.file_store_path_factory import canonical_data_file_path
from pypaimon.write.commit_message import CommitMessage
from pypaimon.write.file_store_commit import FileStoreCommit

from cdr_core.commit.committable import PreparedFile
from cdr_core.commit.sinks.base import (
    COMMIT_ID,
    COMMIT_USER,
    PROOF,
    ROW_GROUP_BYTES,
    WATERMARK,
    LookUp,
    MetadataFile,
    Publication,
    Published,
    by_others,
)
from cdr_core.commit.sinks.error_translation import explained
from cdr_core.commit.sinks.paimon_snapshot import NO_SNAPSHOT, ExclusiveSnapshotCommit, own_files, token
from cdr_core.commit.sinks.parquet import place_for
from cdr_core.commit.sinks.prepared_files import ParquetFileWriter, parquet_writer, require_files
from cdr_core.commit.sinks.schemas import difference
from cdr_core.errors import CommitConflict, CommitUnknown, Refused, StorageError
from cdr_core.storage import canonical, is_local, storage_for
from cdr_core.storage.local import local_path
from cdr_core.storage.s3_access import paimon_options

ABSENT = "absent"
"""The base when there is no table."""

BUCKET = 0
"""Where Paimon keeps the files of a table without buckets."""

_CHECK = "check the warehouse"
_CREATE = {"bucket": "-1", "file.format": "parquet"}
_PUBLISH = {"commit.max-retries": "0", "snapshot.ignore-empty-commit": "false"}
"""One try on one base: the library's own would go on with a refreshed one. A commit without files is a commit."""

_UNFIT = ("row-tracking.enabled", "data-evolution.enabled", "data-file.external-paths", "data-file.path-directory")
"""Options of tables whose files pypaimon's writers would have to write."""


class PaimonSink:
    """See :class:`cdr_core.commit.sinks.base.Sink`. A base is the number and uuid of the latest snapshot."""

    stores = True

    def __init__(self, address: str) -> None:
        self._address = address
        scheme, away, place = canonical(address).rpartition("://")
        warehouse, _, self._name = place.rpartition("/")
        if not warehouse or self._name.count(".") != 1 or "$" in self._name or not all(self._name.split(".")):
            raise Refused(f"target paimon:{address} is not paimon:WAREHOUSE/db.table", hint="correct the target")
        self._warehouse = scheme + away + warehouse
        storage_for(self._warehouse)  # refuses what neither cdr nor the library can reach
        self._place = place_for(self._warehouse)

    def _catalog(self) -> Any:
        return CatalogFactory.create(paimon_options(self._warehouse))

    def _table(self) -> Any:
        """As it is now, or ``None``."""
        with explained(f"load table {self._name}", _CHECK):
            try:
                return self._catalog().get_table(self._name)
            except (DatabaseNotExistException, TableNotExistException):
                return None

    def _table_if_any(self) -> Any:
        """As :meth:`_table`; a warehouse that is not there is not made."""
        absent = is_local(self._warehouse) and not local_path(self._warehouse).is_dir()
        return None if absent else self._table()

    def columns(self) -> list[str] | None:
        table = self._table_if_any()
        return None if table is None else [field.name for field in table.fields]

    def _require_table(self) -> Any:
        table = self._table()
        if table is None:
            raise Refused(f"table {self._name} is not in {self._warehouse}", hint="it was there: restore it")
        return table

    def refuse_early(self, schema: pa.Schema | None = None) -> None:
        self._place.refuse(self._warehouse)
        table = self._table_if_any()
        if table is not None:
            self._require_fit(table, schema)

    def _require_fit(self, table: Any, schema: pa.Schema | None) -> None:
        wrong = _kind(table)
        if wrong is None and schema is not None:
            wrong = difference(_storable(schema), PyarrowFieldParser.from_paimon_schema(table.fields))
        if wrong:
            raise Refused(f"table {self._name} {wrong}", hint="use an append table without buckets, or a new name")

    def create(self, schema: pa.Schema) -> None:
        table = self._table()
        if table is None:
            with explained(f"create table {self._name}", _CHECK):
                catalog = self._catalog()
                catalog.file_io.try_to_write_atomic = _create  # the library's own can replace a schema
                catalog.create_database(self._name.partition(".")[0], True)
                catalog.create_table(
                    self._name, Schema.from_pyarrow_schema(_storable(schema), options=dict(_CREATE)), True
                )
                table = catalog.get_table(self._name)
        self._require_fit(table, schema)

    def writer(
        self, name: str, schema: pa.Schema, row_group: int = ROW_GROUP_BYTES
    ) -> AbstractContextManager[ParquetFileWriter]:
        path = _data_file(self._require_table(), f"data-cdr-{name.replace('/', '-')}.parquet")
        return parquet_writer(self._place.output(path), path, _storable(schema), row_group)

    def look_up(self, commit_user: str) -> LookUp:
        table = self._table()
        if table is None:
            return LookUp(ABSENT, (), frozenset({ABSENT}))
        with explained(f"list the snapshots of table {self._name}", _CHECK):
            manager = table.snapshot_manager()
            latest = manager.get_latest_snapshot()
            line = _line(manager.list_snapshots())
        if latest is not None and (not line or line[-1].id < latest.id):
            raise StorageError(f"the listing of the snapshots of table {self._name} is not complete", hint="try again")
        known = {token(snapshot.id, snapshot.uuid) for snapshot in line}
        if not line or line[0].id == 1:
            known |= {NO_SNAPSHOT, ABSENT}
        published = tuple(self._published(snapshot) for snapshot in line if snapshot.commit_user == commit_user)
        base = token(line[-1].id, line[-1].uuid) if line else NO_SNAPSHOT
        others = by_others((snapshot.properties or {} for snapshot in line), commit_user)
        return LookUp(base, published, frozenset(known), others)

    def publish(self, base: str, publication: Publication) -> Published:
        table = self._require_table().copy(dict(_PUBLISH))
        require_files(publication.files, lambda file: self._place.size(file.path))
        watermark = publication.properties.get(WATERMARK)
        step = ExclusiveSnapshotCommit(base, table, None if watermark is None else int(watermark), publication.permit)
        user, number = publication.properties[COMMIT_USER], publication.commit_id
        try:
            message = CommitMessage(partition=(), bucket=BUCKET, new_files=[_meta(table, f) for f in publication.files])
            FileStoreCommit(step, table, user).commit([message], number, publication.signed)
        except Exception as error:
            if step.forbidden is not None:
                raise step.forbidden from error
            if step.lost:
                raise CommitConflict(
                    f"table {self._name} was changed by another process", hint="look up again"
                ) from error
            raise CommitUnknown(f"table {self._name}: the commit broke off ({error.__cause__ or error})") from error
        return self._read_back(user, number)

    def _read_back(self, user: str, number: int) -> Published:
        """A committer that is not ours may replace what it should not: better known now than never."""
        found = self.look_up(user).find(number)
        if found is None:
            raise CommitUnknown(f"table {self._name}: the snapshot was published and is gone again")
        return found

    def _published(self, snapshot: Any) -> Published:
        properties = snapshot.properties or {}
        number = int(properties.get(COMMIT_ID, snapshot.commit_identifier))
        return Published(number, f"paimon:{self._address}@{snapshot.id}", snapshot.uuid, properties.get(PROOF))

    def metadata_of(self, locations: Sequence[str]) -> Mapping[str, tuple[MetadataFile, ...]]:
        table, wanted, found = self._require_table(), {int(each.rpartition("@")[2]): each for each in locations}, {}
        with explained(f"read the snapshots of table {self._name}", _CHECK):
            manager = table.snapshot_manager()
            for snapshot in manager.list_snapshots():
                if snapshot.id in wanted:
                    schema = f"{table.table_path}/schema/schema-{snapshot.schema_id}"
                    paths = [manager.get_snapshot_path(snapshot.id), schema, *own_files(table, snapshot)]
                    found[wanted[snapshot.id]] = tuple(_summed(path) for path in paths)
        return found

    def open_file(self, file: PreparedFile) -> pa.NativeFile:
        return self._place.open(file.path, file)

    def files_of(self, recovery: str) -> list[str]:
        table = self._table_if_any()
        if table is None:
            return []
        begin = _data_file(table, f"data-cdr-{recovery}-")
        bucket = begin.rpartition("/")[0]
        return [uri for uri in storage_for(bucket).list(bucket) if uri.startswith(begin)]

    def listed(self) -> frozenset[str]:
        table = self._require_table()
        with explained(f"read the manifests of table {self._name}", _CHECK):
            if any(table.file_io.exists(f"{table.table_path}/{place}") for place in ("tag", "branch")):
                raise Refused(f"table {self._name} has tags or branches", hint="remove its orphan files")
            lists, files = ManifestListManager(table), ManifestFileManager(table)
            snapshots = table.snapshot_manager().list_snapshots()
            names = {name for each in snapshots for name in (each.base_manifest_list, each.delta_manifest_list)}
            manifests = {meta.file_name for name in names for meta in lists.read(name)}
            return frozenset(entry.file.file_name for name in manifests for entry in files.read(name))


def _storable(schema: pa.Schema) -> pa.Schema:
    """Bytes of a fixed number as bytes of any: the library reads a column of the former back as one of the latter."""
    return pa.schema([f.with_type(pa.binary()) if pa.types.is_fixed_size_binary(f.type) else f for f in schema])


def _kind(table: Any) -> str | None:
    """What makes a table one that this sink cannot append to."""
    options = table.table_schema.options
    if table.primary_keys:
        return "has a primary key"
    if table.partition_keys:
        return "is partitioned"
    if table.bucket_mode() != BucketMode.BUCKET_UNAWARE:
        return f"has {options.get('bucket')} buckets"
    if options.get("file.format", "parquet").lower() != "parquet":
        return f"keeps its files as {options['file.format']}"
    set_ = [name for name in _UNFIT if options.get(name, "false").lower() != "false"]
    return f"is a table with {set_[0]}" if set_ else None


def _line(snapshots: list[Any]) -> list[Any]:
    """The latest snapshot and those before it without a gap, oldest first."""
    first = len(snapshots)
    while first and (first == len(snapshots) or snapshots[first - 1].id + 1 == snapshots[first].id):
        first -= 1
    return snapshots[first:]


def _create(uri: str, content: str) -> bool:
    """A file of the table's, durable, if its name is free."""
    return storage_for(uri).create(uri, content.encode())


def _summed(uri: str) -> MetadataFile:
    return MetadataFile.of(uri, storage_for(uri).read(uri))


def _data_file(table: Any, name: str) -> str:
    uri = str(canonical_data_file_path(table, (), BUCKET, name))
    return str(local_path(uri)) if is_local(uri) else canonical(uri)


def _meta(table: Any, file: PreparedFile) -> Any:
    """The file as pypaimon's own append writer would describe it, without statistics of values."""
    name = file.path.rpartition("/")[2]
    assert _data_file(table, name) == file.path, "a prepared file lies where the table looks for it"
    nothing = GenericRow([], [])
    return DataFileMeta.create(
        file_name=name,
        file_size=file.bytes,
        row_count=file.records,
        min_key=nothing,
        max_key=nothing,
        key_stats=SimpleStats.empty_stats(),
        value_stats=SimpleStats.empty_stats(),
        min_sequence_number=0,
        max_sequence_number=0,
        schema_id=table.table_schema.id,
        level=0,
        extra_files=[],
        creation_time=Timestamp.now(),
        delete_row_count=0,
        file_source=0,
        value_stats_cols=[],
        file_path=file.path,
    )
