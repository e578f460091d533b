"""What the rest of cdr may do with stored bytes, and who does it for a given URI."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from cdr_core.addresses import canonical
from cdr_core.errors import Refused


@dataclass(frozen=True, slots=True)
class Stat:
    """An object as it is now. ``tag`` changes when its bytes do; ``modified`` is its storage's time, with a zone."""

    size: int
    modified: datetime
    tag: str


class Storage(Protocol):
    """Reads, exclusive creates, listings and deletes. Every failure is a :class:`~cdr_core.errors.CdrError`.

    A missing object is ``Unreadable``; anything that may pass is ``StorageError``.
    """

    def read(self, uri: str, offset: int = 0, length: int | None = None, *, tag: str = "") -> bytes:
        """Exactly the bytes asked for; fewer than ``length`` is an error, never a short answer.

        With a ``tag``, an object that has another one by now is ``Unreadable``.
        """

    def size(self, uri: str) -> int:
        """Bytes of the object."""

    def stat(self, uri: str) -> Stat:
        """What its storage says of the object."""

    def exists(self, uri: str) -> bool:
        """Whether the object is there."""

    def create(self, uri: str, data: bytes) -> bool:
        """Make a new object, durable when this returns; ``False`` (and nothing changed) if the name is taken."""

    def create_from(self, uri: str, file: Path) -> bool:
        """As :meth:`create`, of the bytes of a local file, which stays as it is; memory does not depend on its size."""

    def replace(self, uri: str, data: bytes) -> None:
        """Make an object, or put it in the place of another. For what nothing is decided by: it need not be durable."""

    def list(self, uri: str) -> list[str]:
        """URIs of the objects directly under a directory, sorted; an absent directory is empty."""

    def delete(self, uri: str) -> None:
        """Remove the object if it is there."""


def is_local(uri: str) -> bool:
    """Whether it is a path of this host (a mount included), so that its bytes can be mapped and its files linked."""
    return "://" not in canonical(uri)


def storage_for(uri: str) -> Storage:
    """The storage that serves this URI."""
    scheme, separator, _ = canonical(uri).partition("://")
    if not separator:
        from cdr_core.storage.local import LocalStorage

        return LocalStorage()
    if scheme == "s3":
        from cdr_core.storage.s3 import S3Storage

        return S3Storage()
    raise Refused(f"{uri} is on {scheme}://, which cdr cannot reach", hint="use a local path or s3://")


def join(base: str, *parts: str) -> str:
    """A URI below another; works for paths and URLs alike."""
    return "/".join([base.rstrip("/"), *parts])


def absolute(uri: str) -> str:
    """One spelling per place, whatever links, dots or schemes were written: the target is half of the identity."""
    place = canonical(uri)
    return os.path.realpath(Path(place).expanduser()) if is_local(place) else place
