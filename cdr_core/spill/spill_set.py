"""Spill sets, format 4: the records of one new subtask in segments that hold many channels, with an index of columns.

A segment is a few mebibytes of elements of one exchange, in drain order. The index says which pieces it holds (elements
of one line, in order), and in runs the position of every element in its virtual channel. A piece is *stored* in a file
of the set, or it is a *reference* to a stretch of its virtual channel, which stays where the source has it. The stored
pieces of a segment lie together and never cross files; the index has their place and CRC-32C, and of every reference
where it begins and its own. The manifest names the files and holds the index; it is sealed last: without it the set
does not exist.
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
from cdr_core.storage.column_codec import pack_columns, unpack_columns

Longs = npt.NDArray[np.int64]

MANIFEST_VERSION = 4
WITHOUT_REFERENCES = 3
"""The version before: every piece is stored. :mod:`cdr_core.spill.earlier_formats` reads older ones."""

_SEGMENT = ("file", "offset", "length", "crc32c", "runs_crc32c", "piece_first")
_PIECE = ("line", "piece_length", "piece_elements", "run_first")
_REFERENCE = ("reference_piece", "reference_crc32c", "range_first", "range_start", "range_end")
RUN_BYTES = 16
"""A run in its file: the first position and the number of elements, little-endian; those of a segment lie together,
first all positions. Runs are as many as records may be, so they are no part of the index.
"""


@dataclass(frozen=True, slots=True)
class SpillFile:
    """A sealed file of a set; never empty. ``memory``: it lies in a tier of memory, not on a disk."""

    path: str
    bytes: int
    memory: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SpillSet:
    """A sealed set. Segment s holds the pieces ``piece_first[s]`` to ``piece_first[s + 1]``, piece p the runs
    ``run_first[p]`` to ``run_first[p + 1]``, which are in the last file. A set of an earlier format has ``runs``.
    Reference r is the piece ``reference_piece[r]``: the ranges ``range_first[r]`` to ``range_first[r + 1]`` of its
    virtual channel, one behind another.
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

    @property
    def bytes_by_reference(self) -> int:
        """Of all pieces that lie in the source."""
        return int(self.columns["piece_length"][self.columns["reference_piece"]].sum())

    @property
    def bytes_on_disk(self) -> int:
        """Of all pieces that lie in files of the set on a disk."""
        on_disk = np.array([not file.memory for file in self.files], bool)
        stored = self.stored_lengths
        used = np.flatnonzero(stored)
        return int(stored[used][on_disk[self.columns["file"][used]]].sum())

    @property
    def stored_lengths(self) -> Longs:
        """By segment, the bytes of its pieces that lie in files of the set."""
        referred = np.zeros(len(self.columns["piece_length"]), np.int64)
        referred[self.columns["reference_piece"]] = self.columns["piece_length"][self.columns["reference_piece"]]
        total = np.append(0, np.cumsum(referred))[self.columns["piece_first"]]
        stored: Longs = self.columns["length"] - np.diff(total)
        return stored

    def references(self, segment: int) -> slice:
        """The rows of a segment's references."""
        pieces = self.pieces(segment)
        return slice(*np.searchsorted(self.columns["reference_piece"], (pieces.start, pieces.stop)).tolist())

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
        if value["version"] not in (WITHOUT_REFERENCES, MANIFEST_VERSION):
            raise other_version("a spill manifest", value["version"], MANIFEST_VERSION)
        if google_crc32c.value(value["index"].encode()) != value["crc32c"]:
            raise Corrupt(f"the index of the spill set of subtask {value['subtask']} was changed")
        columns = unpack_columns(value["index"])
        ledger = Ledger.from_columns(columns, "ledger_")
        files = tuple(SpillFile(**file) for file in value["files"])
        own = {name: columns[name] for name in (*_SEGMENT, *_PIECE)}
        own |= {name: columns.get(name, none) for name, none in NO_REFERENCES.to_columns().items()}
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


@dataclass(frozen=True, slots=True, eq=False)
class References:
    """Pieces of a segment that lie in the source: which, their CRC-32C, and the ranges of their virtual channels; those
    of piece r are ``first[r]`` to ``first[r + 1]``.
    """

    piece: Longs
    crc32c: Longs
    first: Longs
    start: Longs
    end: Longs

    def to_columns(self) -> dict[str, Longs]:
        return dict(zip(_REFERENCE, (self.piece, self.crc32c, self.first, self.start, self.end), strict=True))


_NONE = np.zeros(0, np.int64)
NO_REFERENCES = References(_NONE, _NONE, np.zeros(1, np.int64), _NONE, _NONE)


class IndexBuilder:
    """Collects the index while a set is written."""

    def __init__(self) -> None:
        self._segments: list[tuple[int, int, int, int, int, int]] = []
        self._pieces: list[tuple[Longs, Longs, Longs, Longs]] = []
        self._references: list[tuple[Longs, ...]] = []
        self._count = 0

    def add(
        self,
        place: tuple[int, int, int, int, int],
        lines: Longs,
        lengths: Longs,
        elements: Longs,
        runs: Longs,
        references: References,
    ) -> None:
        """A segment (file, offset, length, CRC-32C of what is stored, and of runs) and its pieces; ``runs`` counts
        theirs.
        """
        self._segments.append((*place, len(lines)))
        self._pieces.append((lines, lengths, elements, runs))
        self._references.append(
            (
                self._count + references.piece,
                references.crc32c,
                np.diff(references.first),
                references.start,
                references.end,
            )
        )
        self._count += len(lines)

    def seal(self, subtask: int, files: tuple[SpillFile, ...], ledger: Ledger) -> SpillSet:
        table = np.array(self._segments, np.int64).reshape(-1, len(_SEGMENT)).T
        columns: dict[str, Longs] = dict(zip(_SEGMENT[:-1], table[:-1], strict=True))
        columns["piece_first"] = np.append(0, np.cumsum(table[-1]))
        lines, lengths, elements, counts = (_stacked(self._pieces, number) for number in range(4))
        columns |= {"line": lines, "piece_length": lengths, "piece_elements": elements}
        columns["run_first"] = np.append(0, np.cumsum(counts))
        columns |= {name: _stacked(self._references, number) for number, name in enumerate(_REFERENCE)}
        columns["range_first"] = np.append(0, np.cumsum(columns["range_first"]))
        return SpillSet(subtask, files, columns, ledger)


def _stacked(rows: list[Any], number: int) -> Longs:
    return np.concatenate([np.zeros(0, np.int64), *(row[number] for row in rows)])
