"""Files of the source that are copied unchanged, under the names that Flink gave them.

An existing copy, of an earlier attempt or a concurrent task, is recognised by its bytes (on S3, where the server
copies, by its size); any other file of that name is refused and left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import google_crc32c

from cdr_core.commit.sinks.checkpoint import CheckpointSink
from cdr_core.errors import Refused, StorageError, Unreadable
from cdr_core.flink.checkpoint import Checkpoint, FileLocation
from cdr_core.flink.metadata import RelativeFile
from cdr_core.flink.state.streams import COMPLETE
from cdr_core.storage import is_local, storage_for
from cdr_core.storage.atomic_write import making

PIECE: Final = 8 * 1024 * 1024
"""Bytes copied at once."""


def copy_file(checkpoint: Checkpoint, file: RelativeFile, sink: CheckpointSink, scratch: Path) -> dict[str, Any]:
    """Copy a file of the source to the target's directory; return its name and size, and the CRC-32C if its bytes
    passed through this process. ``scratch`` has room for one on its way to S3.
    """
    location = checkpoint.resolve(file)
    assert isinstance(location, FileLocation), "a relative handle is a file"
    if "/" in file.path or file.path.startswith("."):
        raise Refused(f"state lies in {file.path!r}, which is no plain name", hint="take another checkpoint")
    source, target = location.uri, sink.uri(file.path)
    size = storage_for(source).size(source)
    if file.size not in (-1, size):
        raise Unreadable(f"{source} has {size} bytes, its checkpoint states {file.size}", hint=COMPLETE)
    copied = {"path": file.path, "bytes": size}
    if is_local(source) or is_local(target):
        return {**copied, "crc32c": _copy_bytes(source, target, size, scratch)}
    _copy_object(source, target, size)
    return copied


def _copy_object(source: str, target: str, size: int) -> None:
    from cdr_core.storage.s3 import S3Storage

    storage = S3Storage()
    if not storage.exists(target):
        storage.copy(source, target)
    _require(storage.size(target) == size, source, target)


def _copy_bytes(source: str, target: str, size: int, scratch: Path) -> int:
    if not storage_for(target).exists(target):
        try:
            with making(target, scratch) as temporary, temporary.open("xb") as file:
                file.writelines(_pieces(source, size))
        except StorageError:
            # Created meanwhile by a task that copies the same file; any other file is refused.
            if not storage_for(target).exists(target):
                raise
    found = _sum(target, size) if storage_for(target).size(target) == size else -1
    _require(found == _sum(source, size), source, target)
    return found


def _require(same: bool, source: str, target: str) -> None:
    if not same:
        raise Refused(f"{target} is there and is no copy of {source}", hint="name an empty or new directory")


def _sum(uri: str, size: int) -> int:
    found = 0
    for piece in _pieces(uri, size):
        found = google_crc32c.extend(found, piece)
    return found


def _pieces(uri: str, size: int) -> Iterator[bytes]:
    storage = storage_for(uri)
    tag = storage.stat(uri).tag
    for offset in range(0, size, PIECE):
        yield storage.read(uri, offset, min(PIECE, size - offset), tag=tag)
