"""A checkpoint in Flink's format with in-flight records, written as it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from cdr_core.flink.channel_state import LENGTH_SIZE
from cdr_core.flink.channel_writer import Stream, SubtaskSide
from cdr_core.flink.metadata import CheckpointMetadata, OperatorState, Side, SubtaskState
from cdr_core.flink.metadata.versions import has_names, has_properties
from cdr_core.kernels.generated_channels import Window, Work, fill_window, new_work
from cdr_core.kernels.generated_elements import Options, Pools, Table
from cdr_core.kernels.random_streams import entropy_words
from cdr_core.synthetic.layout import lanes_of, lay_out
from cdr_core.synthetic.pool import join_pools, make_pool, operator_id
from cdr_core.synthetic.properties import RETAINED_CHECKPOINT
from cdr_core.synthetic.shape import Shape
from cdr_core.synthetic.stores import FileStore, Handles, InlineStore

CHECKPOINT_ID: Final = 1

_WINDOW: Final = 1 << 20
_WINDOW_CHUNKS: Final = 1 << 16
"""Bytes and chunks that are written at once."""


@dataclass(frozen=True, slots=True)
class ExchangeTotals:
    """In-flight data generated on one exchange; ``bytes`` is payload without length fields of chunks."""

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
    a time, two windows, the encoded pools, 24 bytes a chunk and about 100 a channel; with inline state all of it.
    """
    if not shape.bytes:
        nothing = tuple(ExchangeTotals(exchange.name) for exchange in shape.exchanges)
        return Generated(_metadata(shape, {}), nothing, buffers=0, files=0)
    pools = [make_pool(shape, number) for number in shape.carriers]
    channels = lay_out(shape, pools)
    lanes = lanes_of(shape, channels)
    joined = join_pools(shape, pools)
    options = Options(entropy_words(shape.seed, 0, 0, 0), shape.buffer, shape.watermarks, shape.timestamps)
    work = new_work(joined, channels, options, entropy_words(shape.seed, len(shape.exchanges) + 1))
    store = InlineStore(shape, lanes) if shape.inline else FileStore(shape, lanes, create)
    for window in _windows(joined, channels, options, work):
        store.append(window)
    return Generated(_metadata(shape, store.handles()), _totals(shape, work), store.buffers, store.files)


def _windows(pools: Pools, channels: Table, options: Options, work: Work) -> Iterator[Window]:
    """Yield all chunks, in the order in which they are written. A window is void when the next one is asked for."""
    longest = min(options.buffer, work.data.shape[1]) + LENGTH_SIZE
    room = Window(np.empty(_WINDOW + longest, np.uint8), *np.empty((2, _WINDOW_CHUNKS), np.int64))
    while True:
        size, chunks = fill_window(pools, channels, options, work, room)
        if not chunks:
            return
        yield Window(room.data[:size], room.lanes[:chunks], room.lengths[:chunks])


def _totals(shape: Shape, work: Work) -> tuple[ExchangeTotals, ...]:
    made = dict(zip(shape.carriers, work.totals.tolist(), strict=True))
    return tuple(ExchangeTotals(each.name, *made.get(number, ())) for number, each in enumerate(shape.exchanges))


def _metadata(shape: Shape, handles: Handles) -> CheckpointMetadata:
    return CheckpointMetadata(
        shape.version,
        CHECKPOINT_ID,
        tuple(_operator(shape, name, handles) for name in shape.operators),
        properties=RETAINED_CHECKPOINT if has_properties(shape.version) else b"",
    )


def _operator(shape: Shape, name: str, handles: Handles) -> OperatorState:
    """Return an operator without state of its own: every subtask, and the channels that wait there."""
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
