"""A checkpoint in Flink's format with in-flight records, written as it is made."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Final

import numpy as np

from cdr_core.flink.channel_state import ChannelId
from cdr_core.flink.channel_writer import (
    ChannelStateFile,
    InlineChannels,
    OwnedChannel,
    Stream,
    SubtaskSide,
    WrittenChannel,
    channel_handles,
)
from cdr_core.flink.generate.chunks import Turn, turns
from cdr_core.flink.generate.elements import Batch, ChannelPlace, element_batches
from cdr_core.flink.generate.layout import ChannelLayout, Subtask, lay_out, share_files
from cdr_core.flink.generate.pool import Pool, make_pool, operator_id
from cdr_core.flink.generate.properties import RETAINED_CHECKPOINT
from cdr_core.flink.generate.shape import Shape
from cdr_core.flink.metadata import (
    ChannelHandle,
    CheckpointMetadata,
    OperatorState,
    RelativeFile,
    Side,
    SubtaskState,
)
from cdr_core.flink.metadata.versions import has_names, has_properties

CHECKPOINT_ID: Final = 1

_AT_ONCE: Final = 8
"""Channels that take turns in writing."""
_BATCH: Final = 1 << 20
"""Bytes of a channel that are made at once."""


@dataclass(slots=True)
class ExchangeTotals:
    """What was put in flight on one exchange so far; ``bytes`` is payload without length fields of chunks."""

    name: str
    channels: int = 0
    elements: int = 0
    records: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Generated:
    """The metadata, to be written when everything else is in place, and what was made.

    ``buffers`` are chunks, empty ones included; ``files`` does not count the metadata.
    """

    metadata: CheckpointMetadata
    exchanges: tuple[ExchangeTotals, ...]
    buffers: int
    files: int


def generate(shape: Shape, create: Callable[[str], Stream]) -> Generated:
    """Write the channel-state files of a checkpoint, each to what ``create`` gives for its name.

    Deterministic: equal shapes write equal bytes to equal names. Memory: about a megabyte for each of a few channels at
    a time, the encoded pools, and eight bytes a chunk; with inline state all of it.
    """
    pools = {number: make_pool(shape, number) for number in shape.carriers if shape.bytes}
    store = _Store(shape, create)
    totals = tuple(ExchangeTotals(exchange.name) for exchange in shape.exchanges)
    for owned, turn in _take_turns(shape, pools, totals):
        store.append(owned, turn.chunks)
    written = list(store.written())
    buffers = sum(len(channel.offsets) for channel in written)
    return Generated(_metadata(shape, written), totals, buffers, store.files)


def _take_turns(
    shape: Shape, pools: Mapping[int, Pool], totals: tuple[ExchangeTotals, ...]
) -> Iterator[tuple[OwnedChannel, Turn]]:
    """A few channels at a time, in an order of chance, so that their chunks lie between each other's."""
    rng = np.random.default_rng([shape.seed, len(shape.exchanges) + 1])
    waiting = iter(lay_out(shape, pools))
    active: list[Iterator[tuple[OwnedChannel, Turn]]] = []
    while True:
        active += (
            _turns(shape, pools[layout.exchange], layout, totals[layout.exchange])
            for layout in islice(waiting, _AT_ONCE - len(active))
        )
        if not active:
            return
        number = int(rng.integers(0, len(active)))
        turn = next(active[number], None)
        if turn is None:
            del active[number]
        else:
            yield turn


def _turns(
    shape: Shape, pool: Pool, layout: ChannelLayout, totals: ExchangeTotals
) -> Iterator[tuple[OwnedChannel, Turn]]:
    """The turns of one channel, each with the side of the channel that it is for."""
    exchange = shape.exchanges[layout.exchange]
    ups, downs = shape.parallelism[exchange.upstream], shape.parallelism[exchange.downstream]
    place = ChannelPlace(layout.up, layout.down, ups, downs)
    rng = np.random.default_rng([shape.seed, layout.exchange, layout.up, layout.down])
    batches = element_batches(pool, place, layout.size, _BATCH, shape.watermarks, rng)
    owned = {
        Side.INPUT: OwnedChannel(exchange.downstream, Side.INPUT, ChannelId(layout.down, exchange.gate, layout.up)),
        Side.OUTPUT: OwnedChannel(
            exchange.upstream, Side.OUTPUT, ChannelId(layout.up, exchange.partition, layout.down)
        ),
    }
    totals.channels += 1
    for turn in turns(_counted(batches, totals), layout.cut, shape.buffer, rng):
        yield owned[turn.side], turn


def _counted(batches: Iterator[Batch], totals: ExchangeTotals) -> Iterator[Batch]:
    for batch in batches:
        totals.elements += batch.elements
        totals.records += batch.records
        totals.bytes += len(batch.data)
        yield batch


class _Store:
    """Where channels are written to: files that subtasks share, or the metadata itself."""

    def __init__(self, shape: Shape, create: Callable[[str], Stream]) -> None:
        self._create = create
        self._inline = InlineChannels() if shape.inline else None
        self._names = (_file_name(shape.seed, number) for number in count())
        self._sharing = share_files(shape, shape.operators)
        self._files: dict[int, tuple[str, ChannelStateFile]] = {}

    @property
    def files(self) -> int:
        return len(self._files)

    def append(self, owned: OwnedChannel, chunks: Sequence[memoryview]) -> None:
        if self._inline is not None:
            self._inline.append(owned, chunks)
        elif chunks:
            self._file_of(owned).append(owned, chunks)

    def _file_of(self, owned: OwnedChannel) -> ChannelStateFile:
        """Opened when first written to: a file without a chunk does not exist."""
        number = self._sharing[Subtask(owned.operator, owned.channel.subtask)]
        if number not in self._files:
            name = next(self._names)
            self._files[number] = name, ChannelStateFile(self._create(name))
        return self._files[number][1]

    def written(self) -> Iterator[WrittenChannel]:
        if self._inline is not None:
            yield from self._inline.written(self._names)
        for _, (name, file) in sorted(self._files.items()):
            yield from file.written(RelativeFile(name, file.size))


def _file_name(seed: int, number: int) -> str:
    """A name like those Flink gives, always the same for the same seed."""
    digest = hashlib.sha256(f"channel state {seed} {number}".encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


def _metadata(shape: Shape, written: list[WrittenChannel]) -> CheckpointMetadata:
    handles = channel_handles(written, shape.version)
    return CheckpointMetadata(
        shape.version,
        CHECKPOINT_ID,
        tuple(_operator(shape, name, handles) for name in shape.operators),
        properties=RETAINED_CHECKPOINT if has_properties(shape.version) else b"",
    )


def _operator(shape: Shape, name: str, handles: Mapping[SubtaskSide, tuple[ChannelHandle, ...]]) -> OperatorState:
    """An operator without state of its own: every subtask, and the channels that wait there."""
    identifier = operator_id(name)
    shown = name if has_names(shape.version) and identifier != name.lower() else None
    subtasks = tuple(
        SubtaskState(
            index,
            input_channels=handles.get(SubtaskSide(name, Side.INPUT, index), ()),
            output_channels=handles.get(SubtaskSide(name, Side.OUTPUT, index), ()),
        )
        for index in range(shape.parallelism[name])
    )
    return OperatorState(
        identifier, shape.parallelism[name], shape.max_parallelism, name=shown, uid=shown, subtasks=subtasks
    )
