"""New objects that are written as files first: beside their place on a disk, in a scratch directory for S3."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdr_core.errors import Refused, StorageError, Unreadable
from cdr_core.storage.base import is_local, join, storage_for
from cdr_core.storage.local import (
    explained,
    is_writable,
    local_path,
    make_directories,
    publish_exclusively,
    temporary_beside,
)


@contextmanager
def making(uri: str, scratch: Path) -> Iterator[Path]:
    """Yield a file to write. When the block ends with the file closed, it becomes the object: exclusively, durably, and
    without a copy on a local disk. After an error the file is removed.
    """
    path = local_path(uri) if is_local(uri) else scratch / f"{uuid.uuid4().hex}-{uri.rpartition('/')[2]}"
    with explained(path, "write"):
        make_directories(path.parent)
    with temporary_beside(path) as temporary:
        yield temporary
        made = publish_exclusively(temporary, path) if is_local(uri) else storage_for(uri).create_from(uri, temporary)
    if not made:
        raise StorageError(f"{uri} was taken by another process", hint="run it again")


def is_usable(directory: str) -> bool:
    """Whether new objects can be made below a directory, found out by making one."""
    if is_local(directory):
        return is_writable(local_path(directory))
    storage, probe = storage_for(directory), join(directory, f"cdr-probe-{uuid.uuid4().hex}")
    try:
        storage.create(probe, b"1")
        exclusive = not storage.create(probe, b"2")
        storage.delete(probe)
    except (Unreadable, StorageError):
        return False
    if not exclusive:
        # Two attempts that both believe to have given an answer would be two truths.
        raise Refused(f"the server of {directory} ignores If-None-Match", hint="use one that knows it")
    return True
