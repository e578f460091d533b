"""The metadata of a checkpoint whose in-flight data and other state were redistributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cdr_core.errors import IllegalState, Where
from cdr_core.flink.channel_writer import SubtaskSide
from cdr_core.flink.metadata import (
    ChannelHandle,
    CheckpointMetadata,
    FinishedSubtask,
    OperatorState,
    Side,
    SubtaskEntry,
    SubtaskState,
)

Handles = Mapping[SubtaskSide, Sequence[ChannelHandle]]
States = Mapping[str, Sequence[SubtaskState]]
"""By operator id: the state of its new subtasks without channel state; a subtask that is missing has none."""


def rewritten(
    source: CheckpointMetadata, parallelism: Mapping[str, int], states: States, handles: Handles
) -> CheckpointMetadata:
    """Return the source's operators at another parallelism, with this state and these channels.

    Version, checkpoint id, names, coordinators, hooks' state and properties are the source's. ``parallelism`` and
    ``handles`` go by operator id. Channels of an operator or a subtask that has finished are refused: it would never
    read them, and they would be lost.

    Single subtasks that have finished keep their mark where every operator keeps its parallelism. Otherwise all of them
    become subtasks without state, which is how Flink treats them: it checks the marks only to refuse a vertex that has
    some while an upstream vertex, or another operator of the same vertex, has none.
    """
    marked = all(parallelism[each.operator_id] == each.parallelism for each in source.operators)
    operators = tuple(
        _operator(each, parallelism[each.operator_id], states.get(each.operator_id, ()), handles, marked=marked)
        for each in source.operators
    )
    return replace(source, operators=operators)


def _operator(
    source: OperatorState, parallelism: int, states: Sequence[SubtaskState], handles: Handles, *, marked: bool
) -> OperatorState:
    finished = {each.index for each in source.subtasks if marked and isinstance(each, FinishedSubtask)}
    gone = range(parallelism) if source.finished else sorted(finished)
    for index in gone:
        for side in Side:
            if handles.get(SubtaskSide(source.operator_id, side, index)):
                raise IllegalState(
                    f"{side} channels were written for a subtask that has finished",
                    where=Where(operator=source.label, subtask=index),
                )
    if source.finished:
        return replace(source, parallelism=parallelism)
    by_index = {state.index: state for state in states}
    subtasks: tuple[SubtaskEntry, ...] = tuple(
        FinishedSubtask(index)
        if index in finished
        else replace(
            by_index.get(index, SubtaskState(index)),
            input_channels=handles.get(SubtaskSide(source.operator_id, Side.INPUT, index), ()),
            output_channels=handles.get(SubtaskSide(source.operator_id, Side.OUTPUT, index), ()),
        )
        for index in range(parallelism)
    )
    return replace(source, parallelism=parallelism, subtasks=subtasks)
