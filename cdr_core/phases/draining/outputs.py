"""What a subtask is drained into: prepared files, one per cut, of rows or of channel state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, Self, TypeVar

import pyarrow as pa

from cdr_core.audit.ledger import Tally
from cdr_core.commit.committable import PreparedFile
from cdr_core.commit.sinks import Sink, is_checkpoint, sink_for
from cdr_core.commit.sinks.base import ROW_GROUP_BYTES, TableWriter
from cdr_core.commit.sinks.checkpoint import ChannelFile, CheckpointSink
from cdr_core.commit.sinks.none import CountingWriter, NoneSink
from cdr_core.drain.chunks import ChunkBuilder
from cdr_core.drain.rows import RowBuilder
from cdr_core.drain.tallied import Tallier
from cdr_core.flink.channel_writer import OwnedChannel
from cdr_core.phases.draining import said as saying
from cdr_core.rescale.other_elements import Last
from cdr_core.rescale.plan import Plan
from cdr_core.rescale.sides import Border
from cdr_core.spill.reader import SegmentBody


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

    def __init__(self, name: str, make: Callable[[str], AbstractContextManager[W]]) -> None:
        self._name, self._make = name, make
        self._output: tuple[AbstractContextManager[W], W] | None = None
        self._files: list[PreparedFile] = []
        self._outputs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._output is not None:
            manager, self._output = self._output[0], None
            manager.__exit__(kind, error, trace)  # type: ignore[arg-type]  # the trace is passed on untouched

    @property
    @abstractmethod
    def tallies(self) -> dict[int, Tally]:
        """What was written, by virtual channel, what an earlier task did included."""

    @property
    @abstractmethod
    def said(self) -> dict[saying.Channel, Last]:
        """What each channel said last of its watermark, to an earlier task included."""

    @abstractmethod
    def write(self, body: SegmentBody) -> None:
        """Whole elements of one virtual channel."""

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
        self._files.append(writer.prepared)

    def take_files(self) -> tuple[PreparedFile, ...]:
        """The files closed since they were last asked for."""
        files, self._files = tuple(self._files), []
        return files

    def keep_files(self, files: tuple[PreparedFile, ...]) -> None:
        """They were asked for and not handed over: the next one who asks gets them."""
        self._files = [*files, *self._files]


class TableOutput(Output[TableWriter]):
    """Rows of a table."""

    def __init__(
        self,
        plan: Plan,
        subtask: int,
        sink: Sink,
        name: str,
        tallies: Mapping[int, Tally],
        said: Mapping[saying.Channel, Last] | None = None,
        row_group: int = ROW_GROUP_BYTES,
        *,
        raw: bool = True,
    ) -> None:
        self._rows = RowBuilder(plan, subtask, tallies, said, raw=raw)
        super().__init__(name, lambda file: sink.writer(file, self._rows.schema, row_group))

    @property
    def tallies(self) -> dict[int, Tally]:
        return self._rows.tallies

    @property
    def said(self) -> dict[saying.Channel, Last]:
        return self._rows.said

    def write(self, body: SegmentBody) -> None:
        batch = self._rows.build(body)
        if batch.num_rows:
            self.opened().write(batch)


class ChannelOutput(Output[ChannelFile]):
    """Channel state of a checkpoint. Nothing is left out: it holds watermarks and their kin too."""

    def __init__(
        self,
        plan: Plan,
        subtask: int,
        sink: CheckpointSink,
        name: str,
        tallies: Mapping[int, Tally],
        said: Mapping[saying.Channel, Last] | None,
        borders: Mapping[int, Border] | None,
    ) -> None:
        self._chunks = ChunkBuilder(plan, subtask, borders, tallies, said)
        super().__init__(name, sink.channel_file)

    @property
    def tallies(self) -> dict[int, Tally]:
        return self._chunks.tallies

    @property
    def said(self) -> dict[saying.Channel, Last]:
        return self._chunks.said

    def write(self, body: SegmentBody) -> None:
        for chunk in self._chunks.build(body):
            owned = OwnedChannel(str(chunk.virtual_channel), chunk.side, chunk.channel)
            self.opened().append(owned, [chunk.data], chunk.records)


class BytesOutput(Output[CountingWriter]):
    """Nothing at all: bytes are tallied and let go."""

    needs_positions = False

    def __init__(
        self,
        plan: Plan,
        sink: NoneSink,
        name: str,
        tallies: Mapping[int, Tally],
        said: Mapping[saying.Channel, Last] | None,
    ) -> None:
        self._tallier = Tallier(plan, tallies, said)
        super().__init__(name, lambda file: sink.writer(file, pa.schema([])))

    @property
    def tallies(self) -> dict[int, Tally]:
        return dict(self._tallier.tallies)

    @property
    def said(self) -> dict[saying.Channel, Last]:
        return dict(self._tallier.said)

    def write(self, body: SegmentBody) -> None:
        records = self._tallier.take(body)
        if records:
            self.opened().count(records)


def output_for(
    target: str,
    plan: Plan,
    subtask: int,
    name: str,
    tallies: Mapping[int, Tally],
    said: Mapping[saying.Channel, Last] | None,
    borders: Mapping[int, Border] | None,
    row_group: int = ROW_GROUP_BYTES,
    *,
    raw: bool = True,
) -> Output[Any]:
    """The output of a subtask for a target; ``borders`` count where it is a checkpoint, ``row_group`` and ``raw`` for a
    table.
    """
    sink = sink_for(target)
    if isinstance(sink, NoneSink) and sink.raw:
        return BytesOutput(plan, sink, name, tallies, said)
    if not is_checkpoint(target):
        return TableOutput(plan, subtask, sink, name, tallies, said, row_group, raw=raw)
    assert isinstance(sink, CheckpointSink)
    return ChannelOutput(plan, subtask, sink, name, tallies, said, borders)
