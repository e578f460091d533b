"""The filter's two ways, and a naive one that shares no code with them: the same runs, tallies, accounts and errors.

Channels are drawn at random: cut anywhere into chunks of input and output state, elements of every kind, any size
relative to the page and to what is put together in place, splits that begin in the middle, bytes that are damaged.
"""

from __future__ import annotations

import random
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdr_core.audit.ledger import Tally
from cdr_core.channels import channel_selection as selection
from cdr_core.channels.channel_selection import Selection, Selector
from cdr_core.channels.control_elements import Rule, rules
from cdr_core.channels.filter_context import FilterContext
from cdr_core.errors import CdrError, Where
from cdr_core.flink import key_sorter as sorting
from cdr_core.flink import paged_reader as paged
from cdr_core.flink.read_page import PageCounts
from cdr_core.flink.types import RowData, parse_type
from cdr_core.flink.virtual_channel import ChannelBytes, Part
from cdr_core.kernels import fingerprint
from cdr_core.planning.plan import Plan
from cdr_core.synthetic.encode import encode_row
from tests.flink_formats.types import naive
from tests.kernels.test_fingerprint import M, naive_hash
from tests.kernels.test_keyed import NAMES, TYPES, record
from tests.rescale.inflight import At, Op, checkpoint_of, exchange, plan_of, spec_of

GROUPS, OLD, UP = 126, 2, 1
FULL_HELD = sorting.HELD
PAGES = (16, 61, 256, 4096, 65536)
NAMED = {2: "watermark", 3: "latency_marker", 4: "watermark_status", 5: "record_attributes", 6: "internal_watermark"}
REPLICATED = (2, 4, 6)
OTHERS = (
    b"\2" + struct.pack(">q", -7), b"\3" + bytes(range(28)), b"\4" + bytes(4), b"\4" + b"\xff" * 4,
    b"\5\0", b"\5\1", b"\6" + struct.pack(">iq", 3, 9),
)  # fmt: skip


def group_of(kind: str, key: Any) -> int:
    """By the naive hash of the format's tests."""
    description = parse_type(TYPES[kind][0])
    if not isinstance(description, RowData):
        return naive.key_group(naive.java_hash(kind, key), GROUPS)
    column = description.types[description.names.index("k")]
    return naive.key_group(naive.row_hash(encode_row(("k",), (column,), {"k": key})), GROUPS)


def random_key(kind: str, rng: random.Random) -> Any:
    if kind == "STRING":
        return "".join(rng.choice("abcxyz\0\x7f\x80éπ語\uffff😀") for _ in range(rng.choice((0, 1, 7, 8, 9, 30))))
    if kind in ("BIGINT", "SMALLINT") and rng.random() < 0.1:
        return None
    bits = {"LONG": 64, "INT": 32, "BIGINT": 64, "SMALLINT": 16}[kind]
    return rng.getrandbits(bits) - (1 << (bits - 1))


def key_on_its_way_to(down: int, kind: str, rng: random.Random) -> Any:
    while True:
        key = random_key(kind, rng)
        if group_of(kind, key) * OLD // GROUPS == down:
            return key


@cache
def plan_for(kind: str, down: int, new: int, new_up: int) -> Plan:
    data = struct.pack(">ib", 1, 1)
    checkpoint = checkpoint_of(Op("gen", 3), Op("slow", OLD, GROUPS, {At(down, 0, UP): data}))
    spec = spec_of(exchange(record=TYPES[kind][0])).replace("key: [f0]", f"key: [{NAMES[kind]}]")
    return plan_of(checkpoint, spec, f"gen={new_up},slow={new}")


@dataclass(frozen=True)
class Drawn:
    """Elements of a channel with the new owner of each (−1 = no record), and the element indices of its splits."""

    kind: str
    plan: Plan
    down: int
    page: int
    elements: list[tuple[bytes, int]]
    borders: list[int]

    @property
    def ends(self) -> list[int]:
        return np.cumsum([0, *(len(element) + 4 for element, _ in self.elements)]).tolist()

    @property
    def framed(self) -> bytes:
        return b"".join(struct.pack(">i", len(element)) + element for element, _ in self.elements)

    def splits(self) -> list[dict[str, Any]]:
        ends = self.ends
        return [
            {"channel": 0, "damaged": False, "start": ends[a], "end": ends[b], "position": a}
            for a, b in pairwise(self.borders)
        ]


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


def cut(rng: random.Random, data: bytes, where: Where) -> ChannelBytes:
    """The bytes in 1 to 9 chunks that lie anywhere in 1 to 4 parts; some of either may be empty."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(9)))
    chunks = [data[a:b] for a, b in pairwise([0, *cuts, len(data)])]
    borders = [0, *sorted(rng.randrange(len(chunks) + 1) for _ in range(rng.randrange(4))), len(chunks)]
    parts = tuple(_part(rng, chunks[a:b]) for a, b in pairwise(borders))
    inputs = rng.randrange(len(parts) + 1)
    return ChannelBytes(parts[:inputs], parts[inputs:], where)


def _part(rng: random.Random, chunks: list[bytes]) -> Part:
    data, starts = bytearray(b"#"), [0] * len(chunks)
    for index in rng.sample(range(len(chunks)), len(chunks)):
        starts[index] = len(data)
        data += chunks[index] + b"?"
    lengths = np.array([len(chunk) for chunk in chunks], np.int64)
    return Part(np.frombuffer(bytes(data), np.uint8), np.array(starts, np.int64), lengths)


def shown(found: Selection) -> dict[str, Any]:
    """What a selection says, copied: its runs are valid until the next one."""
    runs = [list(zip(*(column.tolist() for column in lane), strict=True)) for lane in found.runs]
    return {"runs": runs, "tallies": found.tallies, "others": found.others, "account": found.account}


def filtered(drawn: Drawn, channel: ChannelBytes, spool: Path, *, in_place: bool) -> tuple[list[Any], PageCounts]:
    """The selections of all splits with one selector, or the error at which it ended, and what passed the page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "open_again", lambda *_: channel)
        if not in_place:
            patch.setattr(Selector, "_in_place", lambda *_: None)
        selector = Selector(drawn.plan, FilterContext(enabled=True, page_size=drawn.page, spill_dirs=(str(spool),)))
        results: list[Any] = []
        try:
            results += [shown(selector.select(split)) for split in drawn.splits()]
        except CdrError as error:
            results.append((type(error), str(error), error.where))
        assert not selector.page.in_use
        counts = selector.page.counts
        selector.close()
    assert not list(spool.iterdir())
    return results, counts


def expected(drawn: Drawn, split: Mapping[str, Any]) -> dict[str, Any]:
    """The same by looking at one element after another."""
    subtasks = drawn.plan.channels[0].subtasks
    first, of = drawn.plan.subtasks[subtasks[0]].index, rules(drawn.plan, 0)
    runs: list[list[list[int]]] = [[] for _ in of]
    tallies, others = [Tally() for _ in of], [Counter[str]() for _ in of]
    account = {"kept": Counter[str](), "merged": Counter[str](), "dropped": Counter[str]()}
    ends = drawn.ends
    for index in range(split["position"], bisect_left(ends, split["end"])):
        element, owner = drawn.elements[index]
        tag = element[0]
        lanes = [lane for lane, rule in enumerate(of) if rule == Rule.REPLICATED and tag in REPLICATED]
        lanes = lanes if owner < 0 else [owner - first]
        for lane in lanes:
            if runs[lane] and runs[lane][-1][1] == ends[index]:
                runs[lane][-1][1] = ends[index + 1]
                runs[lane][-1][3] += 1
            else:
                runs[lane].append([ends[index], ends[index + 1], index, 1])
            if owner < 0:
                others[lane][NAMED[tag]] += 1
            else:
                tallies[lane] = _with(tallies[lane], element)
        if owner < 0:
            account["kept" if lanes else "merged" if tag in (2, 4) else "dropped"][NAMED[tag]] += 1
    as_shown = [list(map(tuple, lane)) for lane in runs]
    return {"runs": as_shown, "tallies": tuple(tallies), "others": tuple(others), "account": account}


def _with(tally: Tally, element: bytes) -> Tally:
    one, two = naive_hash(element)
    return Tally(
        tally.records + 1, tally.bytes + len(element), (tally.first + one) & M, (tally.second + two) & M,
        (tally.chain * fingerprint.CHAIN + one) & M,
    )  # fmt: skip


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
    seen = set()

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
