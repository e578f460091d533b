"""The plan of a recovery: a frozen, hashed value that every phase and every attempt agrees on.

It holds no bytes and no offsets: executors re-read ``_metadata`` (checked against the plan's SHA-256) and find them
there. Two attempts with another layout get another hash, and the database refuses to mix them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from cdr_core.errors import CorruptChannelState, PlanRefused, SpecRefused, Where
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.keys import check_key
from cdr_core.flink.metadata import Side
from cdr_core.rescale.mapping import UNMOVABLE, new_channel, new_owners
from cdr_core.rescale.parallelism import Wish, new_parallelism
from cdr_core.rescale.spec import Exchange, JobSpec, Partitioner

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True)
class PlannedExchange:
    """An exchange bound to the checkpoint's operators, with its old and new parallelism on both ends."""

    name: str
    upstream: str
    partition: int
    downstream: str
    gate: int
    partitioner: str
    record: str
    key: tuple[str, ...]
    max_parallelism: int
    old_up: int
    old_down: int
    new_up: int
    new_down: int


@dataclass(frozen=True, slots=True)
class Subtask:
    """A new subtask of a downstream operator; its place in ``Plan.subtasks`` is its number everywhere else."""

    operator: str
    index: int


@dataclass(frozen=True, slots=True)
class VirtualChannel:
    """Old connection (exchange, up → down): input state of ``down``, then output state of ``up``.

    ``subtasks`` are the numbers of the new subtasks that may own its records, in order of their index; one means that
    the channel passes through undecoded. ``bytes`` is what the handles announce, length fields included.
    """

    exchange: int
    up: int
    down: int
    new_up: int
    bytes: int
    subtasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides where a record goes, and how the work on it is cut into units of ``split_size`` bytes."""

    version: int
    checkpoint: str
    metadata_sha256: str
    spec_sha256: str
    split_size: int
    exchanges: tuple[PlannedExchange, ...]
    subtasks: tuple[Subtask, ...]
    channels: tuple[VirtualChannel, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @property
    def sha256(self) -> str:
        """Identity of the layout. The checkpoint's address is left out: a copy of it is the same checkpoint."""
        layout = {name: value for name, value in asdict(self).items() if name != "checkpoint"}
        return hashlib.sha256(json.dumps(layout, sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> Plan:
        value: dict[str, Any] = json.loads(text)
        if value["version"] != PLAN_VERSION:
            raise PlanRefused(f"the stored plan has version {value['version']}, this cdr reads {PLAN_VERSION}")
        return cls(
            value["version"],
            value["checkpoint"],
            value["metadata_sha256"],
            value["spec_sha256"],
            value["split_size"],
            tuple(PlannedExchange(**{**e, "key": tuple(e["key"])}) for e in value["exchanges"]),
            tuple(Subtask(**s) for s in value["subtasks"]),
            tuple(VirtualChannel(**{**c, "subtasks": tuple(c["subtasks"])}) for c in value["channels"]),
        )


def make_plan(checkpoint: Checkpoint, spec: JobSpec, wish: Wish, split_size: int) -> Plan:
    """Bind the spec to the checkpoint and lay out every virtual channel, or refuse with the exchange's name."""
    parallelism = new_parallelism(checkpoint, spec, wish)
    exchanges = tuple(_bind(checkpoint, exchange, parallelism) for exchange in spec.exchanges)
    downstream = {e.downstream: e.new_down for e in exchanges}
    subtasks = tuple(Subtask(operator, index) for operator, count in downstream.items() for index in range(count))
    numbers = {subtask: number for number, subtask in enumerate(subtasks)}
    channels = tuple(
        channel
        for number, exchange in enumerate(exchanges)
        for channel in _channels(checkpoint, number, exchange, numbers)
    )
    _refuse_unlisted_state(checkpoint, exchanges)
    return Plan(
        PLAN_VERSION, checkpoint.directory, checkpoint.sha256, spec.sha256, split_size, exchanges, subtasks, channels
    )


def _bind(checkpoint: Checkpoint, exchange: Exchange, parallelism: Any) -> PlannedExchange:
    upstream, downstream = checkpoint.operator(exchange.upstream), checkpoint.operator(exchange.downstream)
    bound = PlannedExchange(
        name=exchange.name,
        upstream=upstream.operator_id,
        partition=exchange.partition,
        downstream=downstream.operator_id,
        gate=exchange.gate,
        partitioner=str(exchange.partitioner),
        record=exchange.record.text,
        key=exchange.key,
        max_parallelism=downstream.max_parallelism,
        old_up=upstream.parallelism,
        old_down=downstream.parallelism,
        new_up=parallelism[upstream.operator_id],
        new_down=parallelism[downstream.operator_id],
    )
    if exchange.partitioner is Partitioner.HASH and bound.old_down != bound.new_down:
        if not exchange.key:
            raise PlanRefused(f"exchange {exchange.name} is a hash exchange without a key", hint="add key: [FIELD]")
        _refuse_key(exchange)
    if exchange.partitioner is Partitioner.CUSTOM and bound.old_down != bound.new_down:
        raise PlanRefused(
            f"exchange {exchange.name} has a custom partitioner, whose owner function cdr cannot call yet",
            hint="recover it at the same parallelism",
        )
    return bound


def _refuse_key(exchange: Exchange) -> None:
    try:
        check_key(exchange.record, exchange.key)
    except SpecRefused as error:
        raise SpecRefused(f"exchange {exchange.name}: {error.what}", hint=error.hint) from None


def _channels(
    checkpoint: Checkpoint, number: int, exchange: PlannedExchange, numbers: dict[Subtask, int]
) -> list[VirtualChannel]:
    sizes = _announced_sizes(checkpoint, exchange)
    partitioner = Partitioner(exchange.partitioner)
    moved = (exchange.old_up, exchange.old_down) != (exchange.new_up, exchange.new_down)
    if sizes and moved and partitioner in UNMOVABLE:
        raise PlanRefused(
            f"exchange {exchange.name} is a {partitioner} exchange with in-flight data and cannot change parallelism",
            hint="recover it at the same parallelism",
        )
    channels = []
    for (up, down), size in sorted(sizes.items()):
        owners = new_owners(partitioner, down, exchange.old_down, exchange.new_down, exchange.max_parallelism)
        subtasks = tuple(numbers[Subtask(exchange.downstream, index)] for index in owners)
        channels.append(VirtualChannel(number, up, down, new_channel(up, exchange.new_up), size, subtasks))
    return channels


def _announced_sizes(checkpoint: Checkpoint, exchange: PlannedExchange) -> dict[tuple[int, int], int]:
    """Bytes the handles announce per (up, down), for every connection that has state on either side."""
    sizes: dict[tuple[int, int], int] = {}
    for at, state in checkpoint.channels(exchange.downstream, Side.INPUT).items():
        if at.a == exchange.gate:
            _refuse_index(exchange, at.b, exchange.old_up, at.subtask)
            sizes[at.b, at.subtask] = sizes.get((at.b, at.subtask), 0) + state.size
    for at, state in checkpoint.channels(exchange.upstream, Side.OUTPUT).items():
        if at.a == exchange.partition:
            _refuse_index(exchange, at.b, exchange.old_down, at.subtask)
            sizes[at.subtask, at.b] = sizes.get((at.subtask, at.b), 0) + state.size
    return sizes


def _refuse_index(exchange: PlannedExchange, channel: int, parallelism: int, subtask: int) -> None:
    if not 0 <= channel < parallelism:
        raise CorruptChannelState(
            f"a channel beyond the other end's parallelism of {parallelism}",
            where=Where(exchange=exchange.name, subtask=subtask, channel=channel),
            hint="check that the spec connects the right operators, gates and partitions",
        )


def _refuse_unlisted_state(checkpoint: Checkpoint, exchanges: tuple[PlannedExchange, ...]) -> None:
    """In-flight data that no exchange of the spec covers would be lost silently: refuse it by name."""
    inputs = {(e.downstream, e.gate) for e in exchanges}
    outputs = {(e.upstream, e.partition) for e in exchanges}
    for operator in checkpoint.metadata.operators:
        for side, covered, what in ((Side.INPUT, inputs, "gate"), (Side.OUTPUT, outputs, "partition")):
            for at in checkpoint.channels(operator, side):
                if (operator.operator_id, at.a) not in covered:
                    raise PlanRefused(
                        f"operator {operator.label} has in-flight data on {what} {at.a}, which no exchange covers",
                        hint="add the exchange to the job spec",
                    )
