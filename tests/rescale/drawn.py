"""Channels drawn by chance, filtered, and what a naive filter finds."""

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

from cdr_core.audit.ledger import Tally
from cdr_core.channels import channel_selection as selection
from cdr_core.channels.channel_selection import Selection, Selector
from cdr_core.channels.control_elements import Rule, rules
from cdr_core.channels.filter_context import FilterContext
from cdr_core.errors import CdrError, Where
from cdr_core.flink.read_page import PageCounts
from cdr_core.flink.types import RowData, parse_type
from cdr_core.flink.virtual_channel import ChannelBytes, Part
from cdr_core.kernels import fingerprint
from cdr_core.planning.plan import Plan
from cdr_core.synthetic.encode.rows import encode_row
from tests.flink_formats.types import naive
from tests.kernels.keyed import NAMES, TYPES
from tests.kernels.naive import M, naive_hash
from tests.rescale.inflight import At, Op, checkpoint_of, exchange, plan_of, spec_of

GROUPS, OLD, UP = 126, 2, 1


NAMED = {2: "watermark", 3: "latency_marker", 4: "watermark_status", 5: "record_attributes", 6: "internal_watermark"}


REPLICATED = (2, 4, 6)


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
