"""Locates a checkpoint: its directory and the file in it, in every form that users write."""

from __future__ import annotations

from functools import cache

from cdr_core.addresses import SCHEMES
from cdr_core.errors import Unreadable
from cdr_core.flink.checkpoint import METADATA_FILE, Checkpoint, load_checkpoint
from cdr_core.storage import canonical, is_local, join, storage_for
from cdr_core.storage.local import local_path


def open_checkpoint(address: str) -> Checkpoint:
    """Read a checkpoint: its directory, or its metadata file, which may have any name."""
    directory, file = _find(canonical(address).rstrip("/") or "/")
    uri = join(directory, file)
    return parse_checkpoint(directory, storage_for(uri).read(uri), file)


def parse_checkpoint(directory: str, metadata_bytes: bytes, file: str = METADATA_FILE) -> Checkpoint:
    """Return a checkpoint from the bytes of its metadata, whose files may have been moved with it."""
    return load_checkpoint(directory, metadata_bytes, file, cache(_is_there))


def _find(address: str) -> tuple[str, str]:
    """Return directory and name of the metadata file."""
    uri = join(address, METADATA_FILE)
    if storage_for(uri).exists(uri):
        return address, METADATA_FILE
    if _is_file(address):
        directory, slash, file = address.rpartition("/")
        return (directory or slash or "."), file
    storage_for(uri).list(address)  # raises if the bucket is missing or may not be read
    raise Unreadable(f"{address} is not a checkpoint: it has no {METADATA_FILE}", hint="give a chk-N directory")


def _is_file(address: str) -> bool:
    if is_local(address):
        return local_path(address).is_file()
    _, _, key = address.partition("://")
    return "/" in key and storage_for(address).exists(address)


def _is_there(uri: str) -> bool:
    """Return whether a file can be read at this address: an unreachable or unreadable one counts as missing."""
    scheme, separator, _ = uri.partition("://")
    if separator and scheme not in SCHEMES:
        return False
    try:
        return local_path(uri).is_file() if is_local(uri) else storage_for(uri).exists(uri)
    except Unreadable:
        return False
