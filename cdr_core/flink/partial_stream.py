"""Channel state of which only some ranges were fetched, each a byte array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cdr_core.errors import CorruptChannelState, Where
from cdr_core.flink.channel_state import DAMAGED, LENGTH_SIZE, Int64s, gather_fields
from cdr_core.flink.virtual_channel import Bytes, Part


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Stretch i is [starts[i], ends[i]) of an object, ascending and disjoint; ``open(i)`` gives its bytes.

    Stretches are cut where chunks begin. A chunk that does not end in the stretch where it begins overlaps another.
    """

    starts: Int64s
    ends: Int64s
    open: Callable[[int], Bytes]
    where: Where

    def fields(self, positions: Int64s) -> Int64s:
        """Return the big-endian i32 at each position of the object."""
        owners = self._owners(positions, positions + LENGTH_SIZE)
        values = np.empty(len(positions), dtype=np.int64)
        for owner in np.unique(owners).tolist():
            selected = owners == owner
            values[selected] = gather_fields(self.open(owner), positions[selected] - self.starts[owner])
        return values

    def parts(self, starts: Int64s, lengths: Int64s) -> tuple[Part, ...]:
        """Return chunks at ascending places of the object, as parts of the stretches that hold them."""
        owners = self._owners(starts - LENGTH_SIZE, starts + lengths)
        borders = np.flatnonzero(np.diff(owners)) + 1
        found = []
        for chunk_starts, chunk_lengths, owner in zip(
            np.split(starts, borders), np.split(lengths, borders), owners[np.append(0, borders)].tolist(), strict=True
        ):
            found.append(Part(self.open(owner), chunk_starts - self.starts[owner], chunk_lengths))
        return tuple(found)

    def rest(self, start: int) -> tuple[Part, ...]:
        """Return the bytes from a place of the object to the end of its stretch, as one chunk."""
        owner = int(np.searchsorted(self.starts, start, side="right")) - 1
        if owner < 0 or start >= self.ends[owner]:
            return ()
        begin, length = np.array([start - self.starts[owner]]), np.array([self.ends[owner] - start])
        return (Part(self.open(owner), begin, length),)

    def _owners(self, begins: Int64s, ends: Int64s) -> Int64s:
        owners = np.searchsorted(self.starts, begins, side="right") - 1
        wrong = np.flatnonzero((owners < 0) | (ends > self.ends[np.maximum(owners, 0)]))
        if wrong.size:
            raise CorruptChannelState(
                f"a chunk at {begins[wrong[0]]} reaches into bytes that belong to another",
                where=self.where,
                hint=DAMAGED,
            )
        return owners
