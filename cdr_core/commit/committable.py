"""What a writer hands over: files that are durable but that nobody can see yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cdr_core.errors import Refused

COMMITTABLE_VERSION = 2
"""1 did not say whether the subtask was idle: whoever wrote it counts as active."""

READABLE_VERSIONS = (1, COMMITTABLE_VERSION)


@dataclass(frozen=True, slots=True)
class PreparedFile:
    """A closed data file, with what it must still be when it is published. ``path`` is as its sink needs it."""

    path: str
    records: int
    bytes: int
    crc32c: int


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
        return {"version": COMMITTABLE_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Committable:
        if value["version"] not in READABLE_VERSIONS:
            raise Refused(f"prepared output has version {value['version']}, this cdr reads up to {COMMITTABLE_VERSION}")
        files = tuple(PreparedFile(**file) for file in value["files"])
        idle = value["idle"] if value["version"] > 1 else False
        return cls(value["subtask"], value["checkpoint_id"], files, value["watermark"], idle)

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)
