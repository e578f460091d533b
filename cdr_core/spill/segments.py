"""The spill format: what a segment, a file and a manifest are.

Segment: 12-byte big-endian header (gate, channel, body length), then a body of length-prefixed records. A segment
belongs to one virtual channel and never crosses files. The manifest names every file and segment with its CRC-32C and
is sealed last: without it the set does not exist. Beside the segments lies one file with each record's position in
its virtual channel (little-endian int64), because the table keeps that position and the records themselves do not
carry it; each segment knows the CRC-32C of its own stretch of that file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cdr_core.errors import other_version

HEADER = struct.Struct(">iii")
MANIFEST_VERSION = 2
"""1 had no checksum of the positions: those of such a set are taken as they are."""

READABLE_VERSIONS = (1, MANIFEST_VERSION)
POSITION_BYTES = 8


@dataclass(frozen=True, slots=True)
class SpillFile:
    """A sealed file of whole segments; never empty."""

    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Where a segment lies (``file`` is an index into the set's files) and what its body holds.

    ``channel`` is the new channel (in the header too), ``virtual_channel`` the old one, by its number in the plan.
    """

    file: int
    offset: int
    gate: int
    channel: int
    length: int
    records: int
    crc32c: int
    virtual_channel: int
    positions_crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class SpillSet:
    """A sealed set: segments in drain order, the positions of their records, and the ledger of what they hold."""

    subtask: int
    files: tuple[SpillFile, ...]
    segments: tuple[Segment, ...]
    positions: str | None
    ledger: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "version": MANIFEST_VERSION,
            "subtask": self.subtask,
            "files": [asdict(file) for file in self.files],
            "segments": [[getattr(segment, name) for name in Segment.__slots__] for segment in self.segments],
            "positions": self.positions,
            "ledger": list(self.ledger),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SpillSet:
        if value["version"] not in READABLE_VERSIONS:
            raise other_version("a spill manifest", value["version"], MANIFEST_VERSION)
        return cls(
            value["subtask"],
            tuple(SpillFile(**file) for file in value["files"]),
            tuple(Segment(*segment) for segment in value["segments"]),
            value["positions"],
            tuple(value["ledger"]),
        )
