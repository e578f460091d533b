"""The contents of a ``_metadata`` file as values: checkpoint, operators, subtasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdr_core.flink.metadata.changelog import KeyedHandle
from cdr_core.flink.metadata.channels import ChannelHandle, Side, pack_channels
from cdr_core.flink.metadata.operators import OperatorHandle
from cdr_core.flink.metadata.streams import InlineBytes


@dataclass(frozen=True, slots=True)
class MasterState:
    """State of a hook on the job manager."""

    version: int
    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class LegacySubtask:
    """Two unused fields that only version 2 has; kept so that nothing is lost."""

    duration: int
    legacy_states: int


@dataclass(frozen=True, slots=True)
class SubtaskState:
    """The state of a running subtask. ``legacy`` is set in version 2 and only there."""

    index: int
    managed_operator: OperatorHandle | None = None
    raw_operator: OperatorHandle | None = None
    managed_keyed: KeyedHandle | None = None
    raw_keyed: KeyedHandle | None = None
    input_channels: Sequence[ChannelHandle] = ()
    output_channels: Sequence[ChannelHandle] = ()
    legacy: LegacySubtask | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_channels", pack_channels(self.input_channels, Side.INPUT))
        object.__setattr__(self, "output_channels", pack_channels(self.output_channels, Side.OUTPUT))


@dataclass(frozen=True, slots=True)
class FinishedSubtask:
    """A subtask that had reached its end: it has no state and will not run again."""

    index: int


SubtaskEntry = SubtaskState | FinishedSubtask


@dataclass(frozen=True, slots=True)
class OperatorState:
    """One operator and those of its subtasks that have state.

    ``subtasks`` are in file order and may be fewer than ``parallelism``. ``finished_mark`` is the negative number of
    subtasks by which Flink marks an operator all of whose subtasks finished, else ``None``. ``chain_length`` is set in
    version 2 and only there. ``name`` and ``uid`` exist since version 5; ``None`` is "not given".
    """

    operator_id: str
    parallelism: int
    max_parallelism: int
    name: str | None = None
    uid: str | None = None
    coordinator_state: InlineBytes | None = None
    subtasks: tuple[SubtaskEntry, ...] = ()
    finished_mark: int | None = None
    chain_length: int | None = None

    @property
    def finished(self) -> bool:
        """Return whether every subtask had reached its end."""
        return self.finished_mark is not None

    @property
    def label(self) -> str:
        """Return the name for messages: uid, else name, else id."""
        return self.uid or self.name or self.operator_id


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """A whole file. ``properties`` is the Java object stream at its end (version 4 and later), else empty."""

    version: int
    checkpoint_id: int
    operators: tuple[OperatorState, ...] = ()
    master_states: tuple[MasterState, ...] = ()
    properties: bytes = b""
