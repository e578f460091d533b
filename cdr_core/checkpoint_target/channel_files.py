"""Channel-state files that the drain prepared: read back, tallied, and joined if a subtask left several.

Unit: a new subtask. Flink takes one handle per channel, so a channel whose chunks lie in several files (one per
recovery checkpoint) is copied together; a subtask that left one file is read and left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.audit.ledger import Ledger
from cdr_core.channels.grouping import group_ends
from cdr_core.checkpoint_target.units import ChannelsUnit
from cdr_core.commit.committable import Chunks, Committable, PreparedFile, chunks_of, store_chunks
from cdr_core.commit.sinks.checkpoint import STREAM_HEADER, CheckpointSink
from cdr_core.errors import CorruptChannelState
from cdr_core.faults import reach
from cdr_core.flink.channel_state import LENGTH_SIZE, gather_fields
from cdr_core.flink.channel_writer import ChunkBatch, SubtaskSide
from cdr_core.flink.metadata import ChannelHandle, RelativeFile, Side
from cdr_core.flink.metadata.channel_packing import ChannelChunks, pack_handles
from cdr_core.kernels import channel_batches, fingerprint, frames
from cdr_core.planning.plan import Plan
from cdr_core.runtime.phase_ledgers import line_key

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

WINDOW = 4 << 20
"""Bytes of a file that are read at once."""
MOST_CHUNKS = 1 << 16


def channel_units(plan: Plan, entries: Sequence[Committable], *, join: bool) -> dict[str, ChannelsUnit]:
    """Return one unit per new subtask with all its prepared files; ``join``: several become one."""
    files: dict[int, list[PreparedFile]] = {number: [] for number in range(len(plan.subtasks))}
    for entry in sorted(entries, key=lambda each: each.checkpoint_id):
        files[entry.subtask] += entry.files
    return {f"channels-{subtask:05d}": ChannelsUnit(subtask, tuple(found), join) for subtask, found in files.items()}


def check_channels(
    plan: Plan, unit: ChannelsUnit, sink: CheckpointSink, name: str, directory: str
) -> tuple[Ledger, PreparedFile | None]:
    """Return the ledger of the subtask from the bytes of its files, and the one file that its channels are in; write
    the places of the channels in it to ``directory``.
    """
    files = unit.files
    chunks = [chunks_of(file) for file in files]
    tally = _Tally(plan, unit.subtask, chunks)
    with ExitStack() as stack:
        target = stack.enter_context(sink.channel_file(name)) if unit.join and len(files) > 1 else None
        for file, own in zip(files, chunks, strict=True):  # a long drain leaves more files than may be open at once
            with sink.open_file(file) as source:
                for batch in _batches(source, file, own):
                    tally.take(batch)
                    if target is not None:
                        target.append(batch)
    if target is None:
        return tally.ledger, files[0] if files else None
    assert target.prepared is not None
    reach("channels.joined")
    joined = msgspec.structs.replace(target.prepared, records=sum(file.records for file in files))
    return tally.ledger, store_chunks(joined, directory)


def _batches(source: pa.NativeFile, file: PreparedFile, chunks: Chunks) -> Iterator[ChunkBatch]:
    """Yield the chunks of a file in order; a length field that differs from the written one raises."""
    whole = len(STREAM_HEADER) + int(chunks.size.sum())
    if whole != file.bytes or not np.array_equal(chunks.offset[1:], (chunks.offset + chunks.size)[:-1]):
        raise CorruptChannelState(f"chunks of {whole} bytes where {file.bytes} were prepared")
    begin = 0
    for end in group_ends(chunks.size, WINDOW, MOST_CHUNKS).tolist():
        base = int(chunks.offset[begin])
        source.seek(base)
        data = np.frombuffer(source.read(int(chunks.size[begin:end].sum())), np.uint8)
        begins = chunks.offset[begin:end] - base
        lengths = gather_fields(data, begins)
        if not np.array_equal(lengths + LENGTH_SIZE, chunks.size[begin:end]):
            raise CorruptChannelState(f"{file.path} has chunks of other lengths than were prepared")
        starts = begins + LENGTH_SIZE
        yield ChunkBatch(data, starts, starts + lengths, chunks.channel[begin:end], chunks.output[begin:end], 0)
        begin = end


class _Tally:
    """Computes the ledger of chunks of whole elements; the chunks of a channel come in the order of its elements."""

    def __init__(self, plan: Plan, subtask: int, chunks: Sequence[Chunks]) -> None:
        self._plan, self._subtask = plan, subtask
        channels = np.unique(np.concatenate([np.zeros(0, np.int64), *(each.channel for each in chunks)]))
        self._lines = self._of(channels)
        self._sums = np.zeros((len(channels), fingerprint.FOLD_COLUMNS), np.uint64)
        self._kinds = np.zeros((len(channels), frames.TAGS), np.int64)

    def _of(self, channels: Longs) -> Longs:
        found: Longs = (
            self._plan.channels.line_first[channels] + self._subtask - self._plan.channels.owner_first[channels]
        )
        return found

    def take(self, batch: ChunkBatch) -> None:
        lines, found = self._of(batch.channel), np.zeros(len(batch.channel), np.int64)
        rows = np.searchsorted(self._lines, lines)
        bad = channel_batches.tally_pieces(batch.data, batch.begins, batch.ends, rows, self._sums, self._kinds, found)
        if bad >= 0:
            where = line_key(self._plan)(int(lines[bad])).where
            raise CorruptChannelState("a prepared chunk does not hold whole elements", where=where)

    @property
    def ledger(self) -> Ledger:
        return Ledger.of(self._lines, self._sums, self._kinds)


def handles_of(
    plan: Plan, files: Mapping[int, PreparedFile], version: int
) -> Mapping[SubtaskSide, Sequence[ChannelHandle]]:
    """Return the handles of all channels, by operator, side and subtask; ``files`` by new subtask."""
    parts = [(subtask, file, chunks_of(file)) for subtask, file in sorted(files.items())]
    streams = [RelativeFile(file.path, file.bytes) for _, file, _ in parts]
    placed: dict[tuple[str, Side], list[ChannelChunks]] = {}
    for stream, (subtask, _, chunks) in enumerate(parts):
        _place(plan, plan.subtasks[subtask].index, stream, chunks, placed)
    found: dict[SubtaskSide, Sequence[ChannelHandle]] = {}
    for (operator, side), each in placed.items():
        handles = pack_handles(ChannelChunks.joined(each), side, streams, version)
        found |= {SubtaskSide(operator, side, subtask): packed for subtask, packed in handles.items()}
    return found


def _place(
    plan: Plan, new_down: int, stream: int, chunks: Chunks, placed: dict[tuple[str, Side], list[ChannelChunks]]
) -> None:
    """Add the chunks of a new subtask's file to those of the operator and side whose state they are."""
    exchanges = plan.channels.exchange[chunks.channel]
    for number, exchange in enumerate(plan.exchanges):
        for side in Side:
            members = np.flatnonzero((exchanges == number) & (chunks.output == (side is Side.OUTPUT)))
            if not len(members):
                continue
            up = plan.channels.new_up[chunks.channel[members]]
            subtask, channel = exchange.ends_at(side, up, np.full(len(members), new_down, np.int32))
            operator, a = exchange.end(side)
            same = np.ones(len(members), np.int64)
            ids = (subtask.astype(np.int64), a * same, channel.astype(np.int64), stream * same)
            there = ChannelChunks(*ids, chunks.offset[members], chunks.size[members])
            placed.setdefault((operator, side), []).append(there)
