"""Files of this host. Creating is exclusive and durable: temporary file, fsync, hard link, fsync of the directory."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cdr_core.addresses import canonical
from cdr_core.errors import DiskFull, Refused, StorageError, Unreadable
from cdr_core.storage.base import Stat, is_local


def local_path(uri: str) -> Path:
    """The path of a local URI; another one would silently become a directory of a strange name, and is refused."""
    if not is_local(uri):
        raise Refused(f"{uri} is not on a disk of this host", hint="use a local path here")
    return Path(canonical(uri))


class RealNames:
    """The one name of each file or object: one scheme per store, and links among a path's directories resolved.

    Each directory is looked up once, so an instance serves one look at the disk. The last part of a path is left as it
    is: a link in the place of a file is not that file.
    """

    def __init__(self) -> None:
        self._real = cache(os.path.realpath)

    def of(self, uri: str) -> str:
        name = canonical(uri)
        if not is_local(name):
            return name
        directory, _, file = name.rstrip("/").rpartition("/")
        return f"{self._real(directory or '/').rstrip('/')}/{file}"


_TEMPORARY = ".tmp"
_SYNC_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None)
"""Where the system has it; Python gives it no name of its own."""
_SYNC_RANGE_WRITE = 2

MOST_TARGETS = 1024
"""Buffers that one call fills at most."""

LONGEST_SHOWN = 300
"""Characters of a name that cannot be, in an error."""


MACHINE_ID = Path("/etc/machine-id")


def host_id() -> str:
    """This host, as the owner of a local workspace. In images the file is often there and empty: that names no host."""
    known = MACHINE_ID.read_text().strip() if MACHINE_ID.is_file() else ""
    return known if known and known != "uninitialized" else socket.gethostname()


class LocalStorage:
    """See :class:`cdr_core.storage.base.Storage`."""

    def read(self, uri: str, offset: int = 0, length: int | None = None, *, tag: str = "") -> bytes:
        path = local_path(uri)
        with explained(path, "read"), path.open("rb") as file:
            if tag and tag != _tag(os.fstat(file.fileno())):
                raise Unreadable(f"{path} changed while it was being read", hint="use a checkpoint that is complete")
            file.seek(offset)
            data = file.read() if length is None else file.read(length)
        if length is not None and len(data) != length:
            raise StorageError(f"{path} ended after {len(data)} of {length} bytes from offset {offset}")
        return data

    def size(self, uri: str) -> int:
        path = local_path(uri)
        with explained(path, "read"):
            return path.stat().st_size

    def stat(self, uri: str) -> Stat:
        path = local_path(uri)
        with explained(path, "read"):
            found = path.stat()
        return Stat(found.st_size, datetime.fromtimestamp(found.st_mtime, UTC), _tag(found))

    def exists(self, uri: str) -> bool:
        try:
            self.size(uri)
        except Unreadable:
            return False
        return True

    def create(self, uri: str, data: bytes) -> bool:
        path = local_path(uri)
        with explained(path, "write"):
            make_directories(path.parent)
            with temporary_beside(path) as temporary:
                temporary.write_bytes(data)
                return publish_exclusively(temporary, path)

    def create_from(self, uri: str, file: Path) -> bool:
        path = local_path(uri)
        with explained(path, "write"):
            make_directories(path.parent)
            with temporary_beside(path) as temporary:
                with file.open("rb") as source, temporary.open("xb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                return publish_exclusively(temporary, path)

    def replace(self, uri: str, data: bytes) -> None:
        path = local_path(uri)
        with explained(path, "write"):
            make_directories(path.parent)
            with temporary_beside(path) as temporary:
                temporary.write_bytes(data)
                temporary.replace(path)

    def list(self, uri: str) -> list[str]:
        path = local_path(uri)
        with explained(path, "list"):
            if not path.is_dir():
                return []
            return sorted(str(entry) for entry in path.iterdir() if entry.is_file() and not is_temporary(entry))

    def delete(self, uri: str) -> None:
        path = local_path(uri)
        with explained(path, "delete"):
            path.unlink(missing_ok=True)


def _tag(found: os.stat_result) -> str:
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"


@contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """A name in the same directory that is gone afterwards, whatever happened."""
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}{_TEMPORARY}"
    try:
        yield temporary
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def is_temporary(path: Path) -> bool:
    """Whether a name is one of :func:`temporary_beside`: not an object yet."""
    return path.name.startswith(".") and path.name.endswith(_TEMPORARY)


def is_writable(path: Path) -> bool:
    """Whether something can be made there, found out by making and removing it in the first directory that exists."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    probe = existing / f".cdr-probe-{uuid.uuid4().hex}{_TEMPORARY}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def make_directories(path: Path, mode: int = 0o777) -> None:
    """Make a directory and its missing parents; their names are on the disk when this returns."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(mode, parents=True, exist_ok=True)
    for each in missing:
        sync_path(each.parent)


def publish_exclusively(temporary: Path, path: Path) -> bool:
    """Give a closed file its name: sync its bytes, link it, sync the directory. Return ``False`` if the name is taken:
    the link, unlike a rename, never replaces a file.
    """
    sync_path(temporary)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    sync_path(path.parent)
    return True


def sync_path(path: Path) -> None:
    """Make the bytes of a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def start_writing(descriptor: int, offset: int, size: int) -> None:
    """Ask the system to begin writing a range to the disk, and do not wait for it. A hint: an error shows in fsync."""
    if _SYNC_RANGE is not None:
        _SYNC_RANGE(descriptor, ctypes.c_int64(offset), ctypes.c_int64(size), _SYNC_RANGE_WRITE)


def read_into(path: Path, offset: int, target: memoryview) -> None:
    """Fill ``target`` from an offset of a file; a file that ends before is an error. As much again is asked for ahead:
    who reads on finds it in memory, also where a disk is slow.
    """
    with explained(path, "read"):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < len(target):
                count = os.preadv(descriptor, [target[done:]], offset + done)
                if not count:
                    raise StorageError(f"{path} ended after {done} of {len(target)} bytes from offset {offset}")
                done += count
            os.posix_fadvise(descriptor, offset + done, done, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


def read_scattered(uri: str, offset: int, targets: list[memoryview]) -> None:
    """Fill the targets, one behind another, from an offset of a file. Read by a call: a mapped file that is cut short
    would kill the process.
    """
    path = local_path(uri)
    with explained(path, "read"):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for begin in range(0, len(targets), MOST_TARGETS):
                few = targets[begin : begin + MOST_TARGETS]
                size = sum(map(len, few))
                if os.preadv(descriptor, few, offset) != size:
                    raise Unreadable(f"{path} ends before byte {offset + size}")
                offset += size
        finally:
            os.close(descriptor)


def map_file(uri: str) -> npt.NDArray[np.uint8]:
    """A local file as a read-only byte array; pages come and go with the kernel's cache, not with our memory."""
    path = local_path(uri)
    with explained(path, "read"), path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return np.zeros(0, dtype=np.uint8)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


@contextmanager
def explained(path: Path, verb: str) -> Iterator[None]:
    """Turn an operating-system error into one sentence."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        if verb != "read":
            raise StorageError(f"cannot {verb} {path}: {error.strerror}", hint="check the path") from error
        raise Unreadable(f"{path} does not exist", hint="check the path") from None
    except IsADirectoryError:
        raise Unreadable(f"{path} is a directory, not a file", hint="check the path") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise _no_name(path, verb) from None
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskFull(f"no room left to write {path}", hint="free some space and run it again") from error
        raise StorageError(f"cannot {verb} {path}: {error.strerror}", hint="check its permissions") from error
    except ValueError as error:  # U+0000, or half of a surrogate pair
        raise _no_name(path, verb) from error


def _no_name(path: Path, verb: str) -> Refused | Unreadable:
    """No retry helps; the name may be of any length and hold what no terminal shows."""
    shown = ascii(str(path))
    what = f"{shown if len(shown) <= LONGEST_SHOWN else shown[:LONGEST_SHOWN] + '…'} is no name that a file can have"
    return Refused(what, hint="check the path") if verb == "write" else Unreadable(what, hint="check the path")
