"""Prepared files on S3: they go up as they are written, and come back once, to a nameless local file."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

import pyarrow as pa

from cdr_core.commit.committable import PreparedFile
from cdr_core.commit.sinks.prepared_files import CHUNK, Output, require_files, require_sum
from cdr_core.errors import CdrError, Refused, Unreadable
from cdr_core.storage import join
from cdr_core.storage.s3 import S3Storage
from cdr_core.storage.upload import Upload


class S3Output:
    """See :class:`cdr_core.commit.sinks.prepared_files.Output`. Whatever is not finished was never an object."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload

    def write(self, data: bytes) -> int:
        self._upload.write(data)
        return len(data)

    def finish(self) -> None:
        self._upload.finish()

    def discard(self) -> None:
        with suppress(CdrError):
            self._upload.abort()


class S3Place:
    """See :class:`cdr_core.commit.sinks.parquet.Place`."""

    def __init__(self) -> None:
        self._storage = S3Storage()

    def refuse(self, directory: str) -> None:
        """A server that lets a name be taken twice would let two committers publish: it is found out here."""
        probe = join(directory, "_cdr", f"probe-{uuid.uuid4().hex}")
        try:
            self._storage.create(probe, b"1")
            exclusive = not self._storage.create(probe, b"2")
            self._storage.delete(probe)
        except Unreadable as error:
            raise Refused(f"target {directory} cannot be written: {error.what}", hint="check its bucket") from error
        if not exclusive:
            raise Refused(f"the server of {directory} ignores If-None-Match", hint="use one that knows it")

    def output(self, uri: str) -> Output:
        return S3Output(self._storage.upload(uri))

    def size(self, uri: str) -> int | None:
        return size_of_object(self._storage, uri)

    def open(self, uri: str, file: PreparedFile) -> pa.NativeFile:
        return open_object(self._storage, uri, file)


def size_of_object(storage: S3Storage, uri: str) -> int | None:
    """Bytes of an object, or ``None``."""
    try:
        return storage.size(uri)
    except Unreadable:
        return None


def open_object(storage: S3Storage, uri: str, file: PreparedFile) -> pa.NativeFile:
    """A copy of the object for reading, after its size and sum were compared; the copy goes with the last handle."""
    require_files((file,), lambda _: size_of_object(storage, uri))
    copy = tempfile.TemporaryFile(prefix="cdr-")  # noqa: SIM115 # handed on open
    try:
        require_sum(file, _copied(storage, uri, file.bytes, copy))
    except BaseException:
        copy.close()
        raise
    copy.seek(0)
    return pa.PythonFile(copy, mode="r")


def _copied(storage: S3Storage, uri: str, size: int, copy: IO[bytes]) -> Iterator[bytes]:
    tag = storage.stat(uri).tag
    for offset in range(0, size, CHUNK):
        chunk = storage.read(uri, offset, min(CHUNK, size - offset), tag=tag)
        copy.write(chunk)
        yield chunk
