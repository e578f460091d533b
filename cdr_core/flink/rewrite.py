"""The metadata of a checkpoint whose in-flight data was laid out anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cdr_core.flink.channel_writer import SubtaskSide
from cdr_core.flink.metadata import ChannelHandle, CheckpointMetadata, OperatorState, Side, SubtaskState

Handles = Mapping[SubtaskSide, tuple[ChannelHandle, ...]]


def in_flight_only(source: CheckpointMetadata, parallelism: Mapping[str, int], handles: Handles) -> CheckpointMetadata:
    """The source's operators at another parallelism with these channels, and with no other state.

    Version, checkpoint id, names and properties are the source's. ``parallelism`` and ``handles`` go by operator id.
    """
    operators = tuple(_operator(each, parallelism[each.operator_id], handles) for each in source.operators)
    return replace(source, operators=operators, master_states=())


def _operator(source: OperatorState, parallelism: int, handles: Handles) -> OperatorState:
    if source.finished:
        return source
    subtasks = tuple(
        SubtaskState(
            index,
            input_channels=handles.get(SubtaskSide(source.operator_id, Side.INPUT, index), ()),
            output_channels=handles.get(SubtaskSide(source.operator_id, Side.OUTPUT, index), ()),
        )
        for index in range(parallelism)
    )
    return replace(source, parallelism=parallelism, coordinator_state=None, subtasks=subtasks)
