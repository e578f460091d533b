"""The output of generate: a local directory or a prefix on S3; complete when it is published, otherwise removed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Protocol

from cdr_core.errors import CdrError, DiskFull, Refused, StorageError
from cdr_core.flink.channel_writer import Stream
from cdr_core.flink.checkpoint import METADATA_FILE
from cdr_core.storage import canonical, is_local, join, storage_for

if TYPE_CHECKING:
    from cdr_core.storage.upload import Upload


class Output(Protocol):
    """The files of a checkpoint: all exist when the block ends, or none, because a failure removes them."""

    address: str

    def __enter__(self) -> Output: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def create(self, name: str) -> Stream:
        """Return a new file of this name, open until it settles."""

    def settle(self) -> None:
        """Make all files complete and durable, so that a crash cannot truncate a file that is named."""

    def publish(self, metadata: bytes) -> None:
        """Write the metadata last: without it there is no checkpoint, with it a complete one."""


def new_output(directory: str) -> Output:
    """Return the output for a directory; refuse one that is not empty."""
    place = canonical(directory)
    if place.startswith("s3://"):
        return NewObjects(place.rstrip("/"))
    if not is_local(place):
        raise Refused(f"{directory} is neither a local directory nor on s3://", hint="give one that is")
    path = Path(place).expanduser().absolute()
    with _as_cdr_error(path):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise Refused(f"{path} exists and is not empty", hint="give a new directory")
    return NewFiles(path)


def _publish(address: str, metadata: bytes) -> None:
    uri = join(address, METADATA_FILE)
    if not storage_for(uri).create(uri, metadata):
        raise Refused(f"{uri} appeared meanwhile", hint="give a directory that no other process writes to")


class NewObjects:
    """An :class:`Output` on S3. Parts are uploaded while later bytes are made; each open object holds one part."""

    def __init__(self, address: str) -> None:
        from cdr_core.storage.s3 import S3Storage

        self.address, self._storage = address, S3Storage()
        if self._storage.list(address):
            raise Refused(f"{address} exists and is not empty", hint="give a new prefix")
        self._open: list[Upload] = []
        self._finished: list[str] = []

    def __enter__(self) -> NewObjects:
        return self

    def create(self, name: str) -> Stream:
        self._open.append(self._storage.upload(join(self.address, name)))
        return self._open[-1]

    def settle(self) -> None:
        while self._open:
            self._open[-1].finish()
            self._finished.append(self._open.pop().uri)

    def publish(self, metadata: bytes) -> None:
        _publish(self.address, metadata)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if kind is None:
            return
        for upload in self._open:
            with suppress(CdrError):
                upload.abort()
        for uri in self._finished:
            with suppress(CdrError):
                self._storage.delete(uri)


class NewFiles:
    """See :class:`Output`."""

    def __init__(self, directory: Path) -> None:
        self.address, self._directory = str(directory), directory
        self._existed = directory.exists()
        self._files: dict[Path, BinaryIO] = {}

    def __enter__(self) -> NewFiles:
        with _as_cdr_error(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
        return self

    def create(self, name: str) -> Stream:
        path = self._directory / name
        with _as_cdr_error(path):
            self._files[path] = path.open("xb")
        return _Written(path, self._files[path])

    def settle(self) -> None:
        for path, file in self._files.items():
            with _as_cdr_error(path):
                file.flush()
                os.fsync(file.fileno())
                file.close()

    def publish(self, metadata: bytes) -> None:
        _publish(self.address, metadata)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if kind is None:
            return
        for path, file in self._files.items():
            with suppress(OSError):
                file.close()
            path.unlink(missing_ok=True)
        if not self._existed:
            with suppress(OSError):
                self._directory.rmdir()


class _Written:
    """A file whose failures are errors of cdr."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file

    def write(self, data: bytes, /) -> None:
        with _as_cdr_error(self._path):
            self._file.write(data)


@contextmanager
def _as_cdr_error(path: Path) -> Iterator[None]:
    """Turn an operating-system error into an error of cdr."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskFull(f"no room left to write {path}", hint="free some space or generate less") from error
        if error.errno == errno.EMFILE:
            raise StorageError("too many open files", hint="give a larger --subtasks-per-file") from error
        raise StorageError(f"cannot write {path}: {error.strerror}", hint="check the path") from error
