"""What a writer hands over: files that are durable but that nobody can see yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.errors import other_version
from cdr_core.storage import join
from cdr_core.storage.column_codec import Columns, pack_columns, read_columns, unpack_columns, write_columns

COMMITTABLE_VERSION = 4
"""1 did not say whether the subtask was idle: it counts as active. 2 knew no chunks; 3 had a list of them."""

READABLE_VERSIONS = (1, 2, 3, COMMITTABLE_VERSION)

ROWS_DIGEST = "rows_digest"

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


@dataclass(frozen=True, slots=True)
class StoredChunks:
    """Chunks in a file of columns: a row of the database must not grow with the channels."""

    uri: str
    sha256: str


@dataclass(frozen=True, slots=True)
class PreparedFile:
    """A closed data file, with what it must still be when it is published. ``path`` is as its sink needs it.

    A file of channel state says by ``chunks`` what lies where, because its bytes do not. A file of rows says by
    ``rows_digest`` which values it was written with; one that an earlier version prepared does not.
    """

    path: str
    records: int
    bytes: int
    crc32c: int
    chunks: Chunks | StoredChunks | None = None
    rows_digest: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Without what this kind of file does not have."""
        value = {name: getattr(self, name) for name in ("path", "records", "bytes", "crc32c")}
        if self.rows_digest is not None:
            value[ROWS_DIGEST] = self.rows_digest
        return {**value, "pieces": _stated(self.chunks)} if self.chunks is not None else value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PreparedFile:
        chunks = _understood(value["pieces"]) if value.get("pieces") else None
        digest = value.get(ROWS_DIGEST)
        return cls(value["path"], value["records"], value["bytes"], value["crc32c"], chunks, digest)


def _stated(chunks: Chunks | StoredChunks) -> list[str] | str:
    """Chunks that an earlier version wrote into a row stay in it."""
    return [chunks.uri, chunks.sha256] if isinstance(chunks, StoredChunks) else pack_columns(chunks.to_columns())


def _understood(value: Any) -> Chunks | StoredChunks:
    if isinstance(value, str):
        return Chunks.from_columns(unpack_columns(value))
    return StoredChunks(*value) if isinstance(value[0], str) else Chunks.of_version_3(value)


def store_chunks(file: PreparedFile, directory: str) -> PreparedFile:
    """The file with its chunks in a file of columns of its name in the directory."""
    if not isinstance(file.chunks, Chunks):
        return file
    uri = join(directory, f"{file.path}.chunks")
    return replace(file, chunks=StoredChunks(uri, write_columns(uri, file.chunks.to_columns())))


def chunks_of(file: PreparedFile) -> Chunks:
    """The chunks of a file of channel state. Raise if the file of columns that has them is lost or was changed."""
    if isinstance(file.chunks, StoredChunks):
        return Chunks.from_columns(read_columns(file.chunks.uri, file.chunks.sha256))
    return Chunks.of_version_3(()) if file.chunks is None else file.chunks


@dataclass(frozen=True, slots=True)
class Committable:
    """The output of one subtask for one recovery checkpoint; there is one even when it holds no file.

    ``watermark`` in ms is what the subtask's input had said up to the cut, ``None`` = not everywhere yet; ``idle``:
    nobody has to wait for this subtask's watermark.
    """

    subtask: int
    checkpoint_id: int
    files: tuple[PreparedFile, ...]
    watermark: int | None = None
    idle: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "version": COMMITTABLE_VERSION,
            "subtask": self.subtask,
            "checkpoint_id": self.checkpoint_id,
            "files": [file.to_json() for file in self.files],
            "watermark": self.watermark,
            "idle": self.idle,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Committable:
        if value["version"] not in READABLE_VERSIONS:
            raise other_version("prepared output", value["version"], COMMITTABLE_VERSION)
        files = tuple(PreparedFile.from_json(file) for file in value["files"])
        idle = value["idle"] if value["version"] > 1 else False
        return cls(value["subtask"], value["checkpoint_id"], files, value["watermark"], idle)

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)
