"""Stream elements in the bytes of a virtual channel: a length, a tag, the rest."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

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
"""Kinds by tag; 0 is a record with a timestamp, 1 one without."""

_REST = {2: 8, 3: 28, 4: 4, 5: 1, 6: 12}
"""Number of bytes behind the tag of an element that is not a record."""

_NUMBERS = (2, 3, 6)
"""Tags of elements of fixed length whose contents are not restricted."""

_FIXED = np.array([1 + _REST.get(tag, 0) for tag in range(8)])

_VALID_BODIES = {4: (b"\0\0\0\0", b"\xff\xff\xff\xff"), 5: (b"\0", b"\1")}
"""All valid bodies of a status (active, idle) and of record attributes (no backlog, backlog)."""

FEW = 64
"""Number of channels below which one after the other is faster than all at once."""

Longs = npt.NDArray[np.int64]

_LENGTH, _TIME = struct.Struct(">i"), struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Elements:
    """Element i is ``data[starts[i]:ends[i]]``, the tag first. ``border`` is the offset at which output state begins.

    ``broken`` is the error of the bytes after the last element; ``None`` if no bytes follow it.
    """

    data: bytes
    starts: list[int]
    ends: list[int]
    border: int
    broken: Corrupt | None = None

    def from_state(self, index: int) -> str:
        """Return input, output, or input+output for an element that begins in the one and ends in the other."""
        if self.ends[index] <= self.border:
            return "input"
        return "output" if self.starts[index] - 4 >= self.border else "input+output"

    def begins_in(self, index: int) -> str:
        """Return the side that an element belongs to: it is drained with the side on which it begins."""
        return self.from_state(index).partition("+")[0]

    def before(self, count: int) -> Elements:
        """Return the first ``count`` elements."""
        return Elements(self.data, self.starts[:count], self.ends[:count], self.border)

    def records_from(self, first: int) -> int:
        """Return the number of records among the elements from there on."""
        return sum(self.data[start] <= 1 for start in self.starts[first:])

    def whole(self) -> Elements:
        """Return these elements; raise the error if they are not all of the channel."""
        if self.broken is not None:
            raise self.broken
        return self


def broken_at(wrong: str, offset: int, where: Where) -> CorruptChannelState | None:
    """Return the error of a channel whose bytes are invalid from this offset on; ``None`` if nothing is wrong."""
    if not wrong:
        return None
    return CorruptChannelState(
        f"in-flight bytes do not frame into records: {wrong}", where=replace(where, offset=offset)
    )


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """Elements of many channels: element i is ``data[starts[i]:ends[i]]``, channel c has ``first[c]:first[c + 1]``.

    ``wrong`` maps a channel to the reason why the bytes after its last element are invalid.
    """

    starts: Longs
    ends: Longs
    first: Longs
    wrong: dict[int, str]


def find_frames(data: bytes, begins: Longs) -> Frames:
    """Return the elements of consecutive channels; channel c is ``data[begins[c]:begins[c + 1]]``.

    All channels advance one element at a time. Doubtful ones are walked singly, which can name what is wrong.
    """
    view = np.frombuffer(data, np.uint8)
    at, limit = begins[:-1].copy(), begins[1:]
    starts, ends, left, wrong = [], [], [], {}
    active = np.flatnonzero(at < limit)
    while len(active) > FEW:
        here = at[active]
        lengths = _plain_lengths(view, here, limit[active])
        plain = lengths > 0
        left += active[~plain].tolist()
        active, here = active[plain], here[plain]
        starts.append(here + 4)
        ends.append(here + 4 + lengths[plain])
        at[active] = ends[-1]
        active = active[ends[-1] < limit[active]]
    for channel in [*left, *active.tolist()]:
        more = _walk(data, int(at[channel]), int(limit[channel]))
        starts.append(np.array(more[0], np.int64))
        ends.append(np.array(more[1], np.int64))
        if more[2]:
            wrong[channel] = more[2]
    all_starts = np.sort(np.concatenate([np.zeros(0, np.int64), *starts]))
    all_ends = np.sort(np.concatenate([np.zeros(0, np.int64), *ends]))
    return Frames(all_starts, all_ends, np.searchsorted(all_starts, begins), wrong)


def _plain_lengths(view: npt.NDArray[np.uint8], at: Longs, limit: Longs) -> Longs:
    """Return the length of the element at each place; 0 if it may be wrong, or if its kind needs its
    contents checked.
    """
    room = limit - at >= 5
    at = np.where(room, at, 0)
    lengths = view[at[:, None] + np.arange(4)].view(">i4")[:, 0].astype(np.int64) if len(view) >= 5 else at * 0
    tags = view[np.minimum(at + 4, len(view) - 1)]
    fits = room & (lengths >= 1) & (at + 4 + lengths <= limit)
    known = (tags == 1) | ((tags == 0) & (lengths >= 9)) | np.isin(tags, _NUMBERS) & (lengths == _FIXED[tags & 7])
    return np.where(fits & known, lengths, 0)


def _walk(data: bytes, at: int, limit: int) -> tuple[list[int], list[int], str]:
    """Return starts and ends of the elements from there on, and what is wrong behind the last (empty if nothing)."""
    starts: list[int] = []
    ends: list[int] = []
    while at < limit:
        if wrong := _wrong(data, at, limit):
            return starts, ends, wrong
        starts.append(at + 4)
        at += 4 + int(_LENGTH.unpack_from(data, at)[0])
        ends.append(at)
    return starts, ends, ""


def _wrong(data: bytes, at: int, size: int) -> str:
    """Return why no element can begin here; empty if one can."""
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
    if tag in _VALID_BODIES and body not in _VALID_BODIES[tag]:
        return f"a {KINDS[tag]} with the contents {body.hex()}"
    return ""


def timestamp(raw: bytes) -> int | None:
    """Return the timestamp of a record or watermark; ``None`` if it has none."""
    if raw[0] in (0, 2):
        return int(_TIME.unpack_from(raw, 1)[0])
    return int(_TIME.unpack_from(raw, 5)[0]) if raw[0] == 6 else None


def value_of(raw: bytes) -> bytes:
    """Return a record's value, without tag and timestamp."""
    return raw[9:] if raw[0] == 0 else raw[1:]
