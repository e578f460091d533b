"""Reads a ``_metadata`` file."""

from __future__ import annotations

from typing import Final

from cdr_core.flink.metadata.changelog import read_keyed
from cdr_core.flink.metadata.channels import Side, read_channels
from cdr_core.flink.metadata.cursor import Cursor
from cdr_core.flink.metadata.operators import read_operator_state
from cdr_core.flink.metadata.properties import walk_properties
from cdr_core.flink.metadata.streams import InlineBytes, read_stream
from cdr_core.flink.metadata.values import (
    CheckpointMetadata,
    FinishedSubtask,
    LegacySubtask,
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
    OLDEST_READ,
    has_names,
    has_properties,
)

_SMALLEST_MASTER: Final = 4 + 4 + 4 + 2 + 4
_SMALLEST_OPERATOR: Final = 16 + 4 + 4 + 1 + 4
_SMALLEST_SUBTASK: Final = 4
_HELD_OPERATOR: Final = 240
_HELD_SUBTASK: Final = 144
_HELD_STATE: Final = 128
_HELD_MASTER: Final = 72


def read_metadata(data: bytes | memoryview, *, checkpoint: str | None = None) -> CheckpointMetadata:
    """Parse a whole file, versions 2 to 6; ``checkpoint`` only names it in errors.

    Promises that writing the value gives the same bytes. Refuses, with :class:`~cdr_core.errors.CorruptMetadata` and
    the byte offset, everything that Flink could not read or this value could not reproduce.
    """
    cursor = Cursor(data, checkpoint)
    version = _read_version(cursor)
    checkpoint_id = cursor.i64()
    if checkpoint_id < 0:
        raise cursor.corrupt(f"the checkpoint id is {checkpoint_id}", at=cursor.position - 8)
    number = cursor.count("master states", _SMALLEST_MASTER, held=_HELD_MASTER)
    master_states = tuple([_read_master_state(cursor) for _ in range(number)])
    number = cursor.count("operators", _SMALLEST_OPERATOR, held=_HELD_OPERATOR)
    operators = tuple([_read_operator(cursor, version) for _ in range(number)])
    cursor.operator = None
    _refuse_repeated_operators(cursor, operators)
    return CheckpointMetadata(
        version=version,
        checkpoint_id=checkpoint_id,
        operators=operators,
        master_states=master_states,
        properties=_read_properties(cursor, version),
    )


def _read_version(cursor: Cursor) -> int:
    magic = cursor.i32()
    if magic != MAGIC:
        raise cursor.corrupt(f"a _metadata file starts with {MAGIC:08x}, this one with {magic & 0xFFFFFFFF:08x}", at=0)
    version = cursor.i32()
    if not OLDEST_READ <= version <= NEWEST_VERSION:
        newer = version > NEWEST_VERSION
        what = f"_metadata version {version} is {'newer' if newer else 'older'} than this cdr knows"
        hint = "use a cdr that knows it" if newer else "take a checkpoint with a later Flink"
        raise cursor.corrupt(f"{what} ({OLDEST_READ} to {NEWEST_VERSION})", at=4, hint=hint)
    return version


def _read_master_state(cursor: Cursor) -> MasterState:
    magic = cursor.i32()
    if magic != MASTER_MAGIC:
        raise cursor.corrupt(f"a master state starts with {magic & 0xFFFFFFFF:08x}", at=cursor.position - 4)
    length = cursor.count("bytes of a master state", 1, held=-8)
    end = cursor.position + length
    state = MasterState(cursor.i32(), cursor.utf(), cursor.blob("a master state"))
    if cursor.position != end:
        raise cursor.corrupt(f"a master state takes {cursor.position - end + length} bytes, announced are {length}")
    return state


def _read_operator(cursor: Cursor, version: int) -> OperatorState:
    cursor.operator = None
    name, uid = (cursor.utf() or None, cursor.utf() or None) if has_names(version) else (None, None)
    operator_id = cursor.raw(16).hex()
    cursor.operator = uid or name or operator_id
    at = cursor.position
    parallelism, max_parallelism = cursor.i32(), cursor.i32()
    if not 0 <= parallelism <= max_parallelism:
        raise cursor.corrupt(f"parallelism {parallelism} is not within 0 and {max_parallelism}", at=at)
    legacy = version == LEGACY_VERSION
    chain_length = cursor.i32() if legacy else None
    coordinator = None if legacy else _read_coordinator(cursor)
    mark, subtasks = _read_subtasks(cursor, version, parallelism)
    if mark is not None and coordinator is not None:
        raise cursor.corrupt("a finished operator has coordinator state")
    return OperatorState(
        operator_id=operator_id,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        name=name,
        uid=uid,
        coordinator_state=coordinator,
        subtasks=subtasks,
        finished_mark=mark,
        chain_length=chain_length,
    )


def _read_coordinator(cursor: Cursor) -> InlineBytes | None:
    at = cursor.position
    handle = read_stream(cursor)
    if handle is None or isinstance(handle, InlineBytes):
        return handle
    raise cursor.corrupt("coordinator state is not inline", at=at)


def _read_subtasks(cursor: Cursor, version: int, parallelism: int) -> tuple[int | None, tuple[SubtaskEntry, ...]]:
    """Return the mark of a finished operator, or its subtasks."""
    at = cursor.position
    number = cursor.i32()
    if number < 0:
        if version == LEGACY_VERSION:
            raise cursor.corrupt(f"the number of subtasks is {number}", at=at)
        return number, ()
    cursor.position = at
    cursor.count("subtasks", _SMALLEST_SUBTASK, held=_HELD_SUBTASK)
    if number > parallelism:
        raise cursor.corrupt(f"{number} subtasks at parallelism {parallelism}", at=at)
    subtasks = tuple([_read_subtask(cursor, version) for _ in range(number)])
    cursor.subtask = None
    indexes = {subtask.index for subtask in subtasks}
    if len(indexes) != number or max(indexes, default=-1) >= parallelism:
        raise cursor.corrupt(f"subtask indexes repeat, or reach beyond parallelism {parallelism}", at=at)
    return None, subtasks


def _read_subtask(cursor: Cursor, version: int) -> SubtaskEntry:
    cursor.subtask = None
    index = cursor.i32()
    cursor.subtask = index if index >= 0 else -index - 1
    if index >= 0:
        return _read_state(cursor, version, index)
    if version == LEGACY_VERSION:
        raise cursor.corrupt(f"a subtask index is {index}", at=cursor.position - 4)
    return FinishedSubtask(-index - 1)


def _read_state(cursor: Cursor, version: int, index: int) -> SubtaskState:
    cursor.charge(_HELD_STATE)
    legacy = _read_legacy(cursor) if version == LEGACY_VERSION else None
    with_channels = version > LEGACY_VERSION
    return SubtaskState(
        index=index,
        managed_operator=read_operator_state(cursor),
        raw_operator=read_operator_state(cursor),
        managed_keyed=read_keyed(cursor),
        raw_keyed=read_keyed(cursor),
        input_channels=read_channels(cursor, Side.INPUT, version) if with_channels else (),
        output_channels=read_channels(cursor, Side.OUTPUT, version) if with_channels else (),
        legacy=legacy,
    )


def _read_legacy(cursor: Cursor) -> LegacySubtask:
    duration, states = cursor.i64(), cursor.i32()
    if states > 0:
        raise cursor.corrupt(f"{states} states from before Flink 1.3 are announced", at=cursor.position - 4)
    return LegacySubtask(duration, states)


def _refuse_repeated_operators(cursor: Cursor, operators: tuple[OperatorState, ...]) -> None:
    seen: set[str] = set()
    for operator in operators:
        if operator.operator_id in seen:
            raise cursor.corrupt(f"operator id {operator.operator_id} appears twice")
        seen.add(operator.operator_id)


def _read_properties(cursor: Cursor, version: int) -> bytes:
    if not has_properties(version):
        if cursor.remaining:
            raise cursor.corrupt(f"{cursor.remaining} bytes follow the last operator")
        return b""
    start = cursor.position
    properties = cursor.rest()
    fault = walk_properties(properties)
    if fault is not None:
        raise cursor.corrupt(
            f"the checkpoint properties are not a Java object stream: {fault.what}", at=start + fault.at
        )
    return properties
