"""Stream elements in the bytes of a virtual channel: a length, a tag, the rest."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from cdr_core.errors import Corrupt, CorruptChannelState, Where

KINDS = (
    "record",
    "record",
    "watermark",
    "latency_marker",
    "watermark_status",
    "record_attributes",
    "internal_watermark",
)
"""By tag; 0 is a record with a timestamp, 1 one without."""

_REST = {2: 8, 3: 28, 4: 4, 5: 1, 6: 12}
"""Bytes behind the tag of what is no record."""

_SAYS = {4: (b"\0\0\0\0", b"\xff\xff\xff\xff"), 5: (b"\0", b"\1")}
"""Everything that a status (active, idle) and record attributes (no backlog, backlog) can say."""

_LENGTH, _TIME = struct.Struct(">i"), struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Elements:
    """Element i is ``data[starts[i]:ends[i]]``, the tag first. ``border`` is where output state begins.

    ``broken`` says why the bytes stop to make sense after the last element; ``None`` where they end with it.
    """

    data: bytes
    starts: list[int]
    ends: list[int]
    border: int
    broken: Corrupt | None = None

    def from_state(self, index: int) -> str:
        """input, output, or input+output for an element that begins in the one and ends in the other."""
        if self.ends[index] <= self.border:
            return "input"
        return "output" if self.starts[index] - 4 >= self.border else "input+output"

    def begins_in(self, index: int) -> str:
        """The side that an element belongs to: it is drained with that on which it begins."""
        return self.from_state(index).partition("+")[0]

    def before(self, count: int) -> Elements:
        """The first of them."""
        return Elements(self.data, self.starts[:count], self.ends[:count], self.border)

    def records_from(self, first: int) -> int:
        """How many records are among the elements from there on."""
        return sum(self.data[start] <= 1 for start in self.starts[first:])

    def whole(self) -> Elements:
        """These elements, or the error that keeps them from being all."""
        if self.broken is not None:
            raise self.broken
        return self


NO_ELEMENTS = Elements(b"", [], [], 0)


def find_elements(data: bytes, border: int, where: Where) -> Elements:
    """All elements up to the end of the bytes, or up to the first place that is none."""
    starts: list[int] = []
    ends: list[int] = []
    at, size = 0, len(data)
    while at < size:
        wrong = _wrong(data, at, size)
        if wrong:
            place = replace(where, offset=at)
            broken = CorruptChannelState(f"in-flight bytes do not frame into records: {wrong}", where=place)
            return Elements(data, starts, ends, border, broken)
        length = _LENGTH.unpack_from(data, at)[0]
        starts.append(at + 4)
        at += 4 + length
        ends.append(at)
    return Elements(data, starts, ends, border)


def _wrong(data: bytes, at: int, size: int) -> str:
    """What keeps an element from beginning here; empty if nothing does."""
    if at + 4 > size:
        return f"{size - at} bytes are left over at the end"
    length = _LENGTH.unpack_from(data, at)[0]
    if length < 1 or at + 4 + length > size:
        return f"an element of {length} bytes where {size - at - 4} are left"
    tag = data[at + 4]
    if tag >= len(KINDS):
        return f"an element has the unknown tag {tag}"
    if (tag in _REST and length != 1 + _REST[tag]) or (tag == 0 and length < 9):
        return f"a {KINDS[tag]} of {length} bytes"
    body = data[at + 5 : at + 4 + length]
    if tag in _SAYS and body not in _SAYS[tag]:
        return f"a {KINDS[tag]} that says {body.hex()}"
    return ""


def timestamp(raw: bytes) -> int | None:
    """That of a record or watermark; ``None`` where it has none."""
    if raw[0] in (0, 2):
        return int(_TIME.unpack_from(raw, 1)[0])
    return int(_TIME.unpack_from(raw, 5)[0]) if raw[0] == 6 else None


def value_of(raw: bytes) -> bytes:
    """A record's value, without tag and timestamp."""
    return raw[9:] if raw[0] == 0 else raw[1:]
