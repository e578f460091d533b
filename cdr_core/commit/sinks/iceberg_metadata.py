"""What Iceberg's library wrote for a table, read without its own decoder.

That one trusts the lengths that it reads: a damaged file ends the process, without a word about which file it was.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import fastavro
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from cdr_core.commit.sinks.base import MetadataFile
from cdr_core.commit.sinks.error_translation import explained
from cdr_core.errors import Unreadable


def require_readable(table: Table) -> None:
    """The list of manifests that a publication goes on from, which the library will read too."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return
    place = snapshot.manifest_list
    with explained(f"read {place}", "check the catalog and its configuration"):
        data = _read(table.io, place)
    try:
        _entries(data)
    except Exception as error:
        what = f"{place} is no list of manifests ({str(error) or type(error).__name__})"
        raise Unreadable(what, hint="it was damaged: restore it, or name another table") from error


def written_for(table: Table, snapshot: Snapshot) -> tuple[MetadataFile, ...]:
    """The snapshot's list of manifests, those it added, and the table's own file while that is of this snapshot."""
    listed = _entries(_read(table.io, snapshot.manifest_list))
    own = [str(each["manifest_path"]) for each in listed if each["added_snapshot_id"] == snapshot.snapshot_id]
    newest = [table.metadata_location] if snapshot == table.current_snapshot() else []
    paths = (snapshot.manifest_list, *own, *newest)
    return tuple(MetadataFile.of(path, _read(table.io, path)) for path in paths)


def listed_files(table: Table) -> set[str]:
    """Every data file that any snapshot lists."""
    lists = {snapshot.manifest_list for snapshot in table.metadata.snapshots}
    manifests = {str(each["manifest_path"]) for path in lists for each in _entries(_read(table.io, path))}
    entries = (each for path in manifests for each in _entries(_read(table.io, path)))
    return {str(each["data_file"]["file_path"]) for each in entries}


def _entries(data: bytes) -> list[dict[str, Any]]:
    return [dict(each) for each in fastavro.reader(BytesIO(data)) if isinstance(each, dict)]


def _read(io: FileIO, path: str) -> bytes:
    with io.new_input(path).open() as stream:
        return stream.read()
