"""What only several handles of a checkpoint together can tell: chunks that two channels claim, and channels that are
left alone because their handles say that nothing is in them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cdr_core.errors import CorruptChannelState, PlanRefused
from cdr_core.flink.channel_state import DAMAGED, ChannelSlice
from cdr_core.flink.checkpoint import Checkpoint, FileLocation
from cdr_core.flink.metadata import Side
from cdr_core.rescale.mapping import UNMOVABLE
from cdr_core.rescale.plan import Plan
from cdr_core.rescale.source import chunks_of


def refuse_shared_chunks(checkpoint: Checkpoint) -> None:
    """Refuse a chunk that two channels list: its records would be recovered twice. Files may be shared, chunks not."""
    listed: dict[str, list[ChannelSlice]] = {}
    bases: dict[str, list[int]] = {}
    for piece in _pieces(checkpoint):
        location = checkpoint.resolve(piece.delegate)
        if isinstance(location, FileLocation):
            listed.setdefault(location.uri, []).append(piece)
            bases.setdefault(location.uri, []).append(location.base)
    for uri, pieces in listed.items():
        places = np.concatenate([p.offsets.numpy() + base for p, base in zip(pieces, bases[uri], strict=True)])
        order = np.argsort(places, kind="stable")
        twice = np.flatnonzero(places[order][1:] == places[order][:-1])
        if twice.size:
            owners = np.repeat(np.arange(len(pieces)), [len(piece.offsets) for piece in pieces])
            first, second = (pieces[owners[order[twice[0] + next_]]] for next_ in (0, 1))
            raise CorruptChannelState(
                f"a chunk is listed by another channel, too ({first.where()})",
                where=second.where(checkpoint.directory),
                hint=DAMAGED,
            )


def refuse_hidden_bytes(checkpoint: Checkpoint, plan: Plan, *, damage_is_fine: bool) -> None:
    """Refuse bytes in a channel that nobody will read since its handles announce nothing but empty chunks.

    These are channels that no exchange covers, and those of exchanges that could not move if anything were in them.
    """
    covered = set()
    for exchange in plan.exchanges:
        if not (exchange.partitioner in UNMOVABLE and exchange.moved):
            covered.add((exchange.downstream, Side.INPUT, exchange.gate))
            covered.add((exchange.upstream, Side.OUTPUT, exchange.partition))
    for operator in checkpoint.metadata.operators:
        for side in Side:
            for at, piece in checkpoint.channels(operator, side).items():
                if (operator.operator_id, side, at.a) in covered or not _holds_bytes(plan, piece, damage_is_fine):
                    continue
                raise PlanRefused(
                    f"operator {operator.label} has in-flight data on {side} {at.a}, which its handles call empty and "
                    "no exchange could take",
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


def _pieces(checkpoint: Checkpoint) -> Iterator[ChannelSlice]:
    for operator in checkpoint.metadata.operators:
        for side in Side:
            yield from checkpoint.channels(operator, side).values()
