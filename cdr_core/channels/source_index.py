"""The objects that hold a checkpoint's channel state, as `read` found them: size, ETag and, where possible, a pin.

A pin is a hard link in the workspace: a clean-up of the source cannot remove a pinned file. The index is a file of the
workspace. A worker loads it before a unit of the recovery, a driver before a phase; all readers open objects through
it. An object that has another ETag by now was changed, and is refused; changes of a file show in its sums.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path

import msgspec

from cdr_core.errors import SourceChanged, Unreadable
from cdr_core.storage import Stat, is_local, storage_for
from cdr_core.storage.local import local_path, make_directories, read_scattered, sync_path

VERSION = 2
"""An index of version 1 names bytes that an earlier version copied to the workspace; the source is read instead."""


class SourceObject(msgspec.Struct, frozen=True):
    """An object as `read` found it. ``tag`` is empty for a file: one that was restored from a backup has another inode
    and maybe time. ``pin`` is its link in the workspace; empty where it has none.
    """

    size: int
    tag: str
    pin: str = ""


class SourceIndex(msgspec.Struct, frozen=True):
    """The objects by address. ``immutable``: the user declares that the source is neither changed nor removed."""

    version: int
    objects: dict[str, SourceObject]
    immutable: bool = False

    def place(self, uri: str) -> str:
        """Return where the bytes of an object are read: at its pin, else in place. A pin goes when its recovery ends,
        and an export may read on.
        """
        known = self.objects.get(uri)
        return known.pin if known is not None and known.pin and Path(known.pin).exists() else uri

    @property
    def is_remote(self) -> bool:
        """Return whether bytes have to be fetched."""
        return not all(map(is_local, self.objects))

    def lasts(self, uri: str) -> bool:
        """Return whether the drain may rely on finding the object: it is pinned, declared immutable, or on an object
        store, where a tag shows every change.
        """
        known = self.objects.get(uri)
        return known is not None and bool(known.pin or self.immutable or not is_local(uri))

    def read_into(self, uri: str, offset: int, targets: list[memoryview]) -> None:
        """Fill the targets, one behind another, from a range of an object. A missing or changed one is
        :class:`SourceChanged`; a transient failure is a ``StorageError``.
        """
        known = self.objects.get(uri)
        tag = known.tag if known is not None else ""
        try:
            if is_local(uri):
                read_scattered(self.place(uri), offset, targets)
            else:
                data = memoryview(storage_for(uri).read(uri, offset, sum(map(len, targets)), tag=tag))
                at = 0
                for target in targets:
                    target[:] = data[at : at + len(target)]
                    at += len(target)
        except Unreadable as error:
            # The user knows the file by its own name, not by its pin's.
            raise source_changed(error.what.replace(self.place(uri), uri), uri) from None

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def source_changed(what: str, *uris: str) -> SourceChanged:
    """The error for an object, or for one of several, that is not what `read` read."""
    which = f"the source file {uris[0]}" if len(uris) == 1 else f"one of the source files {', '.join(uris)}"
    return SourceChanged(
        f"{which} is gone or was changed since it was read: {what}",
        hint="restore it and resume, or recover another checkpoint",
    )


NO_INDEX = SourceIndex(VERSION, {})


def make_index(uris: Sequence[str], pins: Path | None, *, immutable: bool) -> SourceIndex:
    """Stat every object, and pin the local ones below ``pins``. A missing one is left out: the unit that needs it
    reports it.
    """
    links = _pinned([uri for uri in uris if is_local(uri)], pins)
    with ThreadPoolExecutor(max_workers=8) as pool:
        stats = list(pool.map(_stat, [links.get(uri, uri) for uri in uris]))
    objects = {
        uri: SourceObject(found.size, "" if is_local(uri) else found.tag, links.get(uri, ""))
        for uri, found in zip(uris, stats, strict=True)
        if found is not None
    }
    return SourceIndex(VERSION, objects, immutable)


def _stat(uri: str) -> Stat | None:
    try:
        return storage_for(uri).stat(uri)
    except Unreadable:
        return None


def _pinned(uris: Sequence[str], directory: Path | None) -> dict[str, str]:
    """Return a link to each file that can have one: another file system, or another owner's file, may refuse it."""
    links: dict[str, str] = {}
    if directory is None or not uris:
        return links
    make_directories(directory)
    for number, uri in enumerate(uris):
        link = directory / f"{number:05d}"
        try:
            os.link(local_path(uri), link)
        except OSError:
            continue
        links[uri] = str(link)
    sync_path(directory)
    return links


_in_use: ContextVar[tuple[str, str]] = ContextVar("cdr_source_index", default=("", ""))
"""The SHA-256 of a checkpoint's metadata, and its index: of this thread, as several recoveries may share a process."""


def use_index(metadata_sha256: str, index: str) -> None:
    """Make this thread read objects of this checkpoint by the index; without one, in place."""
    _in_use.set((metadata_sha256, index))


@contextmanager
def using_index(metadata_sha256: str, index: str) -> Iterator[None]:
    """Do :func:`use_index` while the block runs: a process that serves users goes on to other checkpoints."""
    token = _in_use.set((metadata_sha256, index))
    try:
        yield
    finally:
        _in_use.reset(token)


def index_of(metadata_sha256: str) -> SourceIndex:
    """Return the index that `read` made of a checkpoint's objects; an empty one outside of a recovery."""
    checkpoint, uri = _in_use.get()
    return _load(uri) if uri and checkpoint == metadata_sha256 else NO_INDEX


@lru_cache(maxsize=4)
def _load(uri: str) -> SourceIndex:
    data = storage_for(uri).read(uri)
    if msgspec.json.decode(data)["version"] != VERSION:
        return NO_INDEX
    return msgspec.json.decode(data, type=SourceIndex)
