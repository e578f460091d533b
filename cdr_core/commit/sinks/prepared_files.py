"""Prepared Parquet files: written once by one task, summed up on the way, and checked before anybody may see them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from cdr_core.audit.row_digest import RowDigest
from cdr_core.commit.committable import PreparedFile
from cdr_core.errors import Unreadable
from cdr_core.storage.local import explained, make_directories, sync_path

CHUNK = 1024 * 1024
"""Bytes of a prepared file that are looked at together when its sum is taken."""
LOST = "the source checkpoint is untouched: recover it to another target"


class Output(Protocol):
    """Where the bytes of a prepared file go."""

    def write(self, data: bytes) -> int: ...

    def finish(self) -> None:
        """Make what was written durable under its name."""

    def discard(self) -> None:
        """Leave nothing behind; never fails."""


class LocalOutput:
    """A new file of this host."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with explained(path, "write"):
            self._file: BinaryIO = _create(path)

    def write(self, data: bytes) -> int:
        with explained(self._path, "write"):
            return self._file.write(data)

    def finish(self) -> None:
        with explained(self._path, "write"):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            sync_path(self._path.parent)

    def discard(self) -> None:
        with suppress(OSError):
            self._file.close()
            self._path.unlink(missing_ok=True)
        with suppress(OSError):  # it goes when nothing else is in it; who is about to write there makes it again
            self._path.parent.rmdir()


def _create(path: Path) -> BinaryIO:
    """A new file and its directories, which a task that gave up may just be taking away."""
    for _ in range(9):
        with suppress(FileNotFoundError):
            make_directories(path.parent)
            return path.open("xb")
    return path.open("xb")


class Summed:
    """A file that counts and sums up the bytes that are written to it."""

    closed = False

    def __init__(self, output: Output) -> None:
        self._output, self.crc32c, self.size = output, 0, 0

    def write(self, data: bytes) -> int:
        data = bytes(data)
        self.crc32c = google_crc32c.extend(self.crc32c, data)
        self._output.write(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Only the end counts."""

    def close(self) -> None:
        """The writer's end is not the file's: it is still to be made durable."""


REPEATED = ("exchange", "gate", "up", "down", "new_up", "new_down", "key_group", "row_kind")
"""Columns with few values, each many times. A dictionary of any other is made, found to be too large, and given up."""


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """How pyarrow writes a table's files."""
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": [name for name in REPEATED if name in schema.names],
    }


class ParquetFileWriter:
    """See :class:`cdr_core.commit.sinks.base.TableWriter`."""

    def __init__(self, output: Output, path: str, schema: pa.Schema, row_group: int) -> None:
        self._output, self._path, self._schema = output, path, schema
        self._row_group = row_group
        self._summed = Summed(output)
        self._writer = pq.ParquetWriter(self._summed, schema, **parquet_options(schema))
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._records = 0
        self._digest = RowDigest()
        self._prepared: PreparedFile | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        self._digest.add(batch)
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        self._records += batch.num_rows
        if self._pending_bytes >= self._row_group:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            table = pa.Table.from_batches(self._pending)
            self._writer.write_table(table if table.schema == self._schema else table.cast(self._schema))
            self._pending, self._pending_bytes = [], 0

    @property
    def prepared(self) -> PreparedFile | None:
        return self._prepared

    def close(self) -> None:
        self._flush()
        self._writer.close()
        self._output.finish()
        self._prepared = PreparedFile(
            self._path, self._records, self._summed.size, self._summed.crc32c, rows_digest=self._digest.hex
        )

    def discard(self) -> None:
        with suppress(Exception):
            self._writer.close()
        self._output.discard()


@contextmanager
def parquet_writer(output: Output, path: str, schema: pa.Schema, row_group: int) -> Iterator[ParquetFileWriter]:
    """A writer whose file is durable after a clean exit and gone after any other."""
    writer = ParquetFileWriter(output, path, schema, row_group)
    try:
        yield writer
        writer.close()
    except BaseException:
        writer.discard()
        raise


def require_files(files: tuple[PreparedFile, ...], size_of: Callable[[PreparedFile], int | None]) -> None:
    """Every file is there with its size, or an error that lists those that are not. ``None`` from ``size_of``: gone."""
    wrong = []
    for file in files:
        size = size_of(file)
        if size is None:
            wrong.append(f"{file.path} is missing")
        elif size != file.bytes:
            wrong.append(f"{file.path} has {size} bytes instead of {file.bytes}")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise Unreadable(f"prepared files cannot be published: {'; '.join(wrong[:3])}{more}", hint=LOST)


def require_sum(file: PreparedFile, chunks: Iterator[bytes]) -> None:
    """The bytes are those that were written."""
    found = 0
    for chunk in chunks:
        found = google_crc32c.extend(found, chunk)
    if found != file.crc32c:
        raise Unreadable(f"prepared file {file.path} was changed after it was written", hint=LOST)


def open_local(path: Path, file: PreparedFile) -> pa.NativeFile:
    """A prepared file of this host for reading, after its size and sum were compared."""
    require_files((file,), lambda _: local_size(path))
    with explained(path, "read"), path.open("rb") as source:
        require_sum(file, iter(lambda: source.read(CHUNK), b""))
    return pa.OSFile(str(path), "rb")


def local_size(path: Path) -> int | None:
    """Bytes of a local file, or ``None``."""
    return path.stat().st_size if path.is_file() else None
