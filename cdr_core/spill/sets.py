"""Spill sets, format 3: the records of one new subtask in segments that hold many channels, with an index of columns.

A segment is up to about a mebibyte of elements of one exchange, in drain order; it never crosses files. The index says
where each segment lies and its CRC-32C, which pieces it holds (elements of one line, in order), and in runs the
position of every element in its virtual channel. Files hold the bodies of segments and nothing else. The manifest
names the files and holds the index; it is sealed last: without it the set does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import Ledger
from cdr_core.errors import Corrupt, other_version
from cdr_core.storage.columns import pack_columns, unpack_columns

Longs = npt.NDArray[np.int64]

MANIFEST_VERSION = 3
"""Sets of version 2 are made again."""

_SEGMENT = ("file", "offset", "length", "crc32c", "runs_crc32c", "piece_first")
_PIECE = ("line", "piece_length", "piece_elements", "run_first")
RUN_BYTES = 16
"""A run in its file: the first position and the number of elements, little-endian; those of a segment lie together,
first all positions. Runs are as many as records may be, so they are no part of the index.
"""


@dataclass(frozen=True, slots=True)
class SpillFile:
    """A sealed file of a set; never empty."""

    path: str
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class SpillSet:
    """A sealed set. Segment s holds the pieces ``piece_first[s]`` to ``piece_first[s + 1]``, piece p the runs
    ``run_first[p]`` to ``run_first[p + 1]``, which are in the last file. A set of an earlier format has ``runs``.
    """

    subtask: int
    files: tuple[SpillFile, ...]
    columns: Mapping[str, Longs]
    ledger: Ledger
    runs: tuple[Longs, Longs] | None = None

    @property
    def segments(self) -> int:
        return len(self.columns["length"])

    @property
    def bytes(self) -> int:
        """Of all segments, length fields of elements included."""
        return int(self.columns["length"].sum())

    def pieces(self, segment: int) -> slice:
        """The rows of a segment's pieces."""
        first = self.columns["piece_first"]
        return slice(int(first[segment]), int(first[segment + 1]))

    def runs_of(self, pieces: slice) -> slice:
        """The rows of the runs of a segment's pieces."""
        first = self.columns["run_first"]
        return slice(int(first[pieces.start]), int(first[pieces.stop]))

    def to_json(self) -> dict[str, Any]:
        index = pack_columns({**self.columns, **self.ledger.to_columns("ledger_")})
        return {
            "version": MANIFEST_VERSION,
            "subtask": self.subtask,
            "files": [asdict(file) for file in self.files],
            "index": index,
            "crc32c": google_crc32c.value(index.encode()),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SpillSet:
        if value["version"] != MANIFEST_VERSION:
            raise other_version("a spill manifest", value["version"], MANIFEST_VERSION)
        if google_crc32c.value(value["index"].encode()) != value["crc32c"]:
            raise Corrupt(f"the index of the spill set of subtask {value['subtask']} was changed")
        columns = unpack_columns(value["index"])
        ledger = Ledger.from_columns(columns, "ledger_")
        files = tuple(SpillFile(**file) for file in value["files"])
        own = {name: columns[name] for name in (*_SEGMENT, *_PIECE)}
        found = cls(value["subtask"], files, own, ledger)
        found._check()
        return found

    def _check(self) -> None:
        """Lengths that must add up: what is damaged in the index must not read as fewer records."""
        own = self.columns
        pieces = np.add.reduceat(np.append(own["piece_length"], 0), own["piece_first"][:-1])
        runs = int(own["run_first"][-1]) * RUN_BYTES
        if not np.array_equal(pieces, own["length"]) or (runs and self.files[-1].bytes != runs):
            raise Corrupt(f"the index of the spill set of subtask {self.subtask} does not add up")


class IndexBuilder:
    """Collects the index while a set is written."""

    def __init__(self) -> None:
        self._segments: list[tuple[int, int, int, int, int, int]] = []
        self._pieces: list[tuple[Longs, Longs, Longs, Longs]] = []

    def add(
        self, place: tuple[int, int, int, int, int], lines: Longs, lengths: Longs, elements: Longs, runs: Longs
    ) -> None:
        """A segment (file, offset, length, CRC-32C of bytes, and of runs) and its pieces; ``runs`` counts theirs."""
        self._segments.append((*place, len(lines)))
        self._pieces.append((lines, lengths, elements, runs))

    def seal(self, subtask: int, files: tuple[SpillFile, ...], ledger: Ledger) -> SpillSet:
        table = np.array(self._segments, np.int64).reshape(-1, len(_SEGMENT)).T
        columns: dict[str, Longs] = dict(zip(_SEGMENT[:-1], table[:-1], strict=True))
        columns["piece_first"] = np.append(0, np.cumsum(table[-1]))
        lines, lengths, elements, counts = (_stacked(self._pieces, number) for number in range(4))
        columns |= {"line": lines, "piece_length": lengths, "piece_elements": elements}
        columns["run_first"] = np.append(0, np.cumsum(counts))
        return SpillSet(subtask, files, columns, ledger)


def _stacked(rows: list[Any], number: int) -> Longs:
    return np.concatenate([np.zeros(0, np.int64), *(row[number] for row in rows)])
