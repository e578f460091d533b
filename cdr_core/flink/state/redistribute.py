"""The state of an operator at another parallelism, one subtask after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cdr_core.errors import PlanRefused, Where
from cdr_core.flink.metadata import FinishedSubtask, OperatorState, SubtaskState
from cdr_core.flink.state.keyed import KeyedPlan
from cdr_core.flink.state.operator_state import OperatorPlan
from cdr_core.flink.state.raw_keyed import RawKeyedPlan
from cdr_core.flink.state.rescale_blockers import blocks
from cdr_core.flink.state.streams import Read, Write


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
