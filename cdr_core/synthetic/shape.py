"""The shape of a generated checkpoint; a shape that no Flink checkpoint can have is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from cdr_core.errors import Refused, SpecRefused
from cdr_core.flink.channel_writer import LONGEST_CHUNK
from cdr_core.flink.keys import MOST_KEY_GROUPS, check_key
from cdr_core.flink.metadata.channel_packing import LARGEST_I32
from cdr_core.flink.metadata.versions import NEWEST_VERSION, OLDEST_WRITTEN
from cdr_core.flink.types import TypeDescription

LARGEST_INLINE: Final = 256 * 1024 * 1024
"""Bytes. Inline state is held in memory until the metadata is written, and by every reader."""


LARGEST: Final = 1 << 50
"""Bytes. Beyond any disk, and far from where sums of sizes no longer fit 64 bits."""


class Spread(StrEnum):
    """Distribution of an exchange's records over downstream subtasks."""

    KEYED = "the subtask that owns the key group"
    ANY = "any subtask"
    FIRST = "subtask 0"
    NONE = "no subtask: such an exchange has no in-flight data"


@dataclass(frozen=True, slots=True)
class ExchangeShape:
    """One exchange; operators by the name that becomes their uid, or by a 32-hex id."""

    name: str
    upstream: str
    partition: int
    downstream: str
    gate: int
    spread: Spread
    record: TypeDescription
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything that decides the bytes of a generated checkpoint; equal shapes give equal bytes.

    ``parallelism`` has every operator of the exchanges. ``bytes`` is the payload in flight to aim at, without length
    fields of chunks; the last record of each channel may exceed it. ``record_bytes`` bounds a record's value where its
    type has a text or bytes field to stretch. ``buffer`` is the longest chunk.
    """

    exchanges: tuple[ExchangeShape, ...]
    parallelism: Mapping[str, int]
    bytes: int
    seed: int
    max_parallelism: int = 128
    record_bytes: tuple[int, int] = (100, 200)
    keys: int = 1000
    skew: bool = False
    watermarks: bool = True
    timestamps: bool = False
    version: int = NEWEST_VERSION
    inline: bool = False
    subtasks_per_file: int = 5
    buffer: int = 32 * 1024
    carriers: tuple[int, ...] = field(init=False)
    """Numbers of the exchanges with in-flight data."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "carriers", _carriers(self.exchanges))
        _refuse_numbers(self)
        _refuse_parallelism(self)
        for exchange in self.exchanges:
            _refuse_places(exchange)
            if exchange.spread is Spread.KEYED:
                _refuse_key(exchange)
        if self.bytes and not self.carriers:
            raise Refused(
                "Flink keeps no in-flight data on any exchange of this spec",
                hint="list a hash, rebalance, shuffle or global exchange, or generate 0 bytes",
            )

    @property
    def operators(self) -> tuple[str, ...]:
        """Return the names of all operators, in the order of the exchanges."""
        return tuple(dict.fromkeys(name for e in self.exchanges for name in (e.upstream, e.downstream)))


def _carriers(exchanges: tuple[ExchangeShape, ...]) -> tuple[int, ...]:
    """Return the exchanges with unaligned barriers: one that cannot carry them disables them for its operator, as in
    Flink.
    """
    aligned = {exchange.downstream for exchange in exchanges if exchange.spread is Spread.NONE}
    return tuple(number for number, exchange in enumerate(exchanges) if exchange.downstream not in aligned)


def _refuse_numbers(shape: Shape) -> None:
    low, high = shape.record_bytes
    if not 1 <= low <= high or high >= 2**30:
        raise Refused(f"records of {low} to {high} bytes cannot be", hint="write 100-200; a record has less than 1 GiB")
    if not OLDEST_WRITTEN <= shape.version <= NEWEST_VERSION:
        raise Refused(f"_metadata version {shape.version} is not written", hint=f"{OLDEST_WRITTEN} to {NEWEST_VERSION}")
    if shape.bytes > LARGEST:
        raise Refused(f"{shape.bytes} bytes are more than any disk holds", hint=f"at most {LARGEST} bytes")
    if shape.inline and shape.bytes > LARGEST_INLINE:
        raise Refused(
            f"{shape.bytes} bytes are too many for inline state, which is held in memory",
            hint=f"at most {LARGEST_INLINE} bytes, or leave it out",
        )
    if shape.buffer > LONGEST_CHUNK:
        raise Refused(
            f"a buffer of {shape.buffer} bytes is longer than the length field of a chunk can hold",
            hint=f"give at most {LONGEST_CHUNK} bytes",
        )
    for what, number in (("buffer", shape.buffer), ("keys", shape.keys), ("subtasks a file", shape.subtasks_per_file)):
        if number < 1:
            raise Refused(f"{number} is no number of {what} to work with", hint="give at least 1")


def _refuse_parallelism(shape: Shape) -> None:
    if not 1 <= shape.max_parallelism <= MOST_KEY_GROUPS:
        raise Refused(f"max parallelism {shape.max_parallelism} is not from 1 to {MOST_KEY_GROUPS}")
    unknown = sorted(set(shape.parallelism) - set(shape.operators))
    if unknown:
        known = ", ".join(shape.operators)
        raise Refused(f"no exchange of the spec has an operator {unknown[0]!r}", hint=f"they have {known}")
    for name in shape.operators:
        if not 1 <= shape.parallelism[name] <= shape.max_parallelism:
            raise Refused(
                f"operator {name} cannot have parallelism {shape.parallelism[name]}",
                hint=f"give 1 to the max parallelism, {shape.max_parallelism}",
            )


def _refuse_places(exchange: ExchangeShape) -> None:
    for what, number in (("gate", exchange.gate), ("partition", exchange.partition)):
        if number > LARGEST_I32:
            raise SpecRefused(
                f"exchange {exchange.name}: {what} {number} does not fit its 4-byte field of _metadata",
                hint="write the number that the operator has in the job, counted from 0",
            )


def _refuse_key(exchange: ExchangeShape) -> None:
    try:
        check_key(exchange.record, exchange.key)
    except SpecRefused as error:
        raise SpecRefused(f"exchange {exchange.name}: {error.what}", hint=error.hint) from None
