"""What a writer hands over: files that are durable but not visible yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cdr_core.errors import other_version
from cdr_core.storage import join
from cdr_core.storage.column_codec import Columns, pack_columns, read_columns, unpack_columns, write_columns

COMMITTABLE_VERSION = 4
"""1 did not say whether the subtask was idle: it counts as active. 2 knew no chunks; 3 had a list of them."""

READABLE_VERSIONS = (1, 2, 3, COMMITTABLE_VERSION)

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """The chunks of a file of channel state, in the order of the file, as columns.

    Chunk i holds elements of virtual channel ``channel[i]`` (by its number in the plan), is output state or input
    state, and lies at ``offset[i]`` with ``size[i]`` bytes, its length field included.
    """

    channel: Longs
    output: npt.NDArray[np.bool_]
    offset: Longs
    size: Longs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chunks) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    def to_columns(self) -> dict[str, npt.NDArray[Any]]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_columns(cls, columns: Columns) -> Chunks:
        return cls(*(columns[name] for name in cls.__slots__))

    @classmethod
    def of_version_3(cls, value: Any) -> Chunks:
        """From (channel, side, size, offsets) of each channel."""
        rows = sorted((at, number, side == "output") for number, side, _, offsets in value for at in offsets)
        if not rows:
            return cls(*(np.zeros(0, kind) for kind in (np.int64, bool, np.int64, np.int64)))
        offset, channel, output = (np.array(column) for column in zip(*rows, strict=True))
        # A file holds nothing but its chunks, so each ends where the next one begins; the last, by the sum of sizes.
        end = int(offset[0]) + sum(size for _, _, size, _ in value)
        return cls(channel, output, offset, np.diff(np.append(offset, end)))


class PreparedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A closed data file, with what it must still be when it is published. ``path`` is as its sink needs it.

    A file of rows says by ``rows_digest`` which values it was written with; one that an earlier version prepared does
    not. A file of channel state says by ``pieces`` what lies where, because its bytes do not: chunks as packed columns,
    or the address and SHA-256 of a file that has them. Version 3 had a list of them.
    """

    path: str
    records: int
    bytes: int
    crc32c: int
    rows_digest: str | None = None
    pieces: str | tuple[Any, ...] | None = None

    def with_chunks(self, chunks: Chunks) -> PreparedFile:
        return msgspec.structs.replace(self, pieces=pack_columns(chunks.to_columns()))

    @property
    def chunks_uri(self) -> str | None:
        """The file that has its chunks, if they have one of their own."""
        return self.pieces[0] if isinstance(self.pieces, tuple) and _is_stored(self.pieces) else None


def _is_stored(pieces: tuple[Any, ...]) -> bool:
    return bool(pieces) and isinstance(pieces[0], str)


def store_chunks(file: PreparedFile, directory: str) -> PreparedFile:
    """The file with its chunks in a file of columns of its name in the directory: a row must not grow with them."""
    if not isinstance(file.pieces, str):
        return file
    uri = join(directory, f"{file.path}.chunks")
    return msgspec.structs.replace(file, pieces=(uri, write_columns(uri, unpack_columns(file.pieces))))


def chunks_of(file: PreparedFile) -> Chunks:
    """The chunks of a file of channel state. Raise if the file of columns that has them is lost or was changed."""
    if isinstance(file.pieces, str):
        return Chunks.from_columns(unpack_columns(file.pieces))
    pieces = file.pieces or ()
    return Chunks.from_columns(read_columns(*pieces)) if _is_stored(pieces) else Chunks.of_version_3(pieces)


class Committable(msgspec.Struct, frozen=True):
    """The output of one subtask for one recovery checkpoint; there is one even when it holds no file.

    ``watermark`` in ms is what the subtask's input had reached at the cut, ``None`` = unknown for some channel;
    ``idle``: the watermark of this subtask holds no other one back.
    """

    subtask: int
    checkpoint_id: int
    files: tuple[PreparedFile, ...]
    watermark: int | None = None
    idle: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"version": COMMITTABLE_VERSION, **msgspec.to_builtins(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Committable:
        if value["version"] not in READABLE_VERSIONS:
            raise other_version("prepared output", value["version"], COMMITTABLE_VERSION)
        return msgspec.convert(value, cls)

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)
