"""The plan of a recovery: a frozen, hashed value that every phase and every attempt agrees on.

It holds no bytes and no offsets: executors re-read ``_metadata`` (checked against the plan's SHA-256) and find them
there. Two attempts with another layout get another hash, and the database refuses to mix them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from cdr_core.errors import CdrError, PlanRefused, SpecRefused, other_version
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.metadata import Side
from cdr_core.planning.exchange_binding import PlannedExchange, Sizes, announced_sizes, beyond_flink, bind, refusals
from cdr_core.planning.handle_sizes import payload_sizes
from cdr_core.planning.job_spec import JobSpec
from cdr_core.planning.parallelism import RequestedParallelism, examine_parallelism
from cdr_core.planning.subtask_mapping import new_channel

__all__ = [
    "PLAN_VERSION",
    "Examined",
    "Plan",
    "PlanChannels",
    "PlannedExchange",
    "Subtask",
    "VirtualChannel",
    "examine",
    "make_plan",
]

PLAN_VERSION = 4
"""3: an exchange knows whether its channels are numbered pointwise. 4: channels are columns."""

READABLE_VERSIONS = (3, PLAN_VERSION)

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


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


@dataclass(frozen=True, eq=False)
class PlanChannels(Sequence[VirtualChannel]):
    """The virtual channels of a plan as columns, ordered by exchange, up and down; a row's place is its number.

    The possible owners of a channel are the ``owner_count`` new subtasks from number ``owner_first`` on.
    """

    exchange: Ints
    up: Ints
    down: Ints
    bytes: Longs
    new_up: Ints
    owner_first: Ints
    owner_count: Ints

    @classmethod
    def of(cls, rows: Iterable[VirtualChannel]) -> PlanChannels:
        """Return the columns of single channels, whose possible owners follow each other."""
        columns = [(c.exchange, c.up, c.down, c.bytes, c.new_up, (*c.subtasks, 0)[0], len(c.subtasks)) for c in rows]
        table = np.array(columns, np.int64).reshape(-1, 7).T
        ints = table.astype(np.int32)
        return cls(ints[0], ints[1], ints[2], table[3], ints[4], ints[5], ints[6])

    def __len__(self) -> int:
        return len(self.up)

    @overload
    def __getitem__(self, place: int) -> VirtualChannel: ...
    @overload
    def __getitem__(self, place: slice) -> list[VirtualChannel]: ...
    def __getitem__(self, place: int | slice) -> VirtualChannel | list[VirtualChannel]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        first, count = int(self.owner_first[place]), int(self.owner_count[place])
        ends = int(self.exchange[place]), int(self.up[place]), int(self.down[place])
        owners = tuple(range(first, first + count))
        return VirtualChannel(*ends, int(self.new_up[place]), int(self.bytes[place]), owners)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlanChannels) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__
        )

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def line_first(self) -> Longs:
        """Return the number of each channel's first line, and behind the last channel how many lines there are.

        A line is a channel and one of its possible owners, in this order; ledgers have one row per line.
        """
        return np.append(0, np.cumsum(self.owner_count, dtype=np.int64))

    def find(self, exchange: Longs, up: Longs, down: Longs) -> Longs:
        """Return the number of each channel; −1 for one that the plan does not have."""
        ups, downs = int(self.up.max(initial=0)) + 1, int(self.down.max(initial=0)) + 1
        known_keys = (self.exchange.astype(np.int64) * ups + self.up) * downs + self.down
        wanted = (exchange * ups + up) * downs + down
        places = np.minimum(np.searchsorted(known_keys, wanted), max(len(known_keys) - 1, 0))
        known = (exchange >= 0) & (up >= 0) & (up < ups) & (down >= 0) & (down < downs)
        return np.where(
            known & (len(known_keys) > 0) & (known_keys[places] == wanted) if len(known_keys) else False, places, -1
        )

    def of_lines(self, lines: Longs) -> Longs:
        """Return the channel of each line."""
        return np.searchsorted(self.line_first, lines, side="right") - 1

    def subtask_of_lines(self, lines: Longs) -> Longs:
        """Return the new subtask of each line, by number."""
        channels = self.of_lines(lines)
        return self.owner_first[channels] + (lines - self.line_first[channels])


@dataclass(frozen=True)
class Plan:
    """Everything that decides where a record goes, and how the work is cut into units of ``split_size`` bytes.

    ``sha256`` identifies the layout. The checkpoint's address is not in it: a copy of a checkpoint is the same one.
    """

    version: int
    checkpoint: str
    metadata_sha256: str
    spec_sha256: str
    split_size: int
    exchanges: tuple[PlannedExchange, ...]
    subtasks: tuple[Subtask, ...]
    channels: PlanChannels
    stored_sha256: str = field(default="", compare=False)
    """The hash of a plan that an earlier version wrote, which computed it in another way."""

    def to_json(self) -> str:
        head, columns = self._head(), self._columns()
        return json.dumps({**head, "checkpoint": self.checkpoint, "channels": columns}, sort_keys=True)

    @cached_property
    def sha256(self) -> str:
        if self.stored_sha256:
            return self.stored_sha256
        columns = b"".join(getattr(self.channels, name).astype("<i8").tobytes() for name in _STORED)
        layout = {**self._head(), "channels": hashlib.sha256(columns).hexdigest()}
        return hashlib.sha256(json.dumps(layout, sort_keys=True).encode()).hexdigest()

    def _head(self) -> dict[str, Any]:
        """Return everything but the checkpoint's address and the channels."""
        head = {name: getattr(self, name) for name in ("version", "metadata_sha256", "spec_sha256", "split_size")}
        return {
            **head,
            "exchanges": [asdict(exchange) for exchange in self.exchanges],
            "subtasks": [[operator, len(list(each))] for operator, each in groupby(s.operator for s in self.subtasks)],
        }

    def _columns(self) -> str:
        """Return the columns compressed, as text: a plan stays one small file, however many channels it has."""
        columns = b"".join(getattr(self.channels, name).astype("<i8").tobytes() for name in _STORED)
        return base64.b64encode(zlib.compress(columns, 1)).decode()

    @classmethod
    def from_json(cls, text: str) -> Plan:
        value: dict[str, Any] = json.loads(text)
        if value["version"] not in READABLE_VERSIONS:
            raise other_version("the stored plan", value["version"], PLAN_VERSION)
        exchanges = tuple(PlannedExchange(**{**e, "key": tuple(e["key"])}) for e in value["exchanges"])
        head = (value["version"], value["checkpoint"], value["metadata_sha256"], value["spec_sha256"])
        if value["version"] < PLAN_VERSION:
            layout = {name: each for name, each in value.items() if name != "checkpoint"}
            sha256 = hashlib.sha256(json.dumps(layout, sort_keys=True).encode()).hexdigest()
            subtasks = tuple(Subtask(**s) for s in value["subtasks"])
            channels = PlanChannels.of(VirtualChannel(**c) for c in value["channels"])
            return cls(*head, value["split_size"], exchanges, subtasks, channels, sha256)
        subtasks = tuple(Subtask(operator, index) for operator, count in value["subtasks"] for index in range(count))
        columns = np.frombuffer(zlib.decompress(base64.b64decode(value["channels"])), "<i8").reshape(len(_STORED), -1)
        return cls(*head, value["split_size"], exchanges, subtasks, lay_out(exchanges, subtasks, *columns))


_STORED = ("exchange", "up", "down", "bytes")
"""The columns that a plan stores; the others follow from them."""


def lay_out(
    exchanges: Sequence[PlannedExchange],
    subtasks: Sequence[Subtask],
    exchange: Longs,
    up: Longs,
    down: Longs,
    size: Longs,
) -> PlanChannels:
    """Return the channels with their new upstream subtask and possible owners."""
    first = {subtask.operator: number for number, subtask in enumerate(subtasks) if subtask.index == 0}
    new_up, owner_first, owner_count = (np.zeros(len(up), np.int32) for _ in range(3))
    for number, planned in enumerate(exchanges):
        members = exchange == number
        owners = [planned.possible_owners(each) for each in range(planned.old_down)]
        firsts = np.array([each[0] for each in owners], np.int32)
        new_up[members] = new_channel(up[members], planned.new_up)
        owner_first[members] = firsts[down[members]] + first[planned.downstream]
        owner_count[members] = np.array([len(each) for each in owners], np.int32)[down[members]]
    numbers = (exchange.astype(np.int32), up.astype(np.int32), down.astype(np.int32))
    return PlanChannels(*numbers, size.astype(np.int64), new_up, owner_first, owner_count)


@dataclass(frozen=True, slots=True)
class Examined:
    """A plan as far as it goes, and everything that forbids it; without refusals the plan is whole."""

    plan: Plan
    refusals: tuple[CdrError, ...]


def make_plan(checkpoint: Checkpoint, spec: JobSpec, requested: RequestedParallelism, split_size: int) -> Plan:
    """Bind the spec to the checkpoint and lay out every virtual channel, or refuse with the exchange's name."""
    examined = examine(checkpoint, spec, requested, split_size)
    if examined.refusals:
        raise examined.refusals[0]
    return examined.plan


def examine(checkpoint: Checkpoint, spec: JobSpec, requested: RequestedParallelism, split_size: int) -> Examined:
    """Return the plan without the exchanges that cannot be bound, and all refusals."""
    parallelism, found = examine_parallelism(checkpoint, spec, requested)
    refused: list[CdrError] = list(found)
    refused += filter(None, (beyond_flink(checkpoint, operator) for operator in checkpoint.metadata.operators))
    bound: list[tuple[PlannedExchange, Sizes]] = []
    keys: list[tuple[str, ...]] = []
    for exchange in spec.exchanges:
        try:
            planned = bind(checkpoint, exchange, parallelism)
            bound.append((planned, announced_sizes(checkpoint, planned)))
            keys.append(exchange.key)
        except CdrError as error:
            refused.append(error)
    for (planned, sizes), key in zip(bound, keys, strict=True):
        refused += refusals(checkpoint, planned, sizes, key)
    refused += _repeats([planned for planned, _ in bound])
    refused += _unlisted_state(checkpoint, spec)
    once = {str(error): error for error in refused}  # one damaged handle is met more than once
    return Examined(_lay_out(checkpoint, spec, bound, split_size), tuple(once.values()))


def _lay_out(
    checkpoint: Checkpoint, spec: JobSpec, bound: list[tuple[PlannedExchange, Sizes]], split_size: int
) -> Plan:
    downstream = {e.downstream: e.new_down for e, _ in bound}
    subtasks = tuple(Subtask(operator, index) for operator, count in downstream.items() for index in range(count))
    rows = [np.stack([np.full_like(s.up, number), s.up, s.down, s.bytes]) for number, (_, s) in enumerate(bound)]
    columns = np.concatenate([np.zeros((len(_STORED), 0), np.int64), *rows], axis=1)
    exchanges = tuple(exchange for exchange, _ in bound)
    return Plan(
        PLAN_VERSION,
        checkpoint.address,
        checkpoint.sha256,
        spec.sha256,
        split_size,
        exchanges,
        subtasks,
        lay_out(exchanges, subtasks, *columns),
    )


def _repeats(exchanges: list[PlannedExchange]) -> Iterator[CdrError]:
    """Yield two exchanges with one gate or partition, under whatever names: their records would be counted twice."""
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


def _unlisted_state(checkpoint: Checkpoint, spec: JobSpec) -> Iterator[CdrError]:
    """Refuse, by name, in-flight data that no exchange of the spec covers: it would be lost silently.

    Where handles announce empty chunks only, `read` checks that.
    """
    covered = {
        Side.INPUT: {(_id_of(checkpoint, e.downstream), e.gate) for e in spec.exchanges},
        Side.OUTPUT: {(_id_of(checkpoint, e.upstream), e.partition) for e in spec.exchanges},
    }
    for operator in checkpoint.metadata.operators:
        for side, what in ((Side.INPUT, "gate"), (Side.OUTPUT, "partition")):
            try:
                found = checkpoint.columns(operator, side)
                indexes = np.unique(found.a[payload_sizes(checkpoint, found, damage_is_fine=True) != 0])
            except CdrError as error:
                yield error
                continue
            for index in indexes.tolist():
                if (operator.operator_id, index) not in covered[side]:
                    yield PlanRefused(
                        f"operator {operator.label} has in-flight data on {what} {index}, which no exchange covers",
                        hint="add the exchange to the job spec",
                    )


def _id_of(checkpoint: Checkpoint, name: str) -> str | None:
    """Return the operator's id; ``None`` for a name that is refused where its exchange is bound."""
    try:
        return checkpoint.operator(name).operator_id
    except SpecRefused:
        return None
