"""An exchange of the spec bound to the checkpoint's operators, and everything that can be wrong with it.

Checks give their refusals instead of raising them, so that a what-if can show all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from cdr_core.errors import CdrError, CorruptChannelState, CorruptMetadata, PlanRefused, SpecRefused, Where
from cdr_core.flink.channel_state import ChannelId, ChannelSlice
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.keys import MOST_KEY_GROUPS, KeyWithoutHash, check_key
from cdr_core.flink.metadata import OperatorState, Side
from cdr_core.flink.types import Kind, Scalar, TypeDescription, parse_type
from cdr_core.rescale.announced import believable_size, is_empty
from cdr_core.rescale.custom import load_owner
from cdr_core.rescale.mapping import POINTWISE, UNMOVABLE, new_owners, pointwise_downs, pointwise_ups
from cdr_core.rescale.spec import Exchange, Partitioner

OPAQUE = Scalar(Kind.OPAQUE)


@dataclass(frozen=True, slots=True)
class PlannedExchange:
    """An exchange bound to the checkpoint's operators, with its old and new parallelism on both ends.

    ``key`` is empty where the record is OPAQUE, since nobody could find it there. ``owner`` is the owner function of a
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
        """Whether either end changes its parallelism."""
        return (self.old_up, self.old_down) != (self.new_up, self.new_down)

    @property
    def description(self) -> TypeDescription:
        return parse_type(self.record)

    def possible_owners(self, down: int) -> tuple[int, ...]:
        """New downstream subtasks that may own records of an old one; see :func:`new_owners`."""
        return new_owners(Partitioner(self.partitioner), down, self.old_down, self.new_down, self.max_parallelism)

    def input_at(self, up: int, down: int) -> ChannelId:
        """The input channel of a connection; of an old one, or of a new one where all-to-all."""
        channel = pointwise_ups(down, self.old_up, self.old_down).index(up) if self.pointwise else up
        return ChannelId(down, self.gate, channel)

    def output_at(self, up: int, down: int) -> ChannelId:
        """The output channel of a connection; of an old one, or of a new one where all-to-all."""
        channel = pointwise_downs(up, self.old_up, self.old_down).index(down) if self.pointwise else down
        return ChannelId(up, self.partition, channel)


@dataclass(frozen=True, slots=True)
class Connection:
    """Old upstream subtask to old downstream subtask."""

    up: int
    down: int


class Announced(NamedTuple):
    """What the handles of a connection say: ``bytes`` with length fields; ``empty`` if nothing but those."""

    bytes: int
    empty: bool


Sizes = Mapping[Connection, Announced]
"""For every connection that has state on either side."""


Channels = Callable[[str, Side], Mapping[ChannelId, ChannelSlice]]
"""The in-flight data of one side of an operator, by its id: ``Checkpoint.channels``, asked once for each."""


def bind(
    checkpoint: Checkpoint, exchange: Exchange, parallelism: Mapping[str, int], channels: Channels | None = None
) -> PlannedExchange:
    """The exchange with its operators' ids and parallelism.

    Refuses an operator that the checkpoint does not have, and one that no Flink can have run. ``channels`` is for those
    who ask about many exchanges and remember the answers of ``checkpoint.channels``.
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
        return replace(bound, pointwise=_counts_pointwise(bound, channels or checkpoint.channels))
    return bound


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


def _usable_key(exchange: Exchange) -> tuple[str, ...]:
    """The key, unless nobody here can find or hash it; one that the record does not have is refused later."""
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


def _counts_pointwise(exchange: PlannedExchange, channels: Channels) -> bool:
    """Whether the channels are numbered as Flink numbers those of a pointwise exchange.

    Channel 0 of subtask 3 then comes from somewhere near subtask 3. Flink before 1.14 wrote such state; numbers that do
    not fit say that the exchange was connected all-to-all, whatever the spec calls it.
    """
    ups, downs = exchange.old_up, exchange.old_down
    inputs = [at for at in channels(exchange.downstream, Side.INPUT) if at.a == exchange.gate]
    outputs = [at for at in channels(exchange.upstream, Side.OUTPUT) if at.a == exchange.partition]
    return bool(inputs or outputs) and (
        all(at.subtask < downs and at.b < len(pointwise_ups(at.subtask, ups, downs)) for at in inputs)
        and all(at.subtask < ups and at.b < len(pointwise_downs(at.subtask, ups, downs)) for at in outputs)
    )


def announced_sizes(checkpoint: Checkpoint, exchange: PlannedExchange, channels: Channels | None = None) -> Sizes:
    """What the handles of both sides announce; refuses a channel that the other end cannot have.

    ``channels`` as for :func:`bind`.
    """
    channels = channels or checkpoint.channels
    ups, downs = exchange.old_up, exchange.old_down
    sizes: dict[Connection, Announced] = {}
    for at, state in channels(exchange.downstream, Side.INPUT).items():
        if at.a == exchange.gate:
            up = pointwise_ups(at.subtask, ups, downs)[at.b] if exchange.pointwise else at.b
            _add(exchange, sizes, Connection(up, at.subtask), _announced(checkpoint, state))
    for at, state in channels(exchange.upstream, Side.OUTPUT).items():
        if at.a == exchange.partition:
            down = pointwise_downs(at.subtask, ups, downs)[at.b] if exchange.pointwise else at.b
            _add(exchange, sizes, Connection(at.subtask, down), _announced(checkpoint, state))
    return dict(sorted(sizes.items(), key=lambda item: (item[0].up, item[0].down)))


def _announced(checkpoint: Checkpoint, state: ChannelSlice) -> Announced:
    return Announced(believable_size(checkpoint, state), is_empty(checkpoint, state))


def _add(exchange: PlannedExchange, sizes: dict[Connection, Announced], at: Connection, found: Announced) -> None:
    if not (at.up < exchange.old_up and at.down < exchange.old_down):
        raise CorruptChannelState(
            f"a channel from subtask {at.up} to {at.down}, beyond the parallelism of its ends "
            f"({exchange.old_up} and {exchange.old_down})",
            where=Where(exchange=exchange.name, subtask=at.down, gate=exchange.gate, channel=at.up),
            hint="check that the spec connects the right operators, gates and partitions; "
            "each input of a union is a gate of its own",
        )
    other = sizes.get(at, Announced(0, True))
    sizes[at] = Announced(other.bytes + found.bytes, other.empty and found.empty)


def refusals(
    checkpoint: Checkpoint, exchange: PlannedExchange, sizes: Sizes, key: tuple[str, ...] = ()
) -> Iterator[CdrError]:
    """Everything that forbids to move what is in flight on the exchange; ``key`` is the one that the spec names.

    Channels of empty chunks only hold nothing that could go astray.
    """
    if exchange.key and exchange.partitioner == Partitioner.HASH:
        yield from _key_refusals(exchange, exchange.key)
    loaded = [at for at, announced in sizes.items() if not announced.empty]
    if not loaded:
        return
    if checkpoint.operator(exchange.downstream).finished:
        yield PlanRefused(
            f"exchange {exchange.name} has in-flight data for an operator that had finished",
            where=Where(checkpoint=checkpoint.directory, operator=exchange.downstream),
            hint="nobody is left to take it; check the exchange's downstream operator in the job spec",
        )
    if exchange.partitioner in UNMOVABLE and exchange.moved:
        yield PlanRefused(
            f"exchange {exchange.name} is a {exchange.partitioner} exchange with in-flight data and cannot change "
            "parallelism",
            hint="recover it at the same parallelism",
        )
    owners = {down: len(exchange.possible_owners(down)) for down in {at.down for at in loaded}}
    ambiguous = sum(owners[at.down] > 1 for at in loaded)
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
