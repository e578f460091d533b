"""An exchange of the spec bound to the checkpoint's operators, and everything that can be wrong with it.

Checks give their refusals instead of raising them, so that a what-if can show all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cdr_core.errors import CdrError, CorruptChannelState, CorruptMetadata, PlanRefused, SpecRefused, Where
from cdr_core.flink.channel_state import ChannelId, ChannelSlice
from cdr_core.flink.checkpoint import Checkpoint, InlineLocation
from cdr_core.flink.keys import MOST_KEY_GROUPS, check_key
from cdr_core.flink.metadata import OperatorState, Side
from cdr_core.flink.types import Kind, Scalar, TypeDescription, parse_type
from cdr_core.rescale.custom import load_owner
from cdr_core.rescale.mapping import POINTWISE, UNMOVABLE, new_owners
from cdr_core.rescale.spec import Exchange, Partitioner

OPAQUE = Scalar(Kind.OPAQUE)


@dataclass(frozen=True, slots=True)
class PlannedExchange:
    """An exchange bound to the checkpoint's operators, with its old and new parallelism on both ends.

    ``key`` is empty where the record is OPAQUE, since nobody could find it there. ``owner`` is the owner function of a
    custom exchange (``module:function``), else empty. ``max_parallelism`` is the downstream operator's.
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

    @property
    def moved(self) -> bool:
        """Whether either end changes its parallelism."""
        return (self.old_up, self.old_down) != (self.new_up, self.new_down)

    @property
    def description(self) -> TypeDescription:
        return parse_type(self.record)

    def possible_owners(self, down: int) -> tuple[int, ...]:
        """New downstream subtasks that may own records of an old one; see :func:`new_owners`."""
        return new_owners(Partitioner(self.partitioner), down, self.old_down, self.new_down, self.max_parallelism)


@dataclass(frozen=True, slots=True)
class Connection:
    """Old upstream subtask to old downstream subtask."""

    up: int
    down: int


Sizes = Mapping[Connection, int]
"""Bytes that the handles announce, for every connection that has state on either side."""


def bind(checkpoint: Checkpoint, exchange: Exchange, parallelism: Mapping[str, int]) -> PlannedExchange:
    """The exchange with its operators' ids and parallelism.

    Refuses an operator that the checkpoint does not have, and one that no Flink can have run.
    """
    upstream, downstream = checkpoint.operator(exchange.upstream), checkpoint.operator(exchange.downstream)
    for end in (upstream, downstream):
        if impossible := beyond_flink(checkpoint, end):
            raise impossible
    return PlannedExchange(
        name=exchange.name,
        upstream=upstream.operator_id,
        partition=exchange.partition,
        downstream=downstream.operator_id,
        gate=exchange.gate,
        partitioner=str(exchange.partitioner),
        record=exchange.record.text,
        key=() if exchange.record == OPAQUE else exchange.key,
        owner=exchange.owner or "",
        max_parallelism=downstream.max_parallelism,
        old_up=upstream.parallelism,
        old_down=downstream.parallelism,
        new_up=parallelism[upstream.operator_id],
        new_down=parallelism[downstream.operator_id],
    )


def beyond_flink(checkpoint: Checkpoint, operator: OperatorState) -> CorruptMetadata | None:
    """The error for more key groups than Flink knows.

    The format has room for them and they are read and written back, but whoever counts key groups or subtasks one by
    one must not begin: a changed bit there asks for gigabytes.
    """
    if operator.max_parallelism <= MOST_KEY_GROUPS:
        return None
    return CorruptMetadata(
        f"operator {operator.label} has max parallelism {operator.max_parallelism}, "
        f"and no Flink runs beyond {MOST_KEY_GROUPS}",
        where=Where(checkpoint=checkpoint.directory, operator=operator.label),
        hint="the metadata is damaged: use another checkpoint",
    )


Channels = Callable[[str, Side], Mapping[ChannelId, ChannelSlice]]
"""The in-flight data of one side of an operator, by its id: ``Checkpoint.channels``, asked once for each."""


def announced_sizes(checkpoint: Checkpoint, exchange: PlannedExchange, channels: Channels | None = None) -> Sizes:
    """What the handles of both sides announce; refuses a channel that the other end cannot have.

    ``channels`` is for those who ask about many exchanges and remember the answers of ``checkpoint.channels``.
    """
    channels = channels or checkpoint.channels
    sizes: dict[Connection, int] = {}
    for at, state in channels(exchange.downstream, Side.INPUT).items():
        if at.a == exchange.gate:
            _add(exchange, sizes, Connection(at.b, at.subtask), _believable(checkpoint, state))
    for at, state in channels(exchange.upstream, Side.OUTPUT).items():
        if at.a == exchange.partition:
            _add(exchange, sizes, Connection(at.subtask, at.b), _believable(checkpoint, state))
    return dict(sorted(sizes.items(), key=lambda item: (item[0].up, item[0].down)))


def _believable(checkpoint: Checkpoint, state: ChannelSlice) -> int:
    """A size is only informational: it may be wrong, but no channel has more bytes than the stream it lies in."""
    location = checkpoint.resolve(state.delegate)
    length = len(location.data) if isinstance(location, InlineLocation) else location.length
    return max(state.size if length is None else min(state.size, length), 0)


def _add(exchange: PlannedExchange, sizes: dict[Connection, int], at: Connection, size: int) -> None:
    if not (at.up < exchange.old_up and at.down < exchange.old_down):
        raise CorruptChannelState(
            f"a channel from subtask {at.up} to {at.down}, beyond the parallelism of its ends "
            f"({exchange.old_up} and {exchange.old_down})",
            where=Where(exchange=exchange.name, subtask=at.down, gate=exchange.gate, channel=at.up),
            hint="check that the spec connects the right operators, gates and partitions; "
            "each input of a union is a gate of its own",
        )
    sizes[at] = sizes.get(at, 0) + size


def refusals(checkpoint: Checkpoint, exchange: PlannedExchange, sizes: Sizes) -> Iterator[CdrError]:
    """Everything that forbids to move what is in flight on the exchange."""
    if exchange.key and exchange.partitioner == Partitioner.HASH:
        yield from _key_refusals(exchange)
    if not sizes:
        return
    if checkpoint.operator(exchange.downstream).finished:
        yield PlanRefused(
            f"exchange {exchange.name} has in-flight data for an operator that had finished",
            where=Where(checkpoint=checkpoint.directory, operator=exchange.downstream),
            hint="nobody is left to take it; check the exchange's downstream operator in the job spec",
        )
    if exchange.partitioner in UNMOVABLE:
        yield from _unmovable_refusals(exchange, sizes)
    owners = {down: len(exchange.possible_owners(down)) for down in {at.down for at in sizes}}
    ambiguous = sum(owners[at.down] > 1 for at in sizes)
    if ambiguous and exchange.partitioner == Partitioner.HASH and not exchange.key:
        yield _no_key(exchange, ambiguous, len(sizes))
    if ambiguous and exchange.partitioner == Partitioner.CUSTOM:
        yield from _owner_refusals(exchange)


def _key_refusals(exchange: PlannedExchange) -> Iterator[CdrError]:
    try:
        check_key(exchange.description, exchange.key)
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


def _unmovable_refusals(exchange: PlannedExchange, sizes: Sizes) -> Iterator[CdrError]:
    if exchange.moved:
        yield PlanRefused(
            f"exchange {exchange.name} is a {exchange.partitioner} exchange with in-flight data and cannot change "
            "parallelism",
            hint="recover it at the same parallelism",
        )
    elif exchange.partitioner in POINTWISE and _counts_pointwise(exchange, sizes):
        yield PlanRefused(
            f"exchange {exchange.name} is a {exchange.partitioner} exchange with in-flight data, which current Flink "
            "never writes: whose channels these are is not known",
            hint="check the exchange's partitioner in the job spec",
        )


def _counts_pointwise(exchange: PlannedExchange, sizes: Sizes) -> bool:
    """Whether the channels may be numbered as those of a pointwise exchange are: per subtask, not by the other end.

    Then channel 0 of subtask 3 comes from somewhere near subtask 3, and both halves of a connection do not meet.
    """
    inputs, outputs = -(-exchange.old_up // exchange.old_down), -(-exchange.old_down // exchange.old_up)
    alone = exchange.old_up == exchange.old_down == 1
    return not alone and all(at.up < inputs or at.down < outputs for at in sizes)


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
