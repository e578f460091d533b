"""What a writer hands over: files that are durable but that nobody can see yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from cdr_core.errors import other_version

COMMITTABLE_VERSION = 3
"""1 did not say whether the subtask was idle: whoever wrote it counts as active. 2 knew no pieces of channels."""

READABLE_VERSIONS = (1, 2, COMMITTABLE_VERSION)


@dataclass(frozen=True, slots=True)
class Piece:
    """Chunks in a file of channel state that hold elements of one virtual channel, by its number in the plan.

    ``side`` is ``input`` or ``output``; ``size`` is that of the chunks with their length fields, which lie at
    ``offsets``.
    """

    channel: int
    side: str
    size: int
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PreparedFile:
    """A closed data file, with what it must still be when it is published. ``path`` is as its sink needs it.

    A file of channel state says by ``pieces`` what lies where, because its bytes do not.
    """

    path: str
    records: int
    bytes: int
    crc32c: int
    pieces: tuple[Piece, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Without pieces where there are none: a table's file has no such thing."""
        value = {name: getattr(self, name) for name in ("path", "records", "bytes", "crc32c")}
        return {**value, "pieces": [[*astuple(piece)] for piece in self.pieces]} if self.pieces else value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PreparedFile:
        pieces = (Piece(number, side, size, tuple(at)) for number, side, size, at in value.get("pieces", ()))
        return cls(value["path"], value["records"], value["bytes"], value["crc32c"], tuple(pieces))


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
