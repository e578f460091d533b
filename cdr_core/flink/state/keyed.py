"""Keyed state at another parallelism: the key groups of a new subtask, in one handle.

A full snapshot is a head (the key's serializer and the states, timers among them) and the bytes of one key group after
the other. With the same head, key groups of several files are merged into one, compressed or not: nothing in them
depends on their position, and the numbers by which they name states are places in the head. State that cannot be merged
(other heads, SST files, changes) stays where it is and becomes part of a bundle.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdr_core.errors import CorruptMetadata, Refused, Where
from cdr_core.flink.keys import key_group_range
from cdr_core.flink.metadata import (
    FinishedSubtask,
    IdentifiedIncremental,
    Incremental,
    KeyedHandle,
    OperatorState,
)
from cdr_core.flink.state.changelog_bundle import OLDEST_BUNDLE, bundle, overlapping, parts_of, range_of
from cdr_core.flink.state.snapshots import LONGEST_HEAD, FullHandle, Snapshot, merge_snapshots
from cdr_core.flink.state.streams import LEAVE_TO_FLINK, Read, Stream, Write, name_of

ASYNCHRONOUS: Final = struct.pack(">iiH", 4, 1, 16) + b"KEYED_STATE_TYPE"
"""In the head of an incremental snapshot: a state of the kind (4) that only asynchronous access (ForSt) writes. Flink
2.3 restores no bundle there: the backend that opens bundles has no asynchronous side."""

_Incremental = Incremental | IdentifiedIncremental


@dataclass(frozen=True, slots=True)
class KeyedPlan:
    """The old handles that each new subtask needs. ``mergeable``: their bytes can be merged into one file.

    ``aligned``: every old range begins where a new one does, so that none has to be merged. Otherwise all handles that
    are not merged go into bundles, also where one handle would do: Flink registers a handle by its id in one way if it
    stands alone and in another if it is in a bundle, and does not start a job that claims a checkpoint with both.
    """

    operator: OperatorState
    parallelism: int
    handles: tuple[KeyedHandle, ...]
    mergeable: bool
    aligned: bool
    version: int
    checkpoint_id: int
    read: Read

    @classmethod
    def of(
        cls, operator: OperatorState, parallelism: int, read: Read, *, version: int, checkpoint_id: int
    ) -> KeyedPlan:
        """Plan the redistribution; only the heads of full snapshots are read."""
        handles: dict[KeyedHandle, int] = {}
        for subtask in operator.subtasks:
            if not isinstance(subtask, FinishedSubtask) and subtask.managed_keyed is not None:
                handles.setdefault(subtask.managed_keyed, subtask.index)  # one that was cut before serves several
        _disjoint(operator, handles)
        mergeable = _alike(
            [
                Snapshot(each, read, Where(operator=operator.label, subtask=index))
                for each, index in handles.items()
                if isinstance(each, FullHandle)
            ],
            len(handles),
        )
        ordered = tuple(sorted(handles, key=range_of))
        aligned = all(
            len(overlapping(ordered, *key_group_range(index, parallelism, operator.max_parallelism))) <= 1
            for index in range(parallelism)
        )
        return cls(operator, parallelism, ordered, mergeable, aligned, version, checkpoint_id, read)

    def write(self, index: int, write: Write) -> KeyedHandle | None:
        """The handle of a new subtask, its bytes written where they are merged; ``None`` where it has no such state."""
        first, last = key_group_range(index, self.parallelism, self.operator.max_parallelism)
        here = overlapping(self.handles, first, last)
        name = name_of(self.operator.operator_id, "keyed", index, self.parallelism)
        if not here:
            return None
        if self._mergeable(here):
            return self._merged([each for each in here if isinstance(each, FullHandle)], first, last, name, write)
        if self.aligned and self._in_one(here):
            return here[0]  # whole: the backend clips key groups outside of its range, as when Flink rescales
        reason = self.refusal(index)
        if reason is not None:
            raise Refused(reason, where=Where(operator=self.operator.label), hint=LEAVE_TO_FLINK)
        return bundle(here, first, last, checkpoint_id=self.checkpoint_id, handle_id=name)

    def refusal(self, index: int) -> str | None:
        """Return why a new subtask cannot be given its keyed state; ``None`` where it can."""
        first, last = key_group_range(index, self.parallelism, self.operator.max_parallelism)
        here = overlapping(self.handles, first, last)
        if not here or self._in_one(here):
            return None
        if self.version < OLDEST_BUNDLE:
            return f"new subtask {index} needs keyed state of {len(here)} old ones whose files cannot be merged"
        if any(self._asynchronous(each) for each in parts_of(here)):
            return (
                f"new subtask {index} needs keyed state of {len(here)} old ones that was written by asynchronous "
                "state access, for which Flink takes only one snapshot per subtask"
            )
        return None

    def _in_one(self, here: Sequence[KeyedHandle]) -> bool:
        """Return whether one ordinary handle is enough, so that no bundle is needed."""
        return self._mergeable(here) or (len(here) == 1 and isinstance(here[0], _Incremental))

    def _mergeable(self, here: Sequence[KeyedHandle]) -> bool:
        return self.mergeable and all(isinstance(each, FullHandle) for each in here) and _gapless(here)

    def _asynchronous(self, handle: KeyedHandle) -> bool:
        if not isinstance(handle, _Incremental):
            return False
        meta = Stream(handle.meta, self.read, Where(operator=self.operator.label))
        if meta.size > LONGEST_HEAD:
            raise meta.corrupt(f"its head has {meta.size} bytes")
        return ASYNCHRONOUS in meta.all(0, meta.size)

    def _merged(self, handles: Sequence[FullHandle], first: int, last: int, name: str, write: Write) -> FullHandle:
        snapshots = [Snapshot(each, self.read, Where(operator=self.operator.label)) for each in handles]
        return merge_snapshots(snapshots, max(first, range_of(handles[0])[0]), last, name, write)


def _alike(sources: Sequence[Snapshot], handles: int) -> bool:
    """Return whether all handles are full snapshots of one kind with the same head."""
    if len(sources) != handles or not sources:
        return False
    first = sources[0].head()
    return all(type(each.handle) is type(sources[0].handle) and each.head() == first for each in sources[1:])


def _gapless(handles: Sequence[KeyedHandle]) -> bool:
    """Return whether no key group is missing between two of these: one handle has all groups from its first to its
    last.
    """
    return all(range_of(one)[1] + 1 == range_of(other)[0] for one, other in itertools.pairwise(handles))


def _disjoint(operator: OperatorState, handles: dict[KeyedHandle, int]) -> None:
    for before, behind in itertools.pairwise(sorted(handles, key=range_of)):
        if range_of(behind)[0] <= range_of(before)[1]:
            raise CorruptMetadata(
                f"key group {range_of(behind)[0]} is in the state of two subtasks",
                where=Where(operator=operator.label, subtask=handles[behind]),
            )
