"""An exchange of the spec bound to the checkpoint's operators, and all checks of it.

Checks return their refusals instead of raising them, so that a what-if can show all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cdr_core.errors import CdrError, CorruptChannelState, CorruptMetadata, PlanRefused, SpecRefused, Where
from cdr_core.flink.channel_columns import ChannelColumns
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.keys import MOST_KEY_GROUPS, KeyWithoutHash, check_key
from cdr_core.flink.metadata import OperatorState, Side
from cdr_core.flink.types import Kind, Scalar, TypeDescription, parse_type
from cdr_core.planning.custom_partitioner import load_owner
from cdr_core.planning.handle_sizes import believable_sizes, payload_sizes
from cdr_core.planning.job_spec import Exchange, Partitioner
from cdr_core.planning.subtask_mapping import POINTWISE, UNMOVABLE, new_owners, pointwise_downs, pointwise_ups

OPAQUE = Scalar(Kind.OPAQUE)

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlannedExchange:
    """An exchange bound to the checkpoint's operators, with its old and new parallelism on both ends.

    ``key`` is empty where the record is OPAQUE, since it cannot be found there. ``owner`` is the owner function of a
    custom exchange (``module:function``), else empty. ``max_parallelism`` is the downstream operator's. ``pointwise``:
    a subtask numbers its channels by the few subtasks that it is connected with, not by all subtasks of the other end;
    parallelism stays then. ``key_checked``: a record on its way to a subtask that does not own its key is an error; not
    so where the key is known to be wrong and nothing depends on it.
    """

    name: str
    upstream: str
    partition: int
    downstream: str
    gate: int
    partitioner: str
    record: str
    key: tuple[str, ...]
    owner: str
    max_parallelism: int
    old_up: int
    old_down: int
    new_up: int
    new_down: int
    pointwise: bool = False
    key_checked: bool = True

    @property
    def moved(self) -> bool:
        """Return whether either end changes its parallelism."""
        return (self.old_up, self.old_down) != (self.new_up, self.new_down)

    @property
    def description(self) -> TypeDescription:
        return parse_type(self.record)

    def possible_owners(self, down: int) -> tuple[int, ...]:
        """Return the new downstream subtasks that may own records of an old one; see :func:`new_owners`."""
        return new_owners(Partitioner(self.partitioner), down, self.old_down, self.new_down, self.max_parallelism)

    def end(self, side: Side) -> tuple[str, int]:
        """Return the operator whose state that is, and its gate or partition."""
        return (self.downstream, self.gate) if side is Side.INPUT else (self.upstream, self.partition)

    def peers(self, side: Side) -> list[range]:
        """Return, by subtask of that side, the subtasks of the other side that a pointwise exchange
        connects it with.
        """
        if side is Side.INPUT:
            return [pointwise_ups(down, self.old_up, self.old_down) for down in range(self.old_down)]
        return [pointwise_downs(up, self.old_up, self.old_down) for up in range(self.old_up)]

    def first_peers(self, side: Side) -> Longs:
        """Return the first of :meth:`peers`, which is channel 0."""
        return np.array([each.start for each in self.peers(side)], np.int64)

    def ends_at(self, side: Side, up: Ints, down: Ints) -> tuple[Ints, Ints]:
        """Return the subtask and the channel of each connection on one side; of old ones, or of new ones where
        all-to-all.
        """
        here, there = (down, up) if side is Side.INPUT else (up, down)
        return here, there - self.first_peers(side).astype(there.dtype)[here] if self.pointwise else there

    def rows_of(self, columns: ChannelColumns, up: Ints, down: Ints) -> Longs:
        """Return the row of each old connection in the columns of one side; -1 where that side has no state."""
        subtask, channel = self.ends_at(columns.side, up, down)
        return columns.find(subtask, self.end(columns.side)[1], channel)


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """Every connection that has state on either side, in the order of up and down, and the sizes that its handles
    announce.

    ``bytes`` are with length fields; ``empty``: there is nothing but those.
    """

    up: Longs
    down: Longs
    bytes: Longs
    empty: npt.NDArray[np.bool_]


def bind(checkpoint: Checkpoint, exchange: Exchange, parallelism: Mapping[str, int]) -> PlannedExchange:
    """Return the exchange with its operators' ids and parallelism.

    Refuses an operator that the checkpoint does not have, and one that no Flink can have run.
    """
    upstream, downstream = checkpoint.operator(exchange.upstream), checkpoint.operator(exchange.downstream)
    for end in (upstream, downstream):
        if impossible := beyond_flink(checkpoint, end):
            raise impossible
    bound = PlannedExchange(
        name=exchange.name,
        upstream=upstream.operator_id,
        partition=exchange.partition,
        downstream=downstream.operator_id,
        gate=exchange.gate,
        partitioner=str(exchange.partitioner),
        record=exchange.record.text,
        key=_usable_key(exchange),
        owner=exchange.owner or "",
        max_parallelism=downstream.max_parallelism,
        old_up=upstream.parallelism,
        old_down=downstream.parallelism,
        new_up=parallelism[upstream.operator_id],
        new_down=parallelism[downstream.operator_id],
    )
    if exchange.partitioner in POINTWISE and not bound.moved:
        return replace(bound, pointwise=_counts_pointwise(checkpoint, bound))
    return bound


def beyond_flink(checkpoint: Checkpoint, operator: OperatorState) -> CorruptMetadata | None:
    """Return the error for more key groups than Flink knows.

    The format has room for them and they are read and written back, but code that counts key groups or subtasks one
    by one must not start: a changed bit there would take gigabytes.
    """
    if operator.max_parallelism <= MOST_KEY_GROUPS:
        return None
    return CorruptMetadata(
        f"operator {operator.label} has max parallelism {operator.max_parallelism}, "
        f"and no Flink runs beyond {MOST_KEY_GROUPS}",
        where=Where(checkpoint=checkpoint.directory, operator=operator.label),
        hint="the metadata is damaged: use another checkpoint",
    )


def _usable_key(exchange: Exchange) -> tuple[str, ...]:
    """Return the key, or an empty one if cdr cannot find or hash it; a key that the record does not have is refused
    later.
    """
    if exchange.record == OPAQUE:
        return ()
    try:
        if exchange.key and exchange.partitioner is Partitioner.HASH:
            check_key(exchange.record, exchange.key)
    except KeyWithoutHash:
        return ()
    except SpecRefused:
        pass
    return exchange.key


def _counts_pointwise(checkpoint: Checkpoint, exchange: PlannedExchange) -> bool:
    """Return whether the channels are numbered as Flink numbers those of a pointwise exchange.

    Channel 0 of subtask 3 then comes from somewhere near subtask 3. Flink before 1.14 wrote such state; numbers that do
    not fit mean that the exchange was connected all-to-all, whatever the spec names it.
    """
    found = 0
    for side in Side:
        columns, rows = _rows(checkpoint, exchange, side)
        peers = np.array([len(each) for each in exchange.peers(side)], np.int64)
        if (columns.b[rows] >= peers[columns.subtask[rows]]).any():
            return False
        found += len(rows)
    return found > 0


def _rows(checkpoint: Checkpoint, exchange: PlannedExchange, side: Side) -> tuple[ChannelColumns, Longs]:
    """Return the channels of one side of an operator, and which of them belong to the exchange."""
    operator, index = exchange.end(side)
    columns = checkpoint.columns(operator, side)
    return columns, np.flatnonzero(columns.a == index)


def announced_sizes(checkpoint: Checkpoint, exchange: PlannedExchange) -> Sizes:
    """Return the sizes that the handles of both sides announce; refuse a channel that the other end cannot have."""
    keys, held, empty = zip(*(_announced(checkpoint, exchange, side) for side in Side), strict=True)
    found, place = np.unique(np.concatenate(keys), return_inverse=True)
    total, nothing = np.zeros(len(found), np.int64), np.ones(len(found), np.bool_)
    np.add.at(total, place, np.concatenate(held))
    nothing[place[~np.concatenate(empty)]] = False
    up, down = np.divmod(found, max(exchange.old_down, 1))
    return Sizes(up, down, total, nothing)


def _announced(
    checkpoint: Checkpoint, exchange: PlannedExchange, side: Side
) -> tuple[Longs, Longs, npt.NDArray[np.bool_]]:
    """Return of one side: connections as one number, in which up counts more than down; bytes, and whether
    it is empty.
    """
    columns, rows = _rows(checkpoint, exchange, side)
    here, there = columns.subtask[rows].astype(np.int64), columns.b[rows].astype(np.int64)
    if exchange.pointwise:
        there += exchange.first_peers(side)[here]
    up, down = (there, here) if side is Side.INPUT else (here, there)
    wrong = np.flatnonzero((up >= exchange.old_up) | (down >= exchange.old_down))
    if wrong.size:
        raise _beyond(exchange, int(up[wrong[0]]), int(down[wrong[0]]))
    held = believable_sizes(checkpoint, columns, rows)
    return up * exchange.old_down + down, held, payload_sizes(checkpoint, columns, rows, damage_is_fine=True) == 0


def _beyond(exchange: PlannedExchange, up: int, down: int) -> CorruptChannelState:
    return CorruptChannelState(
        f"a channel from subtask {up} to {down}, beyond the parallelism of its ends "
        f"({exchange.old_up} and {exchange.old_down})",
        where=Where(exchange=exchange.name, subtask=down, gate=exchange.gate, channel=up),
        hint="check that the spec connects the right operators, gates and partitions; "
        "each input of a union is a gate of its own",
    )


def refusals(
    checkpoint: Checkpoint, exchange: PlannedExchange, sizes: Sizes, key: tuple[str, ...] = ()
) -> Iterator[CdrError]:
    """Yield every reason against moving the in-flight data of the exchange; ``key`` is the one that the spec names.

    Channels of empty chunks only hold nothing that could get lost.
    """
    if exchange.key and exchange.partitioner == Partitioner.HASH:
        yield from _key_refusals(exchange, exchange.key)
    loaded = sizes.down[~sizes.empty]
    if not len(loaded):
        return
    if checkpoint.operator(exchange.downstream).finished:
        yield PlanRefused(
            f"exchange {exchange.name} has in-flight data for an operator that had finished",
            where=Where(checkpoint=checkpoint.directory, operator=exchange.downstream),
            hint="no subtask is left to take it; check the exchange's downstream operator in the job spec",
        )
    if exchange.partitioner in UNMOVABLE and exchange.moved:
        yield PlanRefused(
            f"exchange {exchange.name} is a {exchange.partitioner} exchange with in-flight data and cannot change "
            "parallelism",
            hint="recover it at the same parallelism",
        )
    downs, channels = np.unique(loaded, return_counts=True)
    shared = [len(exchange.possible_owners(down)) > 1 for down in downs.tolist()]
    ambiguous = int(channels[shared].sum())
    if ambiguous and exchange.partitioner == Partitioner.HASH and not exchange.key:
        unusable = list(_key_refusals(exchange, key)) if key and exchange.record != OPAQUE.text else []
        yield from unusable or [_no_key(exchange, ambiguous, len(loaded))]
    if ambiguous and exchange.partitioner == Partitioner.CUSTOM:
        yield from _owner_refusals(exchange)


def _key_refusals(exchange: PlannedExchange, key: tuple[str, ...]) -> Iterator[CdrError]:
    try:
        check_key(exchange.description, key)
    except SpecRefused as error:
        yield SpecRefused(f"exchange {exchange.name}: {error.what}", hint=error.hint)


def _no_key(exchange: PlannedExchange, ambiguous: int, channels: int) -> PlanRefused:
    split = f"the records of {ambiguous} of its {channels} channels get different owners"
    if exchange.record == OPAQUE.text:
        return PlanRefused(
            f"exchange {exchange.name} is a hash exchange whose record is OPAQUE, and {split}",
            hint="describe the record's type and key, or choose a parallelism that divides the old one",
        )
    return PlanRefused(
        f"exchange {exchange.name} is a hash exchange without a key, and {split}", hint="add key: [FIELD]"
    )


def _owner_refusals(exchange: PlannedExchange) -> Iterator[CdrError]:
    custom = f"exchange {exchange.name} has a custom partitioner"
    if not exchange.owner:
        yield PlanRefused(
            f"{custom}, and the job spec names no owner function",
            hint="add owner: module:function, or recover it at the same parallelism",
        )
    if exchange.record == OPAQUE.text:
        yield PlanRefused(
            f"{custom}, whose owner function needs values, but its record is OPAQUE",
            hint="describe the record's type, or recover it at the same parallelism",
        )
    if exchange.owner:
        try:
            load_owner(exchange.name, exchange.owner)
        except SpecRefused as error:
            yield error
