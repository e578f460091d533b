"""Spill sets of format 2 and cuts of version 1, which an earlier version left: for reading only.

A segment of format 2 is a header of 12 bytes and elements of one virtual channel, and lies in one file. One file of
the set has the position of every element (little-endian int64), segment after segment. A cut named what of the set was
still to come: slices of segments, then everything from a cursor on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import Ledger
from cdr_core.errors import Corrupt, SpillLost, Where, other_version
from cdr_core.spill.spill_set import NO_REFERENCES, SpillFile, SpillSet
from cdr_core.storage import storage_for

Longs = npt.NDArray[np.int64]

EARLIER_VERSION = 2
CUT_VERSION = 1
HEADER_BYTES, POSITION_BYTES = 12, 8

_SEGMENT = ("file", "offset", "gate", "channel", "length", "records", "crc32c", "virtual_channel", "positions_crc32c")


@dataclass(frozen=True, slots=True, eq=False)
class EarlierSet:
    """A set of format 2, from its manifest; ``columns`` are by segment, ``ledger`` is a value per line."""

    subtask: int
    files: tuple[SpillFile, ...]
    columns: Mapping[str, Longs]
    positions: str | None
    ledger: Sequence[Mapping[str, Any]]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EarlierSet:
        if value["version"] != EARLIER_VERSION:
            raise other_version("a spill set of an earlier version", value["version"], EARLIER_VERSION)
        table = np.array(value["segments"], np.int64).reshape(-1, len(_SEGMENT)).T
        files = tuple(SpillFile(**file) for file in value["files"])
        columns = dict(zip(_SEGMENT, table, strict=True))
        return cls(value["subtask"], files, columns, value["positions"], value["ledger"])

    def to_present(self, lines: Longs, ledger: Ledger) -> SpillSet:
        """The same set in the present format, each segment one piece; ``lines`` are by segment.

        Positions that were changed are :class:`SpillLost`, as bytes are.
        """
        own = self.columns
        columns = {
            "file": own["file"],
            "offset": own["offset"] + HEADER_BYTES,
            "length": own["length"],
            "crc32c": own["crc32c"],
            "piece_first": np.arange(len(lines) + 1),
            "line": lines,
            "piece_length": own["length"],
            "piece_elements": own["records"],
            "run_first": np.append(0, np.cumsum(own["records"])),
            **NO_REFERENCES.to_columns(),
        }
        runs = self._read_positions(), np.ones(int(own["records"].sum()), np.int64)
        return SpillSet(self.subtask, self.files, columns, ledger, runs)

    def _read_positions(self) -> Longs:
        where = Where(subtask=self.subtask)
        data = b"" if self.positions is None else storage_for(self.positions).read(self.positions)
        ends = np.cumsum(self.columns["records"]) * POSITION_BYTES
        begin = 0
        for end, crc32c in zip(ends.tolist(), self.columns["positions_crc32c"].tolist(), strict=True):
            if len(data) < end or google_crc32c.value(data[begin:end]) != crc32c:
                raise SpillLost(f"spill file {self.positions} is damaged", where=where)
            begin = end
        if begin != len(data):
            what = f"spill file {self.positions} has {len(data)} bytes where {begin} belong to records"
            raise Corrupt(what, where=where)
        return np.frombuffer(data, "<i8").astype(np.int64)

    def delivered_at(self, remaining: Mapping[str, Any] | None, frames_done: Mapping[str, int]) -> Longs:
        """By segment, how many elements were delivered when a cut was taken; ``remaining`` is ``None`` at the end.

        ``frames_done`` counts those of segments that were begun. Raise if the cut does not fit the set.
        """
        delivered = self.columns["records"].copy()
        if remaining is None:
            return delivered
        if remaining["version"] != CUT_VERSION:
            raise other_version("a cut", remaining["version"], CUT_VERSION)
        left = set(range(self._first_left(remaining["cursor"]), len(delivered)))
        for segment, offset, length in remaining["slices"]:
            inside = 0 <= segment < len(delivered) and offset >= 0 and length >= 0
            if not inside or offset + length > self.columns["length"][segment]:
                raise self._unfit(f"bytes {offset} to {offset + length} of segment {segment}")
            if length:
                left.add(segment)
        for segment in left:
            delivered[segment] = frames_done.get(str(segment), 0)
        return delivered

    def _first_left(self, cursor: Sequence[Any]) -> int:
        """The first segment that a cut had not delivered whole.

        A cursor is at the start of a segment; in the body of one, then it says gate, channel and bytes left; or at the
        end of the set.
        """
        file, place, *opened = cursor
        names = ("offset", "gate", "channel", "length")
        for number in np.flatnonzero(self.columns["file"] == file).tolist():
            offset, gate, channel, length = (int(self.columns[name][number]) for name in names)
            body = offset + HEADER_BYTES
            if (place, opened) == (offset, [None, None, 0]):
                return int(number)
            if body < place < body + length and opened == [gate, channel, body + length - place]:
                return int(number)
        if (file, place, opened) != (len(self.files), 0, [None, None, 0]):
            raise self._unfit(f"offset {place} of file {file}")
        return len(self.columns["file"])

    def _unfit(self, what: str) -> Corrupt:
        hint = "it belongs to another spill set"
        return Corrupt(f"a cut refers to {what}, which does not fit", where=Where(subtask=self.subtask), hint=hint)
