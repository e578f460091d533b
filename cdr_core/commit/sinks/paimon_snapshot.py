"""The one step that makes a Paimon snapshot visible, done so that it cannot replace another process's.

pypaimon looks whether the name of the next snapshot is free and then renames its file to it. A rename replaces: two
committers that look at the same moment are both told that they succeeded, and one of their snapshots is gone. Here the
name is created exclusively (on S3 by ``If-None-Match``), and only directly after the snapshot that the look-up saw.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pypaimon.common.json_util import JSON
from pypaimon.manifest.manifest_list_manager import ManifestListManager

from cdr_core.errors import CdrError
from cdr_core.faults import reach
from cdr_core.storage import is_local, storage_for
from cdr_core.storage.local import local_path, sync_path


def token(number: int, uuid: str | None) -> str:
    """A snapshot as a base. The uuid tells it from one that took its number after a rollback."""
    return f"{number}/{uuid or ''}"


NO_SNAPSHOT = token(0, None)


class ExclusiveSnapshotCommit:
    """What pypaimon calls to publish, in place of its own ``RenamingSnapshotCommit``; ``lost`` tells a clean conflict.

    Returning ``False`` means to pypaimon that nothing became visible. ``forbidden`` is what ``permit``
    raised, if it did.
    """

    def __init__(self, base: str, table: Any, watermark: int | None, permit: Callable[[], None]) -> None:
        self._base, self._table, self._watermark, self._permit = base, table, watermark, permit
        self.lost = False
        self.forbidden: Exception | None = None

    def commit(self, base_uuid: str | None, snapshot: Any, _statistics: Any) -> bool:
        """pypaimon read the latest snapshot anew: one that is not the base is a lost race like any other."""
        written = own_files(self._table, snapshot)
        if token(snapshot.id - 1, base_uuid) != self._base:
            return self._lose(written)
        sync_files(written)
        if self._watermark is not None and (snapshot.watermark is None or snapshot.watermark < self._watermark):
            snapshot.watermark = self._watermark  # pypaimon can only pass on the one before; a table's never falls
        manager = self._table.snapshot_manager()
        try:
            self._permit()
        except Exception as error:  # pypaimon would take it for a commit of which nothing is known
            self.forbidden = error
            return self._lose(written)
        reach("publish.before")
        path = manager.get_snapshot_path(snapshot.id)
        created = storage_for(path).create(path, JSON.to_json(snapshot, indent=2).encode())
        reach("publish.after")
        if not created:
            return self._lose(written)
        # A hint for readers, who find the latest snapshot without it too.
        with suppress(Exception):
            storage_for(path).replace(manager.latest_file, str(snapshot.id).encode())
        return True

    def _lose(self, written: list[str]) -> bool:
        """Their names are of this very try and in no snapshot, so they can go. Data files stay for the next one."""
        self.lost = True
        for uri in written:
            with suppress(CdrError):  # what stays takes room, and no more
                storage_for(uri).delete(uri)
        return False

    def __enter__(self) -> ExclusiveSnapshotCommit:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is held."""


def own_files(table: Any, snapshot: Any) -> list[str]:
    """What a snapshot refers to and its commit wrote; pypaimon leaves it to the system when that is on disk."""
    manifests = ManifestListManager(table)
    names = [snapshot.base_manifest_list, snapshot.delta_manifest_list]
    names += [meta.file_name for meta in manifests.read(snapshot.delta_manifest_list)]
    return [f"{manifests.manifest_path}/{name}" for name in names]


def sync_files(uris: list[str]) -> None:
    """Files that another process wrote, and their names, are on the disk when this returns; objects always are."""
    paths = [local_path(uri) for uri in uris if is_local(uri)]
    for path in paths:
        sync_path(path)
    for directory in {path.parent for path in paths}:
        sync_path(directory)
