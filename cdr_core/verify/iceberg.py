"""``iceberg:CATALOG/db.table``: the current snapshot's data files, as pyiceberg lists them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from io import BytesIO
from typing import Any

import fastavro
from pyiceberg.catalog import load_catalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.utils.config import Config

from cdr_core.errors import Refused, Unreadable
from cdr_core.storage.s3_access import iceberg_properties
from cdr_core.verify.lake import LakeFile, LakeTable, Snapshot, as_unreadable
from cdr_core.verify.tables import RECOVERY, DataFile, Owner

_DELETES, _DELETED = 1, 2
"""Content type of a manifest and status of an entry, as Iceberg numbers them."""


def open_iceberg(address: str, owner: Owner) -> LakeTable:
    """Open the table as it is now. A table with row-level deletes is ``Unreadable``: cdr writes none."""
    catalog, _, name = address.partition("/")
    configured = Config().get_catalog_config(catalog)
    if configured is None:
        raise Refused(f"pyiceberg knows no catalog {catalog!r}", hint="configure it in .pyiceberg.yaml")
    with as_unreadable(f"iceberg:{address}"):
        properties = {key: str(value) for key, value in (configured | iceberg_properties(configured)).items()}
        table = load_catalog(catalog, **properties).load_table(name)
        snapshots = {found.snapshot_id: _snapshot(table, found, owner) for found in table.metadata.snapshots}
        return LakeTable(owner, list(snapshots.values()), _files(table, snapshots))


def _snapshot(table: Table, found: IcebergSnapshot, owner: Owner) -> Snapshot:
    summary = found.summary
    if summary is None:
        return Snapshot(found.snapshot_id, {}, appended=False)
    properties = dict(summary.additional_properties)
    ours = RECOVERY in properties and owner.recovery in (None, properties[RECOVERY])
    return Snapshot(
        found.snapshot_id,
        properties,
        summary.operation == Operation.APPEND,
        tuple(_metadata(table, found)) if ours else (),
    )


def _metadata(table: Table, snapshot: IcebergSnapshot) -> Iterator[DataFile]:
    """Yield the files that the snapshot wrote, and the table's metadata file if no later commit replaced it."""
    listed = _avro(table.io, snapshot.manifest_list)
    added = [str(each["manifest_path"]) for each in listed if each["added_snapshot_id"] == snapshot.snapshot_id]
    for path in (snapshot.manifest_list, *added, table.metadata_location):
        yield DataFile(path, fetch=partial(_fetch, table.io, path))


def _files(table: Table, snapshots: dict[int, Snapshot]) -> list[LakeFile]:
    current = table.current_snapshot()
    found = []
    for manifest in [] if current is None else _avro(table.io, current.manifest_list):
        if manifest.get("content") == _DELETES:
            raise Unreadable("the table has row-level deletes", hint="compact it and verify again")
        for entry in _avro(table.io, manifest["manifest_path"]):
            if entry["status"] == _DELETED:
                continue
            file = entry["data_file"]
            fetch = partial(_fetch, table.io, file["file_path"])
            known = DataFile(file["file_path"], file["record_count"], file["file_size_in_bytes"], fetch=fetch)
            # A manifest need not repeat the id of the snapshot that wrote it.
            by = entry["snapshot_id"] if entry["snapshot_id"] is not None else manifest["added_snapshot_id"]
            found.append(LakeFile(known, snapshots.get(by)))
    return found


def _avro(io: FileIO, path: str) -> list[dict[str, Any]]:
    """Read without pyiceberg: its decoder trusts the lengths that it reads, and a damaged file ends the process."""
    with as_unreadable(path):
        return [dict(entry) for entry in fastavro.reader(BytesIO(_fetch(io, path))) if isinstance(entry, dict)]


def _fetch(io: FileIO, path: str) -> bytes:
    with as_unreadable(path), io.new_input(path).open() as stream:
        return stream.read()
