"""Arrays by name, as bytes: in a file of their own, or as text inside a JSON value."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cdr_core.errors import StorageError, Unreadable, other_version
from cdr_core.storage.base import storage_for

FILE_VERSION = 1
TEXT = "columns:"
"""How columns begin that are text: nothing takes them for an address."""

Columns = Mapping[str, npt.NDArray[Any]]

_HINT = "restore the file, or start over: run the same command with --replace"


class Column(msgspec.Struct, frozen=True, array_like=True):
    """An array as it is stored."""

    dtype: str
    shape: tuple[int, ...]
    data: bytearray

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> Column:
        return cls(array.dtype.str, array.shape, bytearray(np.ascontiguousarray(array).tobytes()))

    def array(self) -> npt.NDArray[Any]:
        return np.frombuffer(self.data, np.dtype(self.dtype)).reshape(self.shape)


class ColumnFile(msgspec.Struct, frozen=True):
    """Columns, and a small value with them."""

    version: int
    detail: dict[str, Any]
    columns: dict[str, Column]


_DECODER = msgspec.msgpack.Decoder(ColumnFile)


def encode_columns(detail: Mapping[str, Any], columns: Columns) -> bytes:
    packed = {name: Column.of(array) for name, array in columns.items()}
    return msgspec.msgpack.encode(ColumnFile(FILE_VERSION, dict(detail), packed))


def decode_columns(data: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The small value and the arrays. Raise ``Unreadable`` for bytes that are none."""
    try:
        found = _DECODER.decode(data)
        columns = {name: column.array() for name, column in found.columns.items()}
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise Unreadable(f"a file of columns is damaged: {error}", hint=_HINT) from None
    if found.version != FILE_VERSION:
        raise other_version("a file of columns", found.version, FILE_VERSION)
    return found.detail, columns


def pack_columns(columns: Columns) -> str:
    """Columns as text, compressed."""
    return TEXT + base64.b64encode(zlib.compress(encode_columns({}, columns), 1)).decode()


def unpack_columns(text: str) -> dict[str, npt.NDArray[Any]]:
    try:
        data = zlib.decompress(base64.b64decode(text.removeprefix(TEXT)))
    except (ValueError, zlib.error) as error:
        raise Unreadable(f"packed columns are damaged: {error}", hint=_HINT) from None
    return decode_columns(data)[1]


def write_columns(uri: str, columns: Columns, detail: Mapping[str, Any] | None = None) -> str:
    """Create a file of columns; its SHA-256."""
    data = encode_columns(detail or {}, columns)
    storage_for(uri).create(uri, data)
    return hashlib.sha256(data).hexdigest()


def read_columns(uri: str, sha256: str) -> dict[str, npt.NDArray[Any]]:
    """The columns of a file that was written with this SHA-256; one that is lost or was changed is an error."""
    return read_file(uri, sha256)[1]


def read_file(uri: str, sha256: str) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """As :func:`read_columns`, with the small value."""
    try:
        data = storage_for(uri).read(uri)
    except Unreadable as error:
        raise StorageError(f"{uri} is gone: {error.what}", hint=_HINT) from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise StorageError(f"{uri} was changed since it was written", hint=_HINT)
    return decode_columns(data)
