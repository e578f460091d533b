"""Raw keyed state at another parallelism: bytes per key group, whose meaning only the operator knows.

Timers that are kept on the heap beside incremental RocksDB are such. Nothing in it says how it is laid out, and nothing
has to: a reader is given the bytes of one key group after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdr_core.errors import Where
from cdr_core.flink.keys import key_group_range
from cdr_core.flink.metadata import FinishedSubtask, OperatorState
from cdr_core.flink.state.changelog_bundle import overlapping
from cdr_core.flink.state.file_names import name_of
from cdr_core.flink.state.snapshots import RAW_NOTHING, FullHandle, Snapshot, merge_snapshots
from cdr_core.flink.state.streams import Read, Write


@dataclass(frozen=True, slots=True)
class RawKeyedPlan:
    """The raw keyed state of all old subtasks, all of it in full snapshots (others are blocked)."""

    operator: OperatorState
    parallelism: int
    handles: tuple[FullHandle, ...]
    read: Read

    @classmethod
    def of(cls, operator: OperatorState, parallelism: int, read: Read) -> RawKeyedPlan:
        """Reads nothing."""
        subtasks = (each for each in operator.subtasks if not isinstance(each, FinishedSubtask))
        handles = [each.raw_keyed for each in subtasks if isinstance(each.raw_keyed, FullHandle)]
        return cls(operator, parallelism, tuple(handles), read)

    def write(self, index: int, write: Write) -> FullHandle | None:
        """The handle of a new subtask, its bytes written; ``None`` where it has no such state."""
        first, last = key_group_range(index, self.parallelism, self.operator.max_parallelism)
        here = [each for each in overlapping(self.handles, first, last) if isinstance(each, FullHandle)]
        if not here:
            return None
        where = Where(operator=self.operator.label)
        snapshots = [Snapshot(each, self.read, where, RAW_NOTHING) for each in here]
        name = name_of(self.operator.operator_id, "raw keyed", index, self.parallelism)
        return merge_snapshots(snapshots, first, last, name, write)
