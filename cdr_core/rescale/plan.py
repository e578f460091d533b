"""The plan of a recovery: a frozen, hashed value that every phase and every attempt agrees on.

It holds no bytes and no offsets: executors re-read ``_metadata`` (checked against the plan's SHA-256) and find them
there. Two attempts with another layout get another hash, and the database refuses to mix them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from cdr_core.errors import CdrError, PlanRefused, SpecRefused, other_version
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.metadata import Side
from cdr_core.rescale.announced import is_empty
from cdr_core.rescale.bound import Channels, PlannedExchange, Sizes, announced_sizes, beyond_flink, bind, refusals
from cdr_core.rescale.mapping import new_channel
from cdr_core.rescale.parallelism import Wish, examine_parallelism
from cdr_core.rescale.spec import JobSpec

__all__ = ["PLAN_VERSION", "Examined", "Plan", "PlannedExchange", "Subtask", "VirtualChannel", "examine", "make_plan"]

PLAN_VERSION = 3
"""2: an exchange knows its owner function. 3: and whether its channels are numbered pointwise."""


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
        return json.dumps(self._as_dict(), sort_keys=True, separators=(",", ":"))

    @property
    def sha256(self) -> str:
        """Identity of the layout. The checkpoint's address is left out: a copy of it is the same checkpoint."""
        layout = {name: value for name, value in self._as_dict().items() if name != "checkpoint"}
        return hashlib.sha256(json.dumps(layout, sort_keys=True).encode()).hexdigest()

    def _as_dict(self) -> dict[str, Any]:
        """As dataclasses.asdict, which would copy every number of every channel one by one."""
        parts = {
            name: [_fields(part) for part in getattr(self, name)] for name in ("exchanges", "subtasks", "channels")
        }
        return _fields(self) | parts

    @classmethod
    def from_json(cls, text: str) -> Plan:
        value: dict[str, Any] = json.loads(text)
        if value["version"] != PLAN_VERSION:
            raise other_version("the stored plan", value["version"], PLAN_VERSION)
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


def _fields(value: Plan | PlannedExchange | Subtask | VirtualChannel) -> dict[str, Any]:
    """``key_checked`` only where it is false: plans from before it have the same hash."""
    found = {name: getattr(value, name) for name in value.__slots__}
    return {name: each for name, each in found.items() if (name, each) != ("key_checked", True)}


@dataclass(frozen=True, slots=True)
class Examined:
    """A plan as far as it goes, and everything that forbids it; without refusals the plan is whole."""

    plan: Plan
    refusals: tuple[CdrError, ...]


def make_plan(checkpoint: Checkpoint, spec: JobSpec, wish: Wish, split_size: int) -> Plan:
    """Bind the spec to the checkpoint and lay out every virtual channel, or refuse with the exchange's name."""
    examined = examine(checkpoint, spec, wish, split_size)
    if examined.refusals:
        raise examined.refusals[0]
    return examined.plan


def examine(checkpoint: Checkpoint, spec: JobSpec, wish: Wish, split_size: int) -> Examined:
    """The plan without the exchanges that cannot be bound, and all refusals."""
    parallelism, found = examine_parallelism(checkpoint, spec, wish)
    channels = cache(checkpoint.channels)
    refused: list[CdrError] = list(found)
    refused += filter(None, (beyond_flink(checkpoint, operator) for operator in checkpoint.metadata.operators))
    bound: list[tuple[PlannedExchange, Sizes]] = []
    keys: list[tuple[str, ...]] = []
    for exchange in spec.exchanges:
        try:
            planned = bind(checkpoint, exchange, parallelism, channels)
            bound.append((planned, announced_sizes(checkpoint, planned, channels)))
            keys.append(exchange.key)
        except CdrError as error:
            refused.append(error)
    for (planned, sizes), key in zip(bound, keys, strict=True):
        refused += refusals(checkpoint, planned, sizes, key)
    refused += _repeats([planned for planned, _ in bound])
    refused += _unlisted_state(checkpoint, spec, channels)
    once = {str(error): error for error in refused}  # one damaged handle is met more than once
    return Examined(_lay_out(checkpoint, spec, bound, split_size), tuple(once.values()))


def _lay_out(
    checkpoint: Checkpoint, spec: JobSpec, bound: list[tuple[PlannedExchange, Sizes]], split_size: int
) -> Plan:
    downstream = {e.downstream: e.new_down for e, _ in bound}
    subtasks = tuple(Subtask(operator, index) for operator, count in downstream.items() for index in range(count))
    first = {subtask.operator: number for number, subtask in enumerate(subtasks) if subtask.index == 0}
    channels: list[VirtualChannel] = []
    for number, (exchange, sizes) in enumerate(bound):
        owners = {
            down: tuple(first[exchange.downstream] + index for index in exchange.possible_owners(down))
            for down in {at.down for at in sizes}
        }
        channels += (
            VirtualChannel(number, at.up, at.down, new_channel(at.up, exchange.new_up), found.bytes, owners[at.down])
            for at, found in sizes.items()
        )
    exchanges = tuple(exchange for exchange, _ in bound)
    return Plan(
        PLAN_VERSION,
        checkpoint.address,
        checkpoint.sha256,
        spec.sha256,
        split_size,
        exchanges,
        subtasks,
        tuple(channels),
    )


def _repeats(exchanges: list[PlannedExchange]) -> Iterator[CdrError]:
    """Two exchanges that name one gate or partition, by whatever names, would count its records twice."""
    gates: dict[tuple[str, int], str] = {}
    partitions: dict[tuple[str, int], str] = {}
    for e in exchanges:
        for seen, end, what in (
            (gates, (e.downstream, e.gate), "downstream gate"),
            (partitions, (e.upstream, e.partition), "upstream partition"),
        ):
            if end in seen:
                yield SpecRefused(
                    f"exchange {e.name} repeats the {what} of exchange {seen[end]}",
                    hint="each may appear once; the inputs of a union are gates 0, 1, … of its operator",
                )
            seen.setdefault(end, e.name)


def _unlisted_state(checkpoint: Checkpoint, spec: JobSpec, channels: Channels) -> Iterator[CdrError]:
    """In-flight data that no exchange of the spec covers would be lost silently: refuse it by name.

    Where handles announce empty chunks only, `read` looks whether that is so.
    """
    covered = {
        Side.INPUT: {(_id_of(checkpoint, e.downstream), e.gate) for e in spec.exchanges},
        Side.OUTPUT: {(_id_of(checkpoint, e.upstream), e.partition) for e in spec.exchanges},
    }
    for operator in checkpoint.metadata.operators:
        for side, what in ((Side.INPUT, "gate"), (Side.OUTPUT, "partition")):
            try:
                found = channels(operator.operator_id, side)
                indexes = {at.a for at, piece in found.items() if not is_empty(checkpoint, piece)}
            except CdrError as error:
                yield error
                continue
            for index in sorted(indexes):
                if (operator.operator_id, index) not in covered[side]:
                    yield PlanRefused(
                        f"operator {operator.label} has in-flight data on {what} {index}, which no exchange covers",
                        hint="add the exchange to the job spec",
                    )


def _id_of(checkpoint: Checkpoint, name: str) -> str | None:
    """``None`` for a name that is refused where its exchange is bound."""
    try:
        return checkpoint.operator(name).operator_id
    except SpecRefused:
        return None
