"""State of an operator that cannot be brought to another parallelism, and the user's alternatives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cdr_core.errors import Corrupt, Refused
from cdr_core.flink.keys import key_group_range
from cdr_core.flink.metadata import (
    FinishedSubtask,
    IdentifiedIncremental,
    IdentifiedKeyGroups,
    Incremental,
    KeyedHandle,
    KeyGroups,
    MemoryChanges,
    NullOperatorState,
    OperatorHandle,
    OperatorState,
    SubtaskState,
)
from cdr_core.flink.metadata.changelog import Changelog, CheckpointedChangelog, FileChanges, StoredFileChanges
from cdr_core.flink.state.changelog_bundle import OLDEST_BUNDLE, overlapping
from cdr_core.flink.state.keyed import KeyedPlan
from cdr_core.flink.state.operator_state import OperatorPlan
from cdr_core.flink.state.snapshots import FullHandle
from cdr_core.flink.state.streams import COMPLETE, LEAVE_TO_FLINK, Read


class BlockKind(StrEnum):
    """The reason."""

    RAW_KEYED = "raw keyed state"
    RAW_OPERATOR = "raw operator state"
    UNMERGEABLE_KEYED = "keyed state that cannot be merged"
    UNLIKE_OPERATOR = "operator state that subtasks describe in different ways"
    TOO_PARALLEL = "more subtasks than key groups"
    UNREADABLE = "state that cannot be read"


@dataclass(frozen=True, slots=True)
class Block:
    """One reason why an operator's state cannot be redistributed, and the way out."""

    operator: str
    kind: BlockKind
    why: str
    way_out: str

    def __str__(self) -> str:
        return f"operator {self.operator}: {self.why}; {self.way_out}"


def blocks(
    operator: OperatorState, new_parallelism: int, *, version: int, read: Read | None = None
) -> tuple[Block, ...]:
    """Return every reason, none if parallelism stays. ``version`` is that of the metadata.

    Without ``read`` only the metadata is examined; with it, the heads of state files are read as well, and state that
    is not blocked then is not refused later.

    Coordinator state never blocks: when Flink itself rescales, it hands coordinators the very bytes of the checkpoint,
    so they are carried over as they are. An operator that has finished has no state.
    """
    if new_parallelism == operator.parallelism or operator.finished:
        return ()
    subtasks = [subtask for subtask in operator.subtasks if not isinstance(subtask, FinishedSubtask)]
    found = [
        *_raw(operator, subtasks),
        *_too_parallel(operator, new_parallelism),
        *_unmergeable(operator, subtasks, new_parallelism, version),
    ]
    if read is not None and not found:
        found += [*_unlike(operator, new_parallelism, read), *_unbundleable(operator, new_parallelism, read, version)]
    return tuple(found)


def _raw(operator: OperatorState, subtasks: list[SubtaskState]) -> list[Block]:
    found = []
    if any(has_states(subtask.raw_operator) for subtask in subtasks):
        why = "it has raw operator state, whose format only the operator knows"
        found.append(Block(operator.label, BlockKind.RAW_OPERATOR, why, LEAVE_TO_FLINK))
    if any(subtask.raw_keyed is not None and not isinstance(subtask.raw_keyed, FullHandle) for subtask in subtasks):
        why = "it has raw keyed state that is not in a full snapshot, as Flink would write it"
        found.append(Block(operator.label, BlockKind.RAW_KEYED, why, LEAVE_TO_FLINK))
    return found


def _too_parallel(operator: OperatorState, parallelism: int) -> list[Block]:
    if parallelism <= operator.max_parallelism:
        return []
    why = f"its maximum parallelism is {operator.max_parallelism}, so it cannot run with {parallelism} subtasks"
    way_out = f"choose at most {operator.max_parallelism}"
    return [Block(operator.label, BlockKind.TOO_PARALLEL, why, way_out)]


def _unmergeable(operator: OperatorState, subtasks: list[SubtaskState], parallelism: int, version: int) -> list[Block]:
    handles = [subtask.managed_keyed for subtask in subtasks if subtask.managed_keyed is not None]
    if version >= OLDEST_BUNDLE or all(isinstance(each, KeyGroups | IdentifiedKeyGroups) for each in handles):
        return []
    for index in range(min(parallelism, operator.max_parallelism)):
        here = overlapping(handles, *key_group_range(index, parallelism, operator.max_parallelism))
        if len(here) > 1 or any(not isinstance(each, Incremental | IdentifiedIncremental) for each in here):
            why = (
                f"new subtask {index} needs key groups of {len(here)} old ones in {backend(here[0])}, and only since "
                "Flink 1.16 can one subtask be given several such snapshots"
            )
            return [Block(operator.label, BlockKind.UNMERGEABLE_KEYED, why, LEAVE_TO_FLINK)]
    return []


def _unlike(operator: OperatorState, parallelism: int, read: Read) -> list[Block]:
    try:
        OperatorPlan.of(operator, parallelism, read)
    except Refused as refusal:
        return [Block(operator.label, BlockKind.UNLIKE_OPERATOR, refusal.what, refusal.hint)]
    except Corrupt as error:
        return [_unreadable(operator, error)]
    return []


def _unbundleable(operator: OperatorState, parallelism: int, read: Read, version: int) -> list[Block]:
    try:
        plan = KeyedPlan.of(operator, parallelism, read, version=version, checkpoint_id=0)
        reasons = [why for index in range(parallelism) if (why := plan.refusal(index))]
    except Refused as refusal:
        return [Block(operator.label, BlockKind.UNMERGEABLE_KEYED, refusal.what, refusal.hint)]
    except Corrupt as error:
        return [_unreadable(operator, error)]
    return [Block(operator.label, BlockKind.UNMERGEABLE_KEYED, why, LEAVE_TO_FLINK) for why in reasons][:1]


def _unreadable(operator: OperatorState, error: Corrupt) -> Block:
    return Block(operator.label, BlockKind.UNREADABLE, error.what, COMPLETE)


def has_states(handle: OperatorHandle | None) -> bool:
    """Return whether a handle of operator state holds any."""
    return handle is not None and not isinstance(handle, NullOperatorState) and bool(handle.states)


def backend(handle: KeyedHandle) -> str:
    """Return the name of a keyed handle's kind for messages."""
    match handle:
        case KeyGroups() | IdentifiedKeyGroups():
            return "a full snapshot"
        case Incremental() | IdentifiedIncremental():
            return "an incremental snapshot (RocksDB or ForSt)"
        case Changelog() | CheckpointedChangelog() | MemoryChanges() | FileChanges() | StoredFileChanges():
            return "a changelog"
