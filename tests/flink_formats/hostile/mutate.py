"""Damage: bits flipped, ends cut off, pieces of other files spliced in, length fields changed."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

from tests.flink_formats.hostile.corpus import Item, items

INTERESTING = (0, 1, -1, 2, 3, 4, 5, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, -(2**31), 2**31 - 5, 0x4CD6130)
_I32, _I64 = struct.Struct(">i"), struct.Struct(">q")


@dataclass(frozen=True)
class Damage:
    """What was done. ``cut`` is the new length of a file of which nothing but the end is missing, else ``None``."""

    cut: int | None


def mutate(item: Item, rng: random.Random) -> tuple[bytes, Damage]:
    """The item's bytes after one to four changes; a cut is always the only one."""
    if rng.random() < 0.15:
        length = rng.randrange(len(item.data))
        return item.data[:length], Damage(length)
    data = bytearray(item.data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        rng.choice(_CHANGES)(item, data, rng)
    return bytes(data), Damage(None)


def _flip(_item: Item, data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _noise(_item: Item, data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at : at + rng.randrange(9)] = rng.randbytes(rng.randrange(9))


def _remove(_item: Item, data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 2, 4, 8, 64, 1024))]


def _repeat(_item: Item, data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = data[at : at + rng.choice((1, 4, 16, 256))]


def _splice(_item: Item, data: bytearray, rng: random.Random) -> None:
    """A piece of some file in place of as many bytes, or between them."""
    other = rng.choice(items()).data
    start = rng.randrange(len(other))
    piece = other[start : start + rng.choice((4, 16, 64, 512))]
    at = rng.randrange(len(data) + 1)
    data[at : at + (len(piece) if rng.random() < 0.5 else 0)] = piece


def _length(item: Item, data: bytearray, rng: random.Random) -> None:
    """A number where one is: a known length field if there are any, else anywhere."""
    places = [place for place in item.fields if place + 4 <= len(data)]
    at = rng.choice(places) if places and rng.random() < 0.8 else rng.randrange(max(len(data) - 3, 1))
    if at + 4 <= len(data):
        (old,) = _I32.unpack_from(data, at)
        new = rng.choice((*INTERESTING, old + rng.randrange(-4, 5), len(data), len(data) - at - 4))
        _I32.pack_into(data, at, (new + 2**31) % 2**32 - 2**31)


def _offset(_item: Item, data: bytearray, rng: random.Random) -> None:
    """Eight bytes, as offsets have."""
    if len(data) >= 8:
        at = rng.randrange(len(data) - 7)
        _I64.pack_into(data, at, rng.choice((*INTERESTING, 2**63 - 1, -(2**63), 2**62, len(data))))


_CHANGES: tuple[Callable[[Item, bytearray, random.Random], None], ...] = (
    _flip,
    _flip,
    _noise,
    _remove,
    _repeat,
    _splice,
    _length,
    _length,
    _offset,
)
