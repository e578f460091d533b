"""The filter's two ways, and a naive one that shares no code with them: the same runs, tallies, accounts and errors.

Channels are drawn at random: cut anywhere into chunks of input and output state, elements of every kind, any size
relative to the page and to what is put together in place, splits that begin in the middle, bytes that are damaged.
"""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdr_core.errors import Where
from cdr_core.flink import key_sorter as sorting
from cdr_core.flink import paged_reader as paged
from tests.kernels.keyed import TYPES, record
from tests.rescale.drawn import GROUPS, OLD, UP, Drawn, cut, expected, filtered, group_of, key_on_its_way_to, plan_for

FULL_HELD = sorting.HELD
PAGES = (16, 61, 256, 4096, 65536)
OTHERS = (
    b"\2" + struct.pack(">q", -7), b"\3" + bytes(range(28)), b"\4" + bytes(4), b"\4" + b"\xff" * 4,
    b"\5\0", b"\5\1", b"\6" + struct.pack(">iq", 3, 9),
)  # fmt: skip


def padding(rng: random.Random, page: int, held: int, end: int) -> bytes:
    """Bytes behind the key, which may be any: few, so many that the element ends with the page, or too many for it."""
    if rng.random() < (0.1 if held < FULL_HELD else 0.003):
        return rng.randbytes(rng.randrange(held, 2 * held))
    kinds = 6 if page <= 4096 or rng.random() < 0.15 else 4
    return rng.randbytes((0, 0, 1, rng.randrange(100), rng.randrange(2 * page), -end % page)[rng.randrange(kinds)])


def draw(rng: random.Random, kind: str, held: int) -> Drawn:
    new, down, page = rng.choice((3, 5, 20)), rng.randrange(OLD), rng.choice(PAGES)
    plan = plan_for(kind, down, new, rng.choice((3, 1)))
    elements: list[tuple[bytes, int]] = []
    number, size = rng.randrange(1, 40), 0
    borders = sorted({rng.randrange(number), rng.randrange(number), number})
    for index in range(number):
        element, owner = rng.choice(OTHERS), -1
        if rng.random() < 0.8:
            key = key_on_its_way_to(down, kind, rng)
            owner = group_of(kind, key) * new // GROUPS
            element = record(kind, key, "r" * rng.choice((0, 3, 40)), rng.choice((None, -1, 1 << 40)))
            element += padding(rng, page, held, size + len(element) + 4)
        elements.append((element, owner))
        size = 0 if index + 1 in borders else size + len(element) + 4
    return Drawn(kind, plan, down, page, elements, borders)


def spanning(drawn: Drawn, held: int) -> int:
    """Elements that cross a border of the page, which is filled from the beginning of a split on.

    One that is too long to be put together in place is read again from its own beginning, and what follows with it.
    """
    found, ends = 0, drawn.ends
    for a, b in pairwise(drawn.borders):
        begin, in_place = ends[a], True
        for start, end in pairwise(ends[a : b + 1]):
            if in_place and end - start > held and (start - begin) // drawn.page != (end - 1 - begin) // drawn.page:
                begin, in_place = start, False
            found += (start - begin) // drawn.page != (end - 1 - begin) // drawn.page
    return found


def damage(rng: random.Random, drawn: Drawn) -> bytes:
    """The channel with a record that was on its way to another subtask, or with one or two other bytes."""
    if rng.random() < 0.2:
        key = key_on_its_way_to(1 - drawn.down, drawn.kind, rng)
        drawn.elements[rng.randrange(len(drawn.elements))] = record(drawn.kind, key), -1
        return drawn.framed
    data, at = bytearray(drawn.framed), rng.choice(drawn.ends[:-1])
    for _ in range(rng.randrange(1, 3)):
        # Mostly near the head of an element: what is behind its key is nobody's business here.
        place = rng.choice((rng.randrange(len(data)), min(at + rng.randrange(44), len(data) - 1)))
        data[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(data)


@pytest.fixture(params=[300, 5000, FULL_HELD])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes that are put together in place. With few, the general way goes on in the middle of most splits."""
    size: int = request.param
    if size < FULL_HELD:
        monkeypatch.setattr(sorting, "HELD", size)
        monkeypatch.setattr(paged, "BATCH", 2000)
        monkeypatch.setattr(paged, "SPOOLED_FROM", 3000)
    return size


@pytest.mark.seed("001-11", "001-22")
@pytest.mark.parametrize("kind", TYPES)
def test_both_ways_find_what_a_naive_one_finds(kind: str, held: int, tmp_path: Path) -> None:
    """Whatever the cuts, and exactly the bytes of the splits pass the page."""

    @settings(derandomize=True, deadline=None, max_examples=40)
    @given(st.integers(0, 1 << 32))
    def check(seed: int) -> None:
        rng = random.Random(seed)
        drawn = draw(rng, kind, held)
        channel = cut(rng, drawn.framed, Where(exchange="main", subtask=drawn.down, channel=UP))
        wanted = [expected(drawn, split) for split in drawn.splits()]
        passed = sum(split["end"] - split["start"] for split in drawn.splits())
        for in_place, longest in ((True, held), (False, 1 << 62)):
            found, counts = filtered(drawn, channel, tmp_path, in_place=in_place)
            assert found == wanted
            assert (counts.bytes, counts.allocations) == (passed, 1)
            assert counts.spanning == spanning(drawn, longest)

    check()


@pytest.mark.parametrize("kind", TYPES)
def test_both_ways_say_the_same_of_damaged_bytes(kind: str, held: int, tmp_path: Path) -> None:
    """The same sentence with the same place, or the same selection where the damage does not show here."""
    seen: set[Any] = set()

    @settings(derandomize=True, deadline=None, max_examples=100)
    @given(st.integers(0, 1 << 32))
    def check(seed: int) -> None:
        rng = random.Random(seed)
        drawn = draw(rng, kind, held)
        data = damage(rng, drawn)
        channel = cut(rng, data, Where(exchange="main", subtask=drawn.down, channel=UP))
        one, _ = filtered(drawn, channel, tmp_path, in_place=True)
        other, _ = filtered(drawn, channel, tmp_path, in_place=False)
        assert one == other
        seen.update(each[0].__name__ for each in one if isinstance(each, tuple))

    check()
    assert {"CorruptChannelState", "Misplaced"} <= seen
