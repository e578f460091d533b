"""Full snapshots of keyed state: one stream with a head and the bytes of one key group after the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from cdr_core.errors import Where
from cdr_core.flink.metadata import IdentifiedKeyGroups, KeyGroups, Offsets
from cdr_core.flink.state.changelog_bundle import range_of
from cdr_core.flink.state.streams import Positions, Read, Stream, Write, ends_of, runs

LONGEST_HEAD: Final = 64 << 20
"""Bytes; heads are read into memory, two at a time."""

NOTHING: Final = 0
"""As an offset: RocksDB's full snapshots write nothing at all for a key group without state."""

RAW_NOTHING: Final = -1
"""The same for raw keyed state, which has no head, so that 0 is an ordinary offset."""

FullHandle = KeyGroups | IdentifiedKeyGroups


class Snapshot:
    """A full snapshot; ``nothing`` is the offset of a key group without bytes."""

    def __init__(self, handle: FullHandle, read: Read, where: Where, nothing: int = NOTHING) -> None:
        self.handle = handle
        self.nothing = nothing
        self.stream = Stream(handle.delegate, read, where)
        self._starts = handle.offsets.numpy()
        self._written = np.sort(self._starts[self._starts != nothing])
        if len(self._written) and not 0 <= self._written[0] <= self._written[-1] <= self.stream.size:
            raise self.stream.corrupt(f"a key group starts outside of its {self.stream.size} bytes")

    def head(self) -> bytes:
        """All before the first key group; where none was written, all there is. Raw state has none."""
        if self.nothing == RAW_NOTHING:
            return b""
        end = int(self._written[0]) if len(self._written) else self.stream.size
        if end > LONGEST_HEAD:
            raise self.stream.corrupt(f"its head has {end} bytes")
        return self.stream.all(0, end)

    def groups(self, first: int, last: int) -> tuple[Positions, Positions]:
        """Return where the key groups from ``first`` to ``last`` that are here start and end; one without bytes at
        NOTHING.
        """
        low, high = range_of(self.handle)
        starts = self._starts[max(first, low) - low : min(last, high) - low + 1]
        ends = ends_of(starts, np.append(self._written, self.stream.size))
        return starts, np.where(starts == self.nothing, starts, ends)

    def chunks(self, first: int, last: int) -> Iterator[bytes]:
        """Yield the bytes of these key groups, those that are here."""
        starts, ends = self.groups(first, last)
        for start, end in runs(*(each[starts != self.nothing] for each in (starts, ends))):
            yield from self.stream.chunks(start, end)


def merge_snapshots(snapshots: Sequence[Snapshot], first: int, last: int, name: str, write: Write) -> FullHandle:
    """Return one snapshot with the key groups from ``first`` to ``last`` that are in these, which have the same head.

    They are in order of their ranges. A key group that none of them has is one without bytes, if they are raw; others
    must not leave such gaps, because what "no state" looks like in them depends on the backend.
    """
    nothing, head = snapshots[0].nothing, snapshots[0].head()
    end = max(range_of(snapshot.handle)[1] for snapshot in snapshots)
    offsets, at = np.full(min(last, end) - first + 1, nothing, np.int64), len(head)
    for snapshot in snapshots:
        starts, ends = snapshot.groups(first, last)
        lengths = ends - starts
        placed = max(first, range_of(snapshot.handle)[0]) - first
        here = np.where(starts == nothing, nothing, at + np.cumsum(lengths) - lengths)
        offsets[placed : placed + len(starts)] = here
        at += int(lengths.sum())
    chunks = itertools.chain([head], *(snapshot.chunks(first, last) for snapshot in snapshots))
    delegate = write(name, chunks)
    merged = replace(snapshots[0].handle, start=first, offsets=Offsets.of(offsets), delegate=delegate)
    return replace(merged, handle_id=name) if isinstance(merged, IdentifiedKeyGroups) else merged
