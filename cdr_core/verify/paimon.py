"""``paimon:WAREHOUSE/db.table``: the latest snapshot's data files, as pypaimon plans them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pypaimon import CatalogFactory
from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager

from cdr_core.errors import Unreadable
from cdr_core.storage.s3_access import paimon_options
from cdr_core.verify.checkpoint import plain_address
from cdr_core.verify.lake import LakeFile, LakeTable, Snapshot, as_unreadable
from cdr_core.verify.tables import DataFile, Owner

_ADDED = 0


def open_paimon(address: str, owner: Owner) -> LakeTable:
    """Open the table as it is now. A table with deletion vectors is ``Unreadable``: cdr writes none."""
    warehouse, _, name = address.rpartition("/")
    with as_unreadable(f"paimon:{address}"):
        table = CatalogFactory.create(paimon_options(plain_address(warehouse))).get_table(name)
        snapshots: list[Snapshot] = []
        added: dict[str, Snapshot] = {}
        listed = table.snapshot_manager().list_snapshots()
        for found in listed:
            manifests = _manifests(table, found.delta_manifest_list)
            metadata = tuple(_metadata(table, found, manifests))
            snapshot = Snapshot(found.id, dict(found.properties or {}), found.commit_kind == "APPEND", metadata)
            snapshots.append(snapshot)
            added |= dict.fromkeys(_added_files(table, manifests), snapshot)
        for newest in listed[-1:]:
            _manifests(table, newest.base_manifest_list)
        return LakeTable(owner, snapshots, _files(table, added))


def _metadata(table: Any, snapshot: Any, manifests: list[str]) -> Iterator[DataFile]:
    """Yield the metadata files of a snapshot that existed when it was made."""
    names = (snapshot.base_manifest_list, snapshot.delta_manifest_list, *manifests)
    below = [f"snapshot/snapshot-{snapshot.id}", f"schema/schema-{snapshot.schema_id}"]
    below += [f"manifest/{name}" for name in names]
    for name in below:
        yield DataFile(_place(table, name))


def _place(table: Any, name: str) -> str:
    return f"{plain_address(str(table.table_path)).rstrip('/')}/{name}"


def _manifests(table: Any, name: str) -> list[str]:
    """Return the manifests of a list; a damaged list is named in the error."""
    with as_unreadable(_place(table, f"manifest/{name}")):
        return [str(each.file_name) for each in ManifestListManager(table).read(name)]


def _added_files(table: Any, manifests: list[str]) -> list[str]:
    found = []
    for name in manifests:
        with as_unreadable(_place(table, f"manifest/{name}")):
            entries = ManifestFileManager(table).read(name)
            found += [str(entry.file.file_name) for entry in entries if entry.kind == _ADDED]
    return found


def _files(table: Any, added: dict[str, Snapshot]) -> list[LakeFile]:
    found = []
    for split in table.new_read_builder().new_scan().plan().splits():
        if any(getattr(split, "data_deletion_files", None) or ()):
            raise Unreadable("the table has deletion vectors", hint="compact it and verify again")
        for file in split.files:
            known = DataFile(plain_address(str(file.file_path)), file.row_count, file.file_size)
            found.append(LakeFile(known, added.get(str(file.file_name))))
    return found
