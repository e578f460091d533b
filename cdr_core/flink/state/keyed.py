"""Keyed state at another parallelism: the key groups of a new subtask, in one handle.

A full snapshot is a head (the key's serializer and the states, timers among them) and the bytes of one key group after
the other. With the same head, key groups of several files are laid into one, compressed or not: nothing in them depends
on where they lie, and the numbers by which they name states are places in the head. What cannot be laid into one file
(other heads, SST files, changes) stays where it is and is put into a basket.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from cdr_core.errors import CorruptMetadata, Refused, Where
from cdr_core.flink.keys import key_group_range
from cdr_core.flink.metadata import (
    FinishedSubtask,
    IdentifiedIncremental,
    IdentifiedKeyGroups,
    Incremental,
    KeyedHandle,
    KeyGroups,
    Offsets,
    OperatorState,
)
from cdr_core.flink.state.baskets import OLDEST_BASKET, basket, overlapping, parts_of, range_of
from cdr_core.flink.state.names import name_of
from cdr_core.flink.state.streams import LEAVE_TO_FLINK, Positions, Read, Stream, Write, ends_of, runs

LONGEST_HEAD: Final = 64 << 20
"""Bytes; heads are read into memory, two at a time."""

NOTHING: Final = 0
"""As an offset: RocksDB's full snapshots write nothing at all for a key group without state."""

ASYNCHRONOUS: Final = struct.pack(">iiH", 4, 1, 16) + b"KEYED_STATE_TYPE"
"""In the head of an incremental snapshot: a state of the kind (4) that only asynchronous access (ForSt) writes. A
backend that is opened for it takes no basket, by Flink's source; that was not tried."""

_Full = KeyGroups | IdentifiedKeyGroups
_Incremental = Incremental | IdentifiedIncremental


@dataclass(frozen=True, slots=True)
class KeyedPlan:
    """Which old handles each new subtask needs. ``mergeable`` says whether their bytes can be laid into one file."""

    operator: OperatorState
    parallelism: int
    handles: tuple[KeyedHandle, ...]
    mergeable: bool
    version: int
    checkpoint_id: int
    read: Read

    @classmethod
    def of(
        cls, operator: OperatorState, parallelism: int, read: Read, *, version: int, checkpoint_id: int
    ) -> KeyedPlan:
        """Reads the heads of full snapshots and nothing else."""
        handles: dict[KeyedHandle, int] = {}
        for subtask in operator.subtasks:
            if not isinstance(subtask, FinishedSubtask) and subtask.managed_keyed is not None:
                handles.setdefault(subtask.managed_keyed, subtask.index)  # one that was cut before serves several
        _disjoint(operator, handles)
        mergeable = _alike(
            [_Source(operator.label, index, each, read) for each, index in handles.items() if isinstance(each, _Full)],
            len(handles),
        )
        ordered = tuple(sorted(handles, key=range_of))
        return cls(operator, parallelism, ordered, mergeable, version, checkpoint_id, read)

    def write(self, index: int, write: Write) -> KeyedHandle | None:
        """The handle of a new subtask, its bytes written where they are merged; ``None`` where it has no such state."""
        first, last = key_group_range(index, self.parallelism, self.operator.max_parallelism)
        here = overlapping(self.handles, first, last)
        name = name_of(self.operator.operator_id, "keyed", index, self.parallelism)
        if not here:
            return None
        if self._mergeable(here):
            return self._merged([each for each in here if isinstance(each, _Full)], first, last, name, write)
        if self._in_one(here):
            return here[0]  # whole: the backend clips what lies outside of its range, as when Flink rescales
        reason = self.refusal(index)
        if reason is not None:
            raise Refused(reason, where=Where(operator=self.operator.label), hint=LEAVE_TO_FLINK)
        return basket(here, first, last, checkpoint_id=self.checkpoint_id, handle_id=name)

    def refusal(self, index: int) -> str | None:
        """Why a new subtask cannot be given its keyed state; ``None`` where it can."""
        first, last = key_group_range(index, self.parallelism, self.operator.max_parallelism)
        here = overlapping(self.handles, first, last)
        if not here or self._in_one(here):
            return None
        if self.version < OLDEST_BASKET:
            return f"new subtask {index} needs keyed state of {len(here)} old ones whose files cannot be merged"
        if any(self._asynchronous(each) for each in parts_of(here)):
            return (
                f"new subtask {index} needs keyed state of {len(here)} old ones that was written by asynchronous "
                "state access, for which Flink takes only one snapshot per subtask"
            )
        return None

    def _in_one(self, here: Sequence[KeyedHandle]) -> bool:
        """Whether one handle of a usual kind is enough, so that no basket is needed."""
        return self._mergeable(here) or (len(here) == 1 and isinstance(here[0], _Incremental))

    def _mergeable(self, here: Sequence[KeyedHandle]) -> bool:
        return self.mergeable and all(isinstance(each, _Full) for each in here) and _gapless(here)

    def _asynchronous(self, handle: KeyedHandle) -> bool:
        if not isinstance(handle, _Incremental):
            return False
        meta = Stream(handle.meta, self.read, Where(operator=self.operator.label))
        if meta.size > LONGEST_HEAD:
            raise meta.corrupt(f"its head has {meta.size} bytes")
        return ASYNCHRONOUS in meta.all(0, meta.size)

    def _merged(self, handles: Sequence[_Full], first: int, last: int, name: str, write: Write) -> _Full:
        sources = [_Source(self.operator.label, None, each, self.read) for each in handles]
        head = sources[0].head()
        at, offsets = len(head), []
        for source in sources:
            starts, ends = source.groups(first, last)
            lengths = ends - starts
            placed = at + np.cumsum(lengths) - lengths
            offsets.append(np.where(starts == NOTHING, NOTHING, placed))
            at += int(lengths.sum())
        chunks = itertools.chain([head], *(source.chunks(first, last) for source in sources))
        delegate = write(name, chunks)
        start = max(first, range_of(handles[0])[0])
        merged = replace(handles[0], start=start, offsets=Offsets.of(np.concatenate(offsets)), delegate=delegate)
        return replace(merged, handle_id=name) if isinstance(merged, IdentifiedKeyGroups) else merged


class _Source:
    """One old full snapshot."""

    def __init__(self, label: str, index: int | None, handle: _Full, read: Read) -> None:
        self.handle = handle
        self.stream = Stream(handle.delegate, read, Where(operator=label, subtask=index))
        self._starts = handle.offsets.numpy()
        self._written = np.unique(self._starts[self._starts != NOTHING])
        if len(self._written) and not 0 <= self._written[0] <= self._written[-1] <= self.stream.size:
            raise self.stream.corrupt(f"a key group starts outside of its {self.stream.size} bytes")

    def head(self) -> bytes:
        """All before the first key group; where none was written, all there is."""
        end = int(self._written[0]) if len(self._written) else self.stream.size
        if end > LONGEST_HEAD:
            raise self.stream.corrupt(f"its head has {end} bytes")
        return self.stream.all(0, end)

    def groups(self, first: int, last: int) -> tuple[Positions, Positions]:
        """Where the key groups from ``first`` to ``last`` that are here start and end; one without bytes at NOTHING."""
        low, high = range_of(self.handle)
        starts = self._starts[max(first, low) - low : min(last, high) - low + 1]
        ends = ends_of(starts, np.append(self._written, self.stream.size))
        return starts, np.where(starts == NOTHING, NOTHING, ends)

    def chunks(self, first: int, last: int) -> Iterator[bytes]:
        starts, ends = self.groups(first, last)
        for start, end in runs(*(each[starts != NOTHING] for each in (starts, ends))):
            yield from self.stream.chunks(start, end)


def _alike(sources: Sequence[_Source], handles: int) -> bool:
    """Whether all handles are full snapshots of one kind with the same head."""
    if len(sources) != handles or not sources:
        return False
    first = sources[0].head()
    return all(type(each.handle) is type(sources[0].handle) and each.head() == first for each in sources[1:])


def _gapless(handles: Sequence[KeyedHandle]) -> bool:
    """Whether no key group is missing between two of these: one handle has all groups from its first to its last."""
    return all(range_of(one)[1] + 1 == range_of(other)[0] for one, other in itertools.pairwise(handles))


def _disjoint(operator: OperatorState, handles: dict[KeyedHandle, int]) -> None:
    for before, behind in itertools.pairwise(sorted(handles, key=range_of)):
        if range_of(behind)[0] <= range_of(before)[1]:
            raise CorruptMetadata(
                f"key group {range_of(behind)[0]} is in the state of two subtasks",
                where=Where(operator=operator.label, subtask=handles[behind]),
            )
