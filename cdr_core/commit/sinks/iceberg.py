"""``iceberg:CATALOG/db.table``: CATALOG is a name that pyiceberg's own configuration explains.

That is ``.pyiceberg.yaml`` or ``PYICEBERG_CATALOG__NAME__URI`` and its sisters in the environment, so no password is
ever part of a target. Executors write Parquet files with the table's field ids; one commit of the driver makes them
visible. The library would repeat a lost race on a refreshed base: here it may not, because only the look-up decides.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import lru_cache

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.io import FileIO, InputFile
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.table.locations import SimpleLocationProvider
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.config import Config

from cdr_core.commit.committable import PreparedFile
from cdr_core.commit.sinks.base import (
    COMMIT_ID,
    COMMIT_USER,
    PROOF,
    ROW_GROUP_BYTES,
    LookUp,
    MetadataFile,
    Publication,
    Published,
    by_others,
)
from cdr_core.commit.sinks.error_translation import explained
from cdr_core.commit.sinks.iceberg_metadata import listed_files, require_readable, written_for
from cdr_core.commit.sinks.prepared_files import CHUNK, ParquetFileWriter, parquet_writer, require_files, require_sum
from cdr_core.commit.sinks.schemas import difference, narrow, plain
from cdr_core.errors import CommitConflict, InDoubt, Refused
from cdr_core.faults import reach
from cdr_core.storage import storage_for
from cdr_core.storage.s3_access import iceberg_properties

ABSENT = "absent"
"""The base when there is no table."""

_IO = "py-io-impl"
_RETRIES = "commit.retry.num-retries"
_CHECK = "check the catalog and its configuration"
_MAXIMUM_HISTORY = 1_000_000


class IcebergOutput:
    """See :class:`cdr_core.commit.sinks.prepared_files.Output`."""

    def __init__(self, io: FileIO, location: str) -> None:
        self._io, self._location = io, location
        self._stream = io.new_output(location).create()

    def write(self, data: bytes) -> int:
        with explained(f"write {self._location}", _CHECK):
            return self._stream.write(data)

    def finish(self) -> None:
        with explained(f"write {self._location}", _CHECK):
            self._stream.close()

    def discard(self) -> None:
        with suppress(Exception):
            self._stream.close()
        with suppress(Exception):
            self._io.delete(self._location)


class IcebergSink:
    """See :class:`cdr_core.commit.sinks.base.Sink`. A base is the table's uuid and its current snapshot."""

    stores = True

    def __init__(self, address: str) -> None:
        self._address = address
        self._catalog_name, slash, self._name = address.partition("/")
        if not slash or not self._catalog_name or "/" in self._name or self._name.count(".") < 1:
            raise Refused(f"target iceberg:{address} is not iceberg:CATALOG/db.table", hint="correct the target")

    @property
    def _catalog(self) -> Catalog:
        configured = Config().get_catalog_config(self._catalog_name)
        if configured is None:
            raise Refused(
                f"target iceberg:{self._address}: pyiceberg knows no catalog {self._catalog_name!r}",
                hint=f"configure it in .pyiceberg.yaml or by PYICEBERG_CATALOG__{self._catalog_name.upper()}__URI",
            )
        # Given as they are now: the library itself looks at the environment only once, when it is imported.
        # The same holds for credentials that expire: new ones are another catalog.
        own = {_IO: "cdr_core.commit.sinks.fsync_file_io.DurableFileIO", **iceberg_properties(configured)}
        properties = {**own, **configured}
        given = tuple(sorted((name, str(value)) for name, value in properties.items()))
        with explained(f"open catalog {self._catalog_name}", _CHECK):
            return _open(self._catalog_name, given, os.getpid())

    def _table(self) -> Table | None:
        """As it is now."""
        with explained(f"load table {self._name}", _CHECK):
            try:
                return self._catalog.load_table(self._name)
            except NoSuchTableError:
                return None

    def _require_table(self) -> Table:
        table = self._table()
        if table is None:
            raise Refused(f"table {self._name} is not in catalog {self._catalog_name}", hint="it was there: restore it")
        return table

    def refuse_early(self, schema: pa.Schema | None = None) -> None:
        table = self._table()
        if table is not None:
            self._require_fit(table, schema)
            require_readable(table)

    def _require_fit(self, table: Table, schema: pa.Schema | None) -> None:
        if not table.spec().is_unpartitioned():
            raise Refused(f"table {self._name} is partitioned", hint="use a table without partitions or a new name")
        if schema is not None:
            found = schema_to_pyarrow(table.schema(), include_field_ids=False)
            wrong = difference(schema, found, widen=True)
            if wrong:
                raise Refused(f"table {self._name} {wrong}", hint="use another table or a new name")

    def columns(self) -> list[str] | None:
        table = self._table()
        return None if table is None else list(table.schema().column_names)

    def create(self, schema: pa.Schema) -> None:
        table = self._table()
        if table is None:
            with explained(f"create table {self._name}", _CHECK):
                with suppress(NamespaceAlreadyExistsError):
                    self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
                table = self._catalog.create_table_if_not_exists(self._name, _creatable(schema))
        self._require_fit(table, schema)

    def writer(
        self, name: str, schema: pa.Schema, row_group: int = ROW_GROUP_BYTES
    ) -> AbstractContextManager[ParquetFileWriter]:
        table = self._require_table()
        stored = pa.schema([narrow(field) for field in schema_to_pyarrow(table.schema())])
        ours = pa.schema([stored.field(column) for column in schema.names])
        with explained(f"write to table {self._name}", _CHECK):
            location = table.location_provider().new_data_location(f"cdr/{name}.parquet")
            return parquet_writer(IcebergOutput(table.io, location), location, ours, row_group)

    def look_up(self, commit_user: str) -> LookUp:
        table = self._table()
        if table is None:
            return LookUp(ABSENT, (), frozenset({ABSENT}))
        line, complete = _line(table)
        self._require_not_rolled_back(table, {snapshot.snapshot_id for snapshot in line}, commit_user)
        known = {_token(table, snapshot) for snapshot in line} | ({_token(table, None), ABSENT} if complete else set())
        published = tuple(self._published(snapshot) for snapshot in line if _is_of(snapshot, commit_user))
        others = by_others((each.summary.additional_properties for each in line if each.summary), commit_user)
        return LookUp(_token(table, table.current_snapshot()), published, frozenset(known), others)

    def _require_not_rolled_back(self, table: Table, line: set[int], commit_user: str) -> None:
        for snapshot in table.metadata.snapshots:
            if snapshot.snapshot_id not in line and _is_of(snapshot, commit_user):
                raise InDoubt(
                    f"snapshot {snapshot.snapshot_id} of table {self._name} was published and then rolled back",
                    hint="who did that has to decide whether the records are wanted",
                )

    def publish(self, base: str, publication: Publication) -> Published:
        table = self._require_table()
        if _token(table, table.current_snapshot()) != base:
            raise CommitConflict(f"table {self._name} has changed since the look-up", hint="look up again")
        require_readable(table)
        require_files(publication.files, lambda file: _size(table.io.new_input(file.path)))
        # Only in this process: the table keeps its own.
        once = {**table.metadata.properties, _RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": once})
        transaction = table.transaction()
        with transaction.update_snapshot(snapshot_properties=publication.signed).fast_append() as append:
            for file in publication.files:
                append.append_data_file(parquet_file_to_data_file(table.io, table.metadata, file.path))
        publication.permit()
        reach("publish.before")
        try:
            transaction.commit_transaction()
        except CommitFailedException as error:
            raise CommitConflict(f"table {self._name} was changed by another process", hint="look up again") from error
        reach("publish.after")
        snapshot = table.metadata.snapshot_by_id(append.snapshot_id)
        assert snapshot is not None, "a commit that succeeded is in the metadata it returned"
        return self._published(snapshot)

    def _published(self, snapshot: Snapshot) -> Published:
        assert snapshot.summary is not None
        where = f"iceberg:{self._address}@{snapshot.snapshot_id}"
        properties = snapshot.summary.additional_properties
        return Published(int(properties[COMMIT_ID]), where, str(snapshot.snapshot_id), properties.get(PROOF))

    def metadata_of(self, locations: Sequence[str]) -> Mapping[str, tuple[MetadataFile, ...]]:
        table, found = self._require_table(), {}
        for location in locations:
            snapshot = table.snapshot_by_id(int(location.rpartition("@")[2]))
            if snapshot is not None:
                with explained(f"read the metadata of {location}", _CHECK):
                    found[location] = written_for(table, snapshot)
        return found

    def open_file(self, file: PreparedFile) -> pa.NativeFile:
        source = self._require_table().io.new_input(file.path)
        require_files((file,), lambda _: _size(source))
        with explained(f"read {file.path}", _CHECK):
            with source.open(seekable=False) as stream:
                require_sum(file, iter(lambda: stream.read(CHUNK), b""))
            stream = source.open()
            return stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, mode="r")

    def files_of(self, recovery: str) -> list[str]:
        table = self._table()
        if table is None:
            return []
        provider = table.location_provider()
        if not isinstance(provider, SimpleLocationProvider):
            raise Refused(f"table {self._name} spreads its files over many places", hint="remove its orphan files")
        place = provider.new_data_location(f"cdr/{recovery}")
        return storage_for(place).list(place)

    def listed(self) -> frozenset[str]:
        table = self._require_table()
        with explained(f"read the manifests of table {self._name}", _CHECK):
            return frozenset(path.rpartition("/")[2] for path in listed_files(table))


@lru_cache(maxsize=8)
def _open(name: str, properties: tuple[tuple[str, str], ...], _process: int) -> Catalog:
    """One for all sinks of a process, and its connections with it; a forked one must not use its parent's."""
    return load_catalog(name, **dict(properties))


def _creatable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, plain(f.type, widen=True), nullable=f.nullable) for f in schema])


def _line(table: Table) -> tuple[list[Snapshot], bool]:
    """The current snapshot and its ancestors, oldest first, and whether they go back to the very first.

    Expiry by pyiceberg takes the parent of what is left away, so having none says nothing; the first sequence number
    does. Where a table has no sequence numbers (format version 1) no order is known, and none is assumed.
    """
    line: list[Snapshot] = []
    snapshot = table.current_snapshot()
    while snapshot is not None and len(line) < _MAXIMUM_HISTORY:
        line.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    line.reverse()
    return line, not line or line[0].sequence_number == 1


def _token(table: Table, snapshot: Snapshot | None) -> str:
    return f"{table.metadata.table_uuid}/{snapshot.snapshot_id if snapshot else 'empty'}"


def _is_of(snapshot: Snapshot, commit_user: str) -> bool:
    return snapshot.summary is not None and snapshot.summary.get(COMMIT_USER) == commit_user


def _size(file: InputFile) -> int | None:
    try:
        return len(file)
    except FileNotFoundError:
        return None
