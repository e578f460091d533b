"""The state of an operator at another parallelism, one subtask after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cdr_core.errors import PlanRefused, Where
from cdr_core.flink.keys import key_group_range
from cdr_core.flink.metadata import FinishedSubtask, OperatorState, SubtaskState
from cdr_core.flink.state.changelog_bundle import overlapping
from cdr_core.flink.state.keyed import KeyedPlan
from cdr_core.flink.state.operator_state import OperatorPlan
from cdr_core.flink.state.rescale_blockers import blocks
from cdr_core.flink.state.snapshots import RAW_NOTHING, FullHandle, Snapshot, merge_snapshots
from cdr_core.flink.state.streams import Read, Write, name_of


@dataclass(frozen=True, slots=True)
class RawKeyedPlan:
    """The raw keyed state of all old subtasks, all of it in full snapshots (others are blocked).

    Only the operator knows the meaning of its bytes (timers on the heap beside incremental RocksDB are an example), but
    they are stored per key group, and a reader gets the bytes of one key group after the other.
    """

    operator: OperatorState
    parallelism: int
    handles: tuple[FullHandle, ...]
    read: Read

    @classmethod
    def of(cls, operator: OperatorState, parallelism: int, read: Read) -> RawKeyedPlan:
        """Plan the redistribution; nothing is read."""
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


def redistribute(
    operator: OperatorState,
    new_parallelism: int,
    read: Read,
    write: Write,
    *,
    version: int,
    checkpoint_id: int,
    only: Iterable[int] | None = None,
) -> tuple[SubtaskState, ...]:
    """Return the new subtasks' state, without channel state: ``only`` those with these indexes, or all of them in
    order.

    At the same parallelism handles stay as they are and nothing is read or written (subtasks that had finished are
    then left out). Otherwise each new subtask has at most one handle of each kind of state, in streams that
    ``write`` made or, where bytes cannot be merged, in the old ones (see ``files_behind``). Memory is bounded by a
    chunk. ``version`` and ``checkpoint_id`` are the metadata's. Raises PlanRefused where ``blocks`` names a reason,
    Refused where two old subtasks wrote the same state in different ways.
    """
    found = blocks(operator, new_parallelism, version=version)
    if found:
        raise PlanRefused(found[0].why, where=Where(operator=operator.label), hint=found[0].way_out)
    wanted = range(new_parallelism) if only is None else only
    if operator.finished:
        return ()
    if new_parallelism == operator.parallelism:
        kept = {each.index: each for each in operator.subtasks if not isinstance(each, FinishedSubtask)}
        return tuple(replace(kept[i], input_channels=(), output_channels=()) for i in wanted if i in kept)
    states = OperatorPlan.of(operator, new_parallelism, read)
    keyed = KeyedPlan.of(operator, new_parallelism, read, version=version, checkpoint_id=checkpoint_id)
    raw_keyed = RawKeyedPlan.of(operator, new_parallelism, read)
    return tuple(
        SubtaskState(
            index,
            managed_operator=states.write(index, write),
            managed_keyed=keyed.write(index, write),
            raw_keyed=raw_keyed.write(index, write),
        )
        for index in wanted
    )
