"""``parquet:DIR``: data files under ``DIR/data`` and manifests ``DIR/_cdr/manifest-<n>.json``.

A reader takes the files that the highest manifest lists. Manifest n+1 lists what n listed and the new files, and is
created exclusively: whoever looked up n and finds n+1 taken has lost a race and has published nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from cdr_core.commit.committable import PreparedFile
from cdr_core.commit.sinks.base import COMMIT_ID, COMMIT_USER, LookUp, Publication, Published
from cdr_core.errors import CommitConflict, CommitUnknown, Refused, StorageError, Unreadable
from cdr_core.faults import reach
from cdr_core.storage import join, storage_for
from cdr_core.storage.local import is_writable, local_path, sync_directory

MANIFEST_VERSION = 1
ROW_GROUP_BYTES = 16 * 1024 * 1024
"""Rows held in memory before they become a row group; small groups make slow tables."""
_CHUNK = 8 * 1024 * 1024
_MANIFEST = re.compile(r"manifest-(\d+)\.json$")


_LOST = "the source checkpoint is untouched: recover it to another target"


class _Summed:
    """A file that sums up what goes through it, so that every byte can be checked before it is published."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.crc32c = file, 0

    closed = False

    def write(self, data: bytes) -> int:
        self.crc32c = google_crc32c.extend(self.crc32c, bytes(data))
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        """The writer's end is not the file's: it is still to be synced."""


class ParquetFileWriter:
    """See :class:`cdr_core.commit.sinks.base.TableWriter`."""

    def __init__(self, path: Path, relative: str, schema: pa.Schema) -> None:
        self._path, self._relative = path, relative
        self._file = path.open("xb")
        self._summed = _Summed(self._file)
        self._writer = pq.ParquetWriter(self._summed, schema, compression="zstd", compression_level=1)
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._records = 0
        self._prepared: PreparedFile | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        self._records += batch.num_rows
        if self._pending_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._writer.write_table(pa.Table.from_batches(self._pending))
            self._pending, self._pending_bytes = [], 0

    @property
    def prepared(self) -> PreparedFile | None:
        return self._prepared

    def close(self) -> None:
        self._flush()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        sync_directory(self._path.parent)
        size = self._path.stat().st_size
        self._prepared = PreparedFile(self._relative, self._records, size, self._summed.crc32c)

    def discard(self) -> None:
        with suppress(Exception):
            self._writer.close()
        self._file.close()
        self._path.unlink(missing_ok=True)
        with suppress(OSError):  # the directory is ours alone, and goes when nothing else is in it
            self._path.parent.rmdir()


class ParquetSink:
    """See :class:`cdr_core.commit.sinks.base.Sink`."""

    def __init__(self, directory: str) -> None:
        self._directory = directory.rstrip("/")
        self._storage = storage_for(directory)

    def refuse_early(self) -> None:
        if "://" in self._directory.removeprefix("file://"):
            raise Refused(f"target {self._directory} is not on this host's disks", hint="use parquet:/DIR")
        if not is_writable(local_path(self._directory)):
            raise Refused(f"target {self._directory} cannot be written", hint="check its permissions")

    @contextmanager
    def writer(self, name: str, schema: pa.Schema) -> Iterator[ParquetFileWriter]:
        relative = f"data/{name}.parquet"
        path = local_path(self._directory) / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = ParquetFileWriter(path, relative, schema)
        try:
            yield writer
            writer.close()
        except BaseException:
            writer.discard()
            raise

    def look_up(self, commit_user: str) -> LookUp:
        base, published = 0, []
        for number, uri in self._manifests():
            properties = self._read(uri)["properties"]
            base = max(base, number)
            if properties.get(COMMIT_USER) == commit_user:
                published.append(Published(int(properties[COMMIT_ID]), uri))
        return LookUp(base, tuple(published))

    def publish(self, base: int, publication: Publication) -> Published:
        previous = self._read(self._manifest(base))["files"] if base else []
        manifest = {
            "version": MANIFEST_VERSION,
            "files": [*previous, *(asdict(file) for file in publication.files)],
            "properties": dict(publication.properties),
        }
        uri = self._manifest(base + 1)
        reach("publish.before")
        try:
            created = self._storage.create(uri, json.dumps(manifest, indent=1).encode())
        except StorageError as error:
            raise CommitUnknown(f"it is not known whether {uri} was created: {error.what}") from error
        reach("publish.after")
        if not created:
            raise CommitConflict(f"{uri} was published by somebody else", hint="look up again")
        return Published(int(publication.properties[COMMIT_ID]), uri)

    def open_file(self, file: PreparedFile) -> pa.NativeFile:
        path = local_path(join(self._directory, file.path))
        if not path.is_file():
            raise Unreadable(f"prepared file {path} is missing", hint=_LOST)
        if path.stat().st_size != file.bytes:
            size = path.stat().st_size
            raise Unreadable(f"prepared file {path} has {size} bytes instead of {file.bytes}", hint=_LOST)
        if _crc32c(path) != file.crc32c:
            raise Unreadable(f"prepared file {path} was changed after it was written", hint=_LOST)
        return pa.OSFile(str(path), "rb")

    def _manifest(self, number: int) -> str:
        return join(self._directory, "_cdr", f"manifest-{number}.json")

    def _manifests(self) -> list[tuple[int, str]]:
        names = self._storage.list(join(self._directory, "_cdr"))
        return sorted((int(match.group(1)), uri) for uri in names if (match := _MANIFEST.search(uri)))

    def _read(self, uri: str) -> Mapping[str, Any]:
        manifest: Mapping[str, Any] = json.loads(self._storage.read(uri))
        if manifest.get("version") != MANIFEST_VERSION:
            raise Refused(f"{uri} has version {manifest.get('version')}, this cdr reads {MANIFEST_VERSION}")
        return manifest


def _crc32c(path: Path) -> int:
    sum_ = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            sum_ = google_crc32c.extend(sum_, chunk)
    return sum_
