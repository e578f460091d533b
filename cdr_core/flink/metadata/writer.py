"""Writes a ``_metadata`` file."""

from __future__ import annotations

import re
from typing import Final

from cdr_core.errors import Refused, Where
from cdr_core.flink.metadata.changelog import write_keyed
from cdr_core.flink.metadata.channels import Side, write_channels
from cdr_core.flink.metadata.operators import write_operator_state
from cdr_core.flink.metadata.properties import walk_properties
from cdr_core.flink.metadata.sink import Sink
from cdr_core.flink.metadata.streams import write_stream
from cdr_core.flink.metadata.values import (
    CheckpointMetadata,
    FinishedSubtask,
    MasterState,
    OperatorState,
    SubtaskEntry,
    SubtaskState,
)
from cdr_core.flink.metadata.versions import (
    LEGACY_VERSION,
    MAGIC,
    MASTER_MAGIC,
    NEWEST_VERSION,
    OLDEST_WRITTEN,
    has_names,
    has_properties,
)

_OPERATOR_ID: Final = re.compile(r"[0-9a-f]{32}")


def write_metadata(meta: CheckpointMetadata) -> bytes:
    """Return the bytes of a file, versions 3 to 6; metadata that was read is written back exactly.

    Refuses other versions, and values that the version cannot hold (merged channel handles before 6, names before 5,
    properties before 4), rather than leave something out.
    """
    if not OLDEST_WRITTEN <= meta.version <= NEWEST_VERSION:
        raise Refused(
            f"_metadata version {meta.version} is not written, versions {OLDEST_WRITTEN} to {NEWEST_VERSION} are",
            hint="choose one of these; Flink restores all of them",
        )
    return encode_metadata(meta)


def encode_metadata(meta: CheckpointMetadata) -> bytes:
    """Return the bytes of any version that can be read: proof that reading version 2 loses nothing, not a way to write
    it.
    """
    sink = Sink()
    sink.i32(MAGIC)
    sink.i32(meta.version)
    sink.i64(meta.checkpoint_id)
    sink.i32(len(meta.master_states))
    for state in meta.master_states:
        _write_master_state(sink, state)
    sink.i32(len(meta.operators))
    for operator in meta.operators:
        _write_operator(sink, operator, meta.version)
    _write_properties(sink, meta)
    return sink.getvalue()


def _write_master_state(sink: Sink, state: MasterState) -> None:
    inner = Sink()
    inner.i32(state.version)
    inner.utf(state.name)
    inner.blob(state.data)
    sink.i32(MASTER_MAGIC)
    sink.blob(inner.getvalue())


def _write_operator(sink: Sink, operator: OperatorState, version: int) -> None:
    where = Where(operator=operator.label)
    if not _OPERATOR_ID.fullmatch(operator.operator_id):
        raise Refused(f"operator id {operator.operator_id!r} is not 32 hex digits", where=where)
    if has_names(version):
        _write_name(sink, operator.name, where)
        _write_name(sink, operator.uid, where)
    elif operator.name is not None or operator.uid is not None:
        raise Refused(f"_metadata version {version} has no operator names and uids", where=where)
    sink.raw(bytes.fromhex(operator.operator_id))
    sink.i32(operator.parallelism)
    sink.i32(operator.max_parallelism)
    _write_coordinator(sink, operator, version, where)
    if operator.finished_mark is not None:
        _write_finished(sink, operator, where)
        return
    sink.i32(len(operator.subtasks))
    for subtask in operator.subtasks:
        _write_subtask(sink, subtask, version, where)


def _write_name(sink: Sink, name: str | None, where: Where) -> None:
    if name == "":
        raise Refused("an empty operator name or uid cannot be distinguished from none", where=where, hint="use None")
    sink.utf(name or "")


def _write_coordinator(sink: Sink, operator: OperatorState, version: int, where: Where) -> None:
    if (version == LEGACY_VERSION) != (operator.chain_length is not None):
        raise Refused(f"a chain length belongs to version {LEGACY_VERSION} alone", where=where)
    if operator.chain_length is not None:
        sink.i32(operator.chain_length)
    else:
        write_stream(sink, operator.coordinator_state)


def _write_finished(sink: Sink, operator: OperatorState, where: Where) -> None:
    mark = operator.finished_mark
    if mark is None or mark >= 0 or operator.subtasks or operator.coordinator_state is not None:
        raise Refused(
            f"a finished operator (mark {mark}) has a negative mark, no subtasks, no coordinator state", where=where
        )
    sink.i32(mark)


def _write_subtask(sink: Sink, subtask: SubtaskEntry, version: int, where: Where) -> None:
    if subtask.index < 0:
        raise Refused(f"subtask index {subtask.index} is negative", where=where)
    if isinstance(subtask, FinishedSubtask):
        sink.i32(-subtask.index - 1)
        return
    sink.i32(subtask.index)
    _write_legacy(sink, subtask, version, where)
    write_operator_state(sink, subtask.managed_operator)
    write_operator_state(sink, subtask.raw_operator)
    write_keyed(sink, subtask.managed_keyed)
    write_keyed(sink, subtask.raw_keyed)
    if version > LEGACY_VERSION:
        write_channels(sink, subtask.input_channels, Side.INPUT, version)
        write_channels(sink, subtask.output_channels, Side.OUTPUT, version)


def _write_legacy(sink: Sink, subtask: SubtaskState, version: int, where: Where) -> None:
    if (version == LEGACY_VERSION) != (subtask.legacy is not None):
        raise Refused(f"duration and legacy states belong to version {LEGACY_VERSION} alone", where=where)
    if subtask.legacy is not None:
        sink.i64(subtask.legacy.duration)
        sink.i32(subtask.legacy.legacy_states)


def _write_properties(sink: Sink, meta: CheckpointMetadata) -> None:
    if not has_properties(meta.version):
        if meta.properties:
            raise Refused(f"_metadata version {meta.version} has no checkpoint properties", hint="drop them")
        return
    fault = walk_properties(meta.properties)
    if fault is not None:
        raise Refused(f"the checkpoint properties are not a Java object stream: {fault.what}")
    sink.raw(meta.properties)
