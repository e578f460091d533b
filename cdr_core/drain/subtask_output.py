"""What a subtask is drained into: prepared files, one per cut, of rows or of channel state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.channels.state_border import Borders
from cdr_core.channels.table_shapes import TableShape
from cdr_core.commit.committable import PreparedFile, store_chunks
from cdr_core.commit.sinks import Sink, sink_for
from cdr_core.commit.sinks.base import ROW_GROUP_BYTES, TableWriter
from cdr_core.commit.sinks.checkpoint import ChannelFile, CheckpointSink
from cdr_core.commit.sinks.none import CountingWriter, NoneSink
from cdr_core.drain.channel_chunks import ChunkBuilder
from cdr_core.drain.drain_state import DrainState
from cdr_core.drain.table_rows import RowBuilder
from cdr_core.spill.set_reader import Segment
from cdr_core.targets import Target

Longs = npt.NDArray[np.int64]


class _Writer(Protocol):
    @property
    def prepared(self) -> PreparedFile | None: ...


W = TypeVar("W", bound=_Writer)


class Output(ABC, Generic[W]):
    """The prepared files of one subtask: segments go to the file that is open, ``close_file`` ends it.

    Leaving it by an error removes the file that was open.
    """

    needs_positions = True
    """Whether anything is made of the records' places in their virtual channels."""

    def __init__(self, state: DrainState, name: str, make: Callable[[str], AbstractContextManager[W]]) -> None:
        self.state, self._name, self._make = state, name, make
        self._output: tuple[AbstractContextManager[W], W] | None = None
        self._files: list[PreparedFile] = []
        self._outputs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._output is not None:
            manager, self._output = self._output[0], None
            manager.__exit__(kind, error, trace)  # type: ignore[arg-type]  # the trace is passed on untouched

    @abstractmethod
    def write(self, segment: Segment, skip: Longs | None) -> None:
        """Elements of a segment; ``skip`` as for :func:`elements_of`."""

    def opened(self) -> W:
        """The file that is open, or a new one."""
        if self._output is None:
            manager = self._make(f"{self._name}-{self._outputs}")
            self._outputs += 1
            self._output = (manager, manager.__enter__())
        return self._output[1]

    def close_file(self) -> None:
        """What was written so far is one file."""
        if self._output is None:
            return
        (manager, writer), self._output = self._output, None
        manager.__exit__(None, None, None)
        assert writer.prepared is not None
        self._files.append(self.finished(writer.prepared))

    def finished(self, file: PreparedFile) -> PreparedFile:
        """A file that was closed, as it is handed over."""
        return file

    def take_files(self) -> tuple[PreparedFile, ...]:
        """The files closed since the last call."""
        files, self._files = tuple(self._files), []
        return files


class TableOutput(Output[TableWriter]):
    """Rows of a table."""

    def __init__(
        self,
        state: DrainState,
        subtask: int,
        sink: Sink,
        name: str,
        row_group: int = ROW_GROUP_BYTES,
        *,
        shape: TableShape,
    ) -> None:
        self._rows = RowBuilder(state.plan, subtask, shape)
        super().__init__(state, name, lambda file: sink.writer(file, self._rows.schema, row_group))

    def write(self, segment: Segment, skip: Longs | None) -> None:
        elements = self.state.taken(segment, skip)
        if elements.records.any():
            self.opened().write(self._rows.build(elements))


class ChannelOutput(Output[ChannelFile]):
    """Channel state of a checkpoint. Nothing is left out: it holds watermarks and their kin too."""

    def __init__(
        self, state: DrainState, sink: CheckpointSink, name: str, borders: Borders | None, directory: str
    ) -> None:
        self._chunks, self._directory = ChunkBuilder(state.plan, borders), directory
        super().__init__(state, name, sink.channel_file)

    def write(self, segment: Segment, skip: Longs | None) -> None:
        elements = self.state.taken(segment, skip)
        if len(elements.starts):
            self.opened().append(self._chunks.build(elements))

    def finished(self, file: PreparedFile) -> PreparedFile:
        return store_chunks(file, self._directory)


class BytesOutput(Output[CountingWriter]):
    """Nothing at all: bytes are tallied and let go."""

    needs_positions = False

    def __init__(self, state: DrainState, sink: NoneSink, name: str) -> None:
        super().__init__(state, name, lambda file: sink.writer(file, pa.schema([])))

    def write(self, segment: Segment, skip: Longs | None) -> None:
        records = self.state.taken_as_bytes(segment, skip)
        if records:
            self.opened().count(records)


def output_for(
    target: Target,
    state: DrainState,
    subtask: int,
    name: str,
    borders: Borders | None,
    row_group: int = ROW_GROUP_BYTES,
    *,
    shape: TableShape,
    directory: str,
) -> Output[Any]:
    """The output of a subtask for a target; ``borders`` and ``directory`` (for what says where the chunks are) count
    where it is a checkpoint, ``row_group`` and ``shape`` for a table.
    """
    sink = sink_for(target)
    if isinstance(sink, NoneSink) and sink.raw:
        return BytesOutput(state, sink, name)
    if not target.kind.is_checkpoint:
        return TableOutput(state, subtask, sink, name, row_group, shape=shape)
    assert isinstance(sink, CheckpointSink)
    return ChannelOutput(state, sink, name, borders, directory)
