"""The result of a comparison: differences, each with its channel, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cdr_core.verify.checkpoint import Channel

SHOWN = 5
"""Positions that a difference lists; ``count`` is the number of all."""


class Kind(StrEnum):
    """Ways in which an output is not its source."""

    MISSING = "missing"
    EXTRA = "extra"
    DOUBLED = "doubled"
    CHANGED = "changed"
    OUT_OF_ORDER = "out_of_order"
    MISPLACED = "misplaced"
    WRONG_SIDE = "wrong_side"
    OTHER_ELEMENTS = "other_elements"
    RECEIPT = "receipt"


@dataclass(frozen=True, slots=True)
class Difference:
    """``channel`` is the virtual channel, or ``None`` for what belongs to no channel of the source.

    ``target`` is the new channel of a rewritten checkpoint.
    """

    kind: Kind
    what: str
    count: int = 1
    channel: Channel | None = None
    positions: tuple[int, ...] = ()
    target: Channel | None = None

    def to_json(self) -> dict[str, Any]:
        place: dict[str, Any] = {}
        if self.channel is not None:
            place = {"exchange": self.channel.exchange, "up": self.channel.up, "down": self.channel.down}
        if self.target is not None:
            place |= {"exchange": self.target.exchange, "new_up": self.target.up, "new_down": self.target.down}
        return {
            "kind": str(self.kind),
            **place,
            "count": self.count,
            "positions": list(self.positions),
            "what": str(self),
        }

    def __str__(self) -> str:
        place = "" if self.channel is None else f"{self.channel}: "
        return f"{place}{self.what}"


def of_records(kind: Kind, channel: Channel, positions: Iterable[int], what: str) -> list[Difference]:
    """Return one difference for these records of a channel, or none where there are none; ``{}`` is their number."""
    found = [int(position) for position in positions]
    if not found:
        return []
    number = "1 record" if len(found) == 1 else f"{len(found)} records"
    shown = ", ".join(str(position) for position in found[:SHOWN]) + (", …" if len(found) > SHOWN else "")
    sentence = f"{number} {what} (position {shown})"
    return [Difference(kind, sentence, len(found), channel, tuple(found[:SHOWN]))]


@dataclass(frozen=True, slots=True)
class Totals:
    """Records, their raw bytes, and an order-free digest of them (the sum of their BLAKE2b digests)."""

    records: int = 0
    bytes: int = 0
    digest: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"records": self.records, "bytes": self.bytes, "digest": f"{self.digest:032x}"}


def total_of(parts: Iterable[Totals]) -> Totals:
    """Return the totals of all parts together."""
    every = list(parts)
    digest = sum(part.digest for part in every) % (1 << 128)
    return Totals(sum(part.records for part in every), sum(part.bytes for part in every), digest)


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome. ``left_out`` records were not expected, because the receipt lists them; ``unchecked`` lists what
    could not be compared and why; ``unproven`` the keys without evidence; ``values_checked``: against the source.
    """

    source: Totals
    output: Totals
    differences: tuple[Difference, ...]
    left_out: int = 0
    partial: bool = False
    unchecked: tuple[str, ...] = field(default=())
    channels: int = 0
    unproven: tuple[str, ...] = ()
    values_checked: bool = True

    @property
    def verdict(self) -> str:
        if self.differences:
            return "unbalanced"
        return "partial" if self.partial else "balanced"

    @property
    def exit_code(self) -> int:
        return {"balanced": 0, "unbalanced": 2, "partial": 6}[self.verdict]

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "proven": not self.unproven,
            "unproven": list(self.unproven),
            "values": "checked" if self.values_checked else "not checked",
            "differences": [difference.to_json() for difference in self.differences],
            "channels": self.channels,
            "source": self.source.to_json(),
            "output": self.output.to_json(),
            "left_out": self.left_out,
            "unchecked": list(self.unchecked),
        }
