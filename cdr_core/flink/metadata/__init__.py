"""A checkpoint's ``_metadata`` as values: read versions 2 to 6, write 3 to 6, byte for byte."""

from cdr_core.flink.metadata.changelog import (
    Change,
    Changelog,
    ChangeStream,
    CheckpointedChangelog,
    FileChanges,
    KeyedHandle,
    MemoryChanges,
    StoredFileChanges,
)
from cdr_core.flink.metadata.channels import (
    ChannelHandle,
    MergedChannel,
    MergedChannelHandle,
    Side,
    SingleChannelHandle,
)
from cdr_core.flink.metadata.keyed import (
    IdentifiedIncremental,
    IdentifiedKeyGroups,
    Incremental,
    KeyGroupRange,
    KeyGroups,
    LocalFile,
    SavepointKeyGroups,
)
from cdr_core.flink.metadata.offsets import Offsets
from cdr_core.flink.metadata.operators import (
    MergedOperatorStateHandle,
    NamedState,
    NullOperatorState,
    OperatorHandle,
    OperatorStateHandle,
)
from cdr_core.flink.metadata.reader import read_metadata
from cdr_core.flink.metadata.streams import (
    EMPTY_SEGMENT,
    AbsoluteFile,
    EmptySegment,
    FileSegment,
    InlineBytes,
    KeyGroupStream,
    RelativeFile,
    StreamHandle,
)
from cdr_core.flink.metadata.values import (
    CheckpointMetadata,
    FinishedSubtask,
    LegacySubtask,
    MasterState,
    OperatorState,
    SubtaskEntry,
    SubtaskState,
)
from cdr_core.flink.metadata.writer import write_metadata

__all__ = [
    "EMPTY_SEGMENT",
    "AbsoluteFile",
    "Change",
    "ChangeStream",
    "Changelog",
    "ChannelHandle",
    "CheckpointMetadata",
    "CheckpointedChangelog",
    "EmptySegment",
    "FileChanges",
    "FileSegment",
    "FinishedSubtask",
    "IdentifiedIncremental",
    "IdentifiedKeyGroups",
    "Incremental",
    "InlineBytes",
    "KeyGroupRange",
    "KeyGroupStream",
    "KeyGroups",
    "KeyedHandle",
    "LegacySubtask",
    "LocalFile",
    "MasterState",
    "MemoryChanges",
    "MergedChannel",
    "MergedChannelHandle",
    "MergedOperatorStateHandle",
    "NamedState",
    "NullOperatorState",
    "Offsets",
    "OperatorHandle",
    "OperatorState",
    "OperatorStateHandle",
    "RelativeFile",
    "SavepointKeyGroups",
    "Side",
    "SingleChannelHandle",
    "StoredFileChanges",
    "StreamHandle",
    "SubtaskEntry",
    "SubtaskState",
    "read_metadata",
    "write_metadata",
]
