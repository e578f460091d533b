"""What the rest of cdr may do with stored bytes, and who does it for a given URI."""

from __future__ import annotations

from typing import Protocol

from cdr_core.errors import Refused


class Storage(Protocol):
    """Reads, exclusive creates, listings and deletes. Every failure is a :class:`~cdr_core.errors.CdrError`.

    A missing object is ``Unreadable``; anything that may pass is ``StorageError``.
    """

    def read(self, uri: str, offset: int = 0, length: int | None = None) -> bytes:
        """Exactly the bytes asked for; fewer than ``length`` is an error, never a short answer."""

    def size(self, uri: str) -> int:
        """Bytes of the object."""

    def exists(self, uri: str) -> bool:
        """Whether the object is there."""

    def create(self, uri: str, data: bytes) -> bool:
        """Make a new object, durable when this returns; ``False`` (and nothing changed) if the name is taken."""

    def list(self, uri: str) -> list[str]:
        """URIs of the objects directly under a directory, sorted; an absent directory is empty."""

    def delete(self, uri: str) -> None:
        """Remove the object if it is there."""


def storage_for(uri: str) -> Storage:
    """The storage that serves this URI."""
    scheme, separator, _ = uri.partition("://")
    if not separator or scheme == "file":
        from cdr_core.storage.local import LocalStorage

        return LocalStorage()
    if scheme == "s3":
        from cdr_core.storage.s3 import S3Storage

        return S3Storage()
    raise Refused(f"{uri} is on {scheme}://, which cdr cannot reach", hint="use a local path or s3://")


def join(base: str, *parts: str) -> str:
    """A URI below another; works for paths and URLs alike."""
    return "/".join([base.rstrip("/"), *parts])
