"""Checks of all handles of a checkpoint together: chunks that two channels claim, and channels that are skipped because
their handles announce no bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdr_core.channels.channel_source import chunks_of
from cdr_core.errors import CorruptChannelState, PlanRefused
from cdr_core.flink.channel_columns import ChannelColumns
from cdr_core.flink.channel_state import DAMAGED, ChannelSlice
from cdr_core.flink.checkpoint import Checkpoint, FileLocation
from cdr_core.flink.metadata import Side
from cdr_core.planning.plan import Plan
from cdr_core.planning.subtask_mapping import UNMOVABLE

Longs = npt.NDArray[np.int64]

_INLINE = -1
"""The number of no file."""


def refuse_shared_chunks(checkpoint: Checkpoint) -> None:
    """Refuse a chunk that two channels list: its records would be recovered twice. Files may be shared, chunks not."""
    every = [checkpoint.columns(operator, side) for operator in checkpoint.metadata.operators for side in Side]
    files: dict[str, int] = {}
    found = [_places(checkpoint, columns, files) for columns in every]
    if not found:
        return
    file, place = (np.concatenate(each) for each in zip(*found, strict=True))
    order = np.lexsort((place, file))
    file, place = file[order], place[order]
    twice = np.flatnonzero((place[1:] == place[:-1]) & (file[1:] == file[:-1]) & (file[1:] != _INLINE))
    if twice.size:
        first, second = (_piece(every, int(order[twice[0] + next_])) for next_ in (0, 1))
        raise CorruptChannelState(
            f"a chunk is listed by another channel, too ({first.where()})",
            where=second.where(checkpoint.directory),
            hint=DAMAGED,
        )


def _places(checkpoint: Checkpoint, columns: ChannelColumns, files: dict[str, int]) -> tuple[Longs, Longs]:
    """Return of every chunk the number of its file, and its place in it; ``files`` is added to."""
    file, base = (np.full(len(columns.streams), _INLINE, np.int64) for _ in range(2))
    for number in np.unique(columns.stream).tolist():
        location = checkpoint.resolve(columns.streams[number])
        if isinstance(location, FileLocation):
            file[number], base[number] = files.setdefault(location.uri, len(files)), location.base
    stream = np.repeat(columns.stream, columns.counts)
    return file[stream], base[stream] + columns.offsets


def _piece(every: list[ChannelColumns], chunk: int) -> ChannelSlice:
    """Return the channel that lists the chunk of this number."""
    for columns in every:
        if chunk < len(columns.offsets):
            return columns.slice(int(np.searchsorted(columns.first, chunk, side="right")) - 1)
        chunk -= len(columns.offsets)
    raise IndexError(chunk)


def refuse_hidden_bytes(checkpoint: Checkpoint, plan: Plan, *, damage_is_fine: bool) -> None:
    """Refuse bytes in a channel that is not read because its handles announce nothing but empty chunks.

    These are channels that no exchange covers, and those of exchanges that could not move if they had any bytes.
    """
    covered = set()
    for exchange in plan.exchanges:
        if not (exchange.partitioner in UNMOVABLE and exchange.moved):
            covered.add((exchange.downstream, Side.INPUT, exchange.gate))
            covered.add((exchange.upstream, Side.OUTPUT, exchange.partition))
    for operator in checkpoint.metadata.operators:
        for side in Side:
            columns = checkpoint.columns(operator, side)
            covering = [index for of, which, index in covered if (of, which) == (operator.operator_id, side)]
            for row in np.flatnonzero(~np.isin(columns.a, covering)):
                piece = columns.slice(int(row))
                if not _holds_bytes(plan, piece, damage_is_fine):
                    continue
                raise PlanRefused(
                    f"operator {operator.label} has in-flight data on {side} {piece.channel.a}, which its handles "
                    "call empty and no exchange could take",
                    where=piece.where(checkpoint.directory),
                    hint="add the exchange to the job spec, or keep its parallelism",
                )


def _holds_bytes(plan: Plan, piece: ChannelSlice, damage_is_fine: bool) -> bool:
    try:
        return any(part.size for part in chunks_of(plan, piece))
    except CorruptChannelState:
        if damage_is_fine:
            return False
        raise
