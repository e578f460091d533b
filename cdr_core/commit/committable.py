"""What a writer hands over: files that are durable but that nobody can see yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cdr_core.errors import Refused

COMMITTABLE_VERSION = 1


@dataclass(frozen=True, slots=True)
class PreparedFile:
    """A closed data file, relative to the target, with what it must still be when it is published."""

    path: str
    records: int
    bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Committable:
    """The output of one subtask for one recovery checkpoint; there is one even when it holds no file."""

    subtask: int
    checkpoint_id: int
    files: tuple[PreparedFile, ...]
    watermark: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {"version": COMMITTABLE_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Committable:
        if value["version"] != COMMITTABLE_VERSION:
            raise Refused(f"prepared output has version {value['version']}, this cdr reads {COMMITTABLE_VERSION}")
        files = tuple(PreparedFile(**file) for file in value["files"])
        return cls(value["subtask"], value["checkpoint_id"], files, value["watermark"])

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)
