"""File access for pyiceberg that survives a power cut: files of this host are on the disk when they are closed.

pyiceberg writes metadata and then moves the catalog's pointer to it. Without this the pointer, which the catalog's
database does sync, could outlive the bytes it points to.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from cdr_core.storage.local import make_directories, sync_path


class DurableStream:
    """A new local file; synced, with its directory, when it is closed."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self._path = path
        make_directories(path.parent)
        self._file = path.open("wb" if overwrite else "xb")

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if self._file.closed:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        sync_path(self._path.parent)

    def __enter__(self) -> OutputStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class DurableFile(PyArrowFile):
    """A local file as pyiceberg knows it."""

    def create(self, overwrite: bool = False) -> OutputStream:
        return DurableStream(Path(self._path), overwrite=overwrite)


class DurableFileIO(PyArrowFileIO):
    """pyiceberg's own file access, with durable files where they are this host's."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme == "file":
            return DurableFile(fs=self.fs_by_scheme(scheme, netloc), location=location, path=path)
        return super().new_output(location)
