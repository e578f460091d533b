"""``parquet:DIR``, local or ``s3://``: data files under ``DIR/data``, manifests ``DIR/_cdr/manifest-<n>.json``.

A reader takes the files that the highest manifest lists. Manifest n+1 lists what n listed and the new files, and is
created exclusively: a process that looked up n and finds n+1 taken has lost a race and has published nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cdr_core.commit.committable import PreparedFile
from cdr_core.commit.sinks.base import (
    COMMIT_ID,
    COMMIT_USER,
    PROOF,
    ROW_GROUP_BYTES,
    LookUp,
    Publication,
    Published,
    by_others,
)
from cdr_core.commit.sinks.prepared_files import (
    LocalOutput,
    Output,
    ParquetFileWriter,
    local_size,
    open_local,
    parquet_writer,
    require_files,
)
from cdr_core.errors import CommitConflict, CommitUnknown, Refused, StorageError, Unreadable
from cdr_core.faults import reach
from cdr_core.storage import Storage, is_local, join, storage_for
from cdr_core.storage.local import is_writable, local_path

MANIFEST_VERSION = 1
FOOTER_END = 8
"""The last bytes of a Parquet file: the length of its footer, and a mark."""
_MANIFEST = re.compile(r"/manifest-([1-9]\d*)\.json$")


class Place(Protocol):
    """Where the data files are."""

    def refuse(self, directory: str) -> None:
        """Raise what would keep files from being made there."""

    def output(self, uri: str) -> Output: ...

    def size(self, uri: str) -> int | None: ...

    def open(self, uri: str, file: PreparedFile) -> pa.NativeFile: ...


class LocalPlace:
    """Disks of this host."""

    def refuse(self, directory: str) -> None:
        if not is_writable(local_path(directory)):
            raise Refused(f"target {directory} cannot be written", hint="check its permissions")

    def output(self, uri: str) -> Output:
        return LocalOutput(local_path(uri))

    def size(self, uri: str) -> int | None:
        return local_size(local_path(uri))

    def open(self, uri: str, file: PreparedFile) -> pa.NativeFile:
        return open_local(local_path(uri), file)


class ParquetSink:
    """See :class:`cdr_core.commit.sinks.base.Sink`. A base is the highest manifest's number, 0 before the first."""

    stores = True

    def __init__(self, directory: str) -> None:
        self._directory = directory.rstrip("/")
        self._storage: Storage = storage_for(directory)
        self._place = place_for(directory)
        self._manifests_read: dict[str, Mapping[str, Any]] = {}

    def refuse_early(self, schema: pa.Schema | None = None) -> None:
        self._place.refuse(self._directory)

    def columns(self) -> list[str] | None:
        """Those of the newest file that is listed: files carry their own columns."""
        manifests = self._manifests()
        files = self._read(manifests[-1][1])["files"] if manifests else []
        if not files:
            return None
        return _columns_of(self._storage, join(self._directory, files[-1]["path"]))

    def create(self, schema: pa.Schema) -> None:
        """Files carry their own columns, and directories come with the first of them."""

    def writer(
        self, name: str, schema: pa.Schema, row_group: int = ROW_GROUP_BYTES
    ) -> AbstractContextManager[ParquetFileWriter]:
        relative = f"data/{name}.parquet"
        return parquet_writer(self._place.output(join(self._directory, relative)), relative, schema, row_group)

    def look_up(self, commit_user: str) -> LookUp:
        manifests = self._manifests()
        shown = {uri: self._read(uri)["properties"] for _, uri in manifests}
        published = tuple(
            Published(int(properties[COMMIT_ID]), uri, proof=properties.get(PROOF))
            for uri, properties in shown.items()
            if properties.get(COMMIT_USER) == commit_user
        )
        numbers = {number for number, _ in manifests}
        base = max(numbers, default=0)
        return LookUp(str(base), published, _known(base, numbers), by_others(shown.values(), commit_user))

    def publish(self, base: str, publication: Publication) -> Published:
        require_files(publication.files, lambda file: self._place.size(join(self._directory, file.path)))
        number = int(base)
        previous = self._read(self._manifest(number))["files"] if number else []
        manifest = {
            "version": MANIFEST_VERSION,
            "files": [*previous, *msgspec.to_builtins(publication.files)],
            "properties": publication.signed,
        }
        uri = self._manifest(number + 1)
        publication.permit()
        reach("publish.before")
        try:
            created = self._storage.create(uri, json.dumps(manifest, indent=1).encode())
        except StorageError as error:
            raise CommitUnknown(f"it is not known whether {uri} was created: {error.what}") from error
        reach("publish.after")
        if not created:
            raise CommitConflict(f"{uri} was published by another process", hint="look up again")
        return Published(publication.commit_id, uri)

    def open_file(self, file: PreparedFile) -> pa.NativeFile:
        return self._place.open(join(self._directory, file.path), file)

    def _manifest(self, number: int) -> str:
        return join(self._directory, "_cdr", f"manifest-{number}.json")

    def _manifests(self) -> list[tuple[int, str]]:
        names = self._storage.list(join(self._directory, "_cdr"))
        return sorted((int(match.group(1)), uri) for uri in names if (match := _MANIFEST.search(uri)))

    def _read(self, uri: str) -> Mapping[str, Any]:
        """A manifest never changes, so one that lost a race reads only what is new."""
        if uri not in self._manifests_read:
            self._manifests_read[uri] = _manifest(uri, self._storage.read(uri))
        return self._manifests_read[uri]


def _manifest(uri: str, data: bytes) -> Mapping[str, Any]:
    """What is in its place and none cannot be added to: which files are in the table is nowhere else to be read."""
    try:
        manifest: Mapping[str, Any] = json.loads(data)
        version = manifest["version"]
        _ = [file["path"] for file in manifest["files"]], manifest["properties"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        hint = "it was damaged or is foreign: restore it, or name another target"
        raise Unreadable(f"{uri} is no manifest", hint=hint) from None
    if version != MANIFEST_VERSION:
        raise Refused(f"{uri} has version {version}, this cdr reads {MANIFEST_VERSION}")
    return manifest


def _columns_of(storage: Storage, uri: str) -> list[str]:
    """The columns of a Parquet file, from its footer alone: the data in front of it may be large, and far away."""
    size = storage.size(uri)
    try:
        ending = storage.read(uri, max(size - FOOTER_END, 0), FOOTER_END)
        footer = min(int.from_bytes(ending[:4], "little") + FOOTER_END, size)
        return list(pq.read_schema(pa.BufferReader(storage.read(uri, size - footer, footer))).names)
    except (pa.ArrowException, ValueError):
        hint = "the table lists it: restore it, or name another target"
        raise Unreadable(f"{uri} is no Parquet file", hint=hint) from None


def place_for(directory: str) -> Place:
    """Where files of a directory are; boto3 is loaded only by those who need it."""
    if is_local(directory):
        return LocalPlace()
    from cdr_core.commit.sinks.s3_files import S3Place

    return S3Place()


def _known(base: int, numbers: set[int]) -> frozenset[str]:
    """Bases from which on no manifest is missing."""
    first = base
    while first in numbers:
        first -= 1
    return frozenset(str(number) for number in range(first, base + 1))
