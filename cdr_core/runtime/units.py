"""Units of work of `read`, `filter` and `spill`: what a driver writes to ``units.json`` and an executor reads."""

from __future__ import annotations

import msgspec

from cdr_core.planning.dropped_records import Ranges
from cdr_core.spill.tiers import Tier
from cdr_core.storage.column_codec import Columns, read_columns


class StoredColumns(msgspec.Struct, frozen=True, array_like=True):
    """A file of columns, with the SHA-256 that it must have when it is read."""

    uri: str
    sha256: str

    def read(self) -> Columns:
        return read_columns(self.uri, self.sha256)


class ReadUnit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Channels ``first`` to ``end`` of the plan; ``drops``: per channel the positions that are left out."""

    first: int
    end: int
    drops: dict[int, Ranges] = {}


class FilterUnit(msgspec.Struct, frozen=True):
    """Splits ``first`` to ``end`` of those in a file of `read`."""

    file: str
    sha256: str
    first: int
    end: int


class SpillUnit(msgspec.Struct, frozen=True):
    """A new subtask; ``bytes``: how many it owns, about. ``tiers`` are empty where the workspace is no directory."""

    subtask: int
    tiers: tuple[Tier, ...]
    bytes: int
    index: StoredColumns
    closings: StoredColumns
