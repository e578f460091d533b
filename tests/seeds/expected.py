"""What must come out of a recovery, as the second reader finds it in the source: every record, and who owns it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cdr_core.verify.checkpoint import Checkpoint
from cdr_core.verify.keys import owner
from cdr_core.verify.rows import reading_of
from cdr_core.verify.spec import read_spec

MAX_PARALLELISM = 128
_WITH_TIME, _WITHOUT_TIME = 0, 1


class Place(NamedTuple):
    """Where a record lies in the source."""

    exchange: str
    up: int
    down: int
    pos: int


class Record(NamedTuple):
    """Its bytes, and the key group that decides about its owner."""

    raw: bytes
    key_group: int

    def owner(self, parallelism: int) -> int:
        return owner(self.key_group, parallelism, MAX_PARALLELISM)


@dataclass(frozen=True, slots=True)
class Compared:
    """How rows differ from the source: all of it is zero when nothing went wrong."""

    lost: int
    duplicated: int
    misplaced: int

    @property
    def is_exact(self) -> bool:
        return not (self.lost or self.duplicated or self.misplaced)


def records_of(checkpoint: str, spec: str) -> dict[Place, Record]:
    """Every record of a checkpoint whose records are tuples with a LONG in front, which is the key."""
    found: dict[Place, Record] = {}
    with Checkpoint(checkpoint) as source:
        for exchange in read_spec(spec):
            group = reading_of(exchange, MAX_PARALLELISM).group
            assert exchange.key == ("f0",)
            assert group is not None
            for channel in source.channels(exchange):
                elements = source.elements(exchange, channel).whole()
                for pos, (start, end) in enumerate(zip(elements.starts, elements.ends, strict=True)):
                    raw = elements.data[start:end]
                    if raw[0] in (_WITH_TIME, _WITHOUT_TIME):
                        (key,) = struct.unpack_from(">q", raw, 1 if raw[0] == _WITHOUT_TIME else 9)
                        place = Place(exchange.name, channel.up, channel.down, pos)
                        found[place] = Record(raw, group({"f0": key}))
    return found


def compare(rows: Iterable[Mapping[str, Any]], source: Mapping[Place, Record], parallelism: int) -> Compared:
    """Every place once, with its bytes, at its owner, and in order per virtual channel and owner."""
    seen: set[Place] = set()
    last: dict[tuple[Any, ...], int] = {}
    duplicated = misplaced = 0
    for row in rows:
        place = Place(row["exchange"], row["up"], row["down"], row["pos"])
        record = source.get(place)
        duplicated += place in seen
        seen.add(place)
        order = (*place[:3], row["new_down"])
        wrong = record is None or record.raw != row["raw"] or record.owner(parallelism) != row["new_down"]
        misplaced += wrong or last.get(order, -1) >= place.pos
        last[order] = place.pos
    return Compared(len(source.keys() - seen), duplicated, misplaced)
