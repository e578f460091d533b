"""One pass from element to run finds what the general way finds, and leaves to it what it cannot judge."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdr_core.flink import key_sorter as sorting
from cdr_core.flink.key_sorter import Sorter
from cdr_core.flink.keys import key_groups, key_place
from cdr_core.flink.read_page import ReadPage
from cdr_core.flink.types import parse_type
from cdr_core.kernels import element_runs, fingerprint, frames
from tests.kernels.keyed import NAMES, TYPES, record
from tests.kernels.streams import channel
from tests.support.naive_selection import select_runs

GROUPS, LANES = 128, 3
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
INT = st.integers(-(1 << 31), (1 << 31) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.text("abcdefgh", max_size=40)

KEYS = {
    "LONG": LONG,
    "INT": INT,
    "STRING": TEXT,
    "BIGINT": LONG | st.none(),
    "SMALLINT": st.integers(-(1 << 15), (1 << 15) - 1) | st.none(),
}

WATERMARK = b"\x02" + struct.pack(">q", 5)
MARKER = b"\x03" + bytes(28)


def place_of(kind: str) -> Any:
    return key_place(parse_type(TYPES[kind][0]), (NAMES[kind],))


class Scanned:
    """Elements of a channel that may be cut anywhere, and both ways over them."""

    def __init__(self, kind: str, elements: list[bytes], cut: int = 0, page: int = 64) -> None:
        self.kind = kind
        framed = b"".join(struct.pack(">i", len(e)) + e for e in elements)
        self.channel, self.page = channel([framed[:cut], framed[cut:]], 1), ReadPage(page)
        self.data = np.frombuffer(framed or b"\0", np.uint8).copy()
        ends = np.cumsum([len(e) + 4 for e in elements], dtype=np.int64)
        self.starts = ends - np.array([len(e) for e in elements], dtype=np.int64)
        self.ends = ends
        self.tags = np.array([e[0] for e in elements], np.int8)
        self.carried = np.zeros((LANES, frames.TAGS), np.uint8)
        self.carried[:2, frames.TAG_WATERMARK] = 1
        self.lane_of = (np.arange(GROUPS) % LANES).astype(np.int32)

    def _results(self) -> tuple[Any, Any]:
        sums = np.zeros((LANES, fingerprint.FOLD_COLUMNS), np.uint64)
        return sums, np.zeros((LANES + 2, frames.TAGS), np.int64)

    def in_one_pass(self) -> tuple[int, Any]:
        sums, counts = self._results()
        found, at, position = Sorter(self.page).sort(
            self.channel, 0, self.channel.size, 50, place_of(self.kind), self.lane_of, sums
        )
        assert not self.page.in_use
        assert self.page.counts.bytes == at
        runs, sizes = self._placed(found, counts)
        sums[:, fingerprint.SIZES] = sizes
        return position - 50, [sums.tolist(), counts.tolist(), runs]

    def _placed(self, found: Any, counts: Any) -> tuple[list[list[Any]], Any]:
        """The runs of each lane, and its records and bytes."""
        room, sizes = LANES * len(self.tags) + 1, np.zeros((LANES, 2), np.int64)
        most, columns = np.zeros(LANES, np.int64), np.zeros((4, LANES * room), np.int64)
        cursors = np.array([[lane * room, -1] for lane in range(LANES)], np.int64)
        element_runs.count_runs(found, self.carried, most)
        element_runs.place_runs(found, 0, 50, self.carried, sizes, counts, cursors, columns)
        ends = cursors[:, 0].tolist()
        assert all(end - lane * room <= most[lane] for lane, end in enumerate(ends))
        return [columns[:, lane * room : end].tolist() for lane, end in enumerate(ends)], sizes

    def in_the_general_way(self) -> Any:
        sums, counts = self._results()
        runs = np.zeros((5, LANES * len(self.tags) + 1), np.int64)
        lanes = self.lanes()
        fingerprint.fold_records(self.data, self.starts, self.ends, lanes, sums)
        found = select_runs(self.starts, self.ends, self.tags, lanes, self.carried, 0, 50, counts, *runs)
        runs = runs[:, :found]
        return [sums.tolist(), counts.tolist(), [runs[1:, runs[0] == lane].tolist() for lane in range(LANES)]]

    def lanes(self) -> Any:
        records = self.tags <= frames.TAG_RECORD
        times, values = np.empty(len(self.tags), np.int64), np.empty(len(self.tags), np.int64)
        frames.element_times(self.data, self.starts, self.tags, times, values)
        key = (NAMES[self.kind],)
        groups = key_groups(
            parse_type(TYPES[self.kind][0]), key, self.data, values[records], self.ends[records], GROUPS
        )
        lanes = np.full(len(self.tags), -1, np.int64)
        lanes[records] = self.lane_of[groups]
        return lanes

    def stretches_of_windows(self) -> tuple[Any, Any]:
        """What the stretches of windows come to, which are noted when lanes are known."""
        counts = self._results()[1]
        found = np.empty((len(self.tags), element_runs.STRETCH_FIELDS), np.int64)
        count = element_runs.note_stretches(self.ends, self.tags, self.lanes(), 0, 50, LANES, found)
        return self._placed(found[:count], counts)[0], counts.tolist()


@pytest.mark.parametrize("kind", TYPES)
@settings(deadline=None, max_examples=60)
@given(drawn=st.data())
def test_one_pass_and_the_general_way_find_the_same(kind: str, drawn: st.DataObject) -> None:
    keys = drawn.draw(st.lists(KEYS[kind], min_size=1, max_size=3))
    one = st.builds(
        lambda key, rest, time: record(kind, key, rest, time),
        st.sampled_from(keys),
        st.text("xyz", max_size=300),
        st.none() | LONG,
    )
    elements = drawn.draw(st.lists(one | st.sampled_from([WATERMARK, MARKER]), max_size=12))
    size = sum(len(element) + 4 for element in elements)
    scanned = Scanned(kind, elements, drawn.draw(st.integers(0, size)), drawn.draw(st.integers(1, 80)))
    sums, counts, runs = scanned.in_the_general_way()
    assert scanned.in_one_pass() == (len(elements), [sums, counts, runs])
    assert scanned.stretches_of_windows() == (runs, counts)


@pytest.mark.seed("001-22")
@pytest.mark.parametrize("chunks", range(1, 10))
def test_records_cut_at_every_byte_into_up_to_nine_chunks_over_both_states_are_sorted_alike(chunks: int) -> None:
    """Also inside the length field and the key, and with both states in one element."""
    elements = [
        record("STRING", "one", ""),
        WATERMARK,
        record("STRING", "twölve", "r", 5),
        MARKER,
        record("STRING", ""),
    ]
    scanned = Scanned("STRING", elements, page=7)
    data, expected = scanned.data.tobytes(), (len(elements), scanned.in_the_general_way())
    for first in range(len(data) + 1):
        cuts = [min(first + n, len(data)) for n in range(chunks - 1)]
        pieces = [data[a:b] for a, b in pairwise([0, *cuts, len(data)])]
        for inputs in {0, 1, chunks // 2, chunks}:
            scanned.channel, scanned.page = channel(pieces, inputs), ReadPage(7)
            assert scanned.in_one_pass() == expected


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("LONG", b"\x01" + bytes(7)),
        ("INT", b"\x01" + bytes(8 + 3)),
        ("STRING", b"\x01" + bytes(4) + b"\x00"),
        ("STRING", b"\x01" + bytes(4) + b"\x05abc"),
        ("STRING", b"\x01" + bytes(4) + b"\x03a\x80"),
        ("STRING", b"\x01" + bytes(4) + b"\x03a\xff\xff\xff"),
        ("BIGINT", b"\x01" + struct.pack(">i", 24) + bytes(24)),
        ("BIGINT", b"\x01" + struct.pack(">i", 32) + bytes(24)),
        ("BIGINT", b"\x01" + struct.pack(">i", 32) + b"\x09" + bytes(31)),
        ("BIGINT", b"\x01\x00\x00"),
    ],
)
def test_a_record_whose_key_cannot_be_read_is_left_to_the_general_way(kind: str, bad: bytes) -> None:
    good = record(kind, {"STRING": "one"}.get(kind, 1))
    for page in (1, 7, 4096):
        done, (sums, _, _) = Scanned(kind, [good, WATERMARK, bad, good], page=page).in_one_pass()
        assert done == 2
        assert sum(row[3] for row in sums) == 1


@pytest.mark.parametrize("page", [1, 5, 16, 4096])
@pytest.mark.parametrize(
    "bad",
    [
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\x07",
        b"\x00\x00\x00\x02\x02\x00",
        b"\x00\x00\x10\x00\x01",
        b"\x00\x00",
    ],
)
def test_a_frame_that_cannot_be_one_is_left_to_the_general_way_and_its_bytes_are_not_counted(
    bad: bytes, page: int
) -> None:
    good = record("LONG", 1)
    scanned = Scanned("LONG", [good, good], page=page)
    whole = scanned.channel.size
    scanned.channel = channel([scanned.data.tobytes() + bad])
    assert scanned.in_one_pass()[0] == 2
    assert scanned.page.counts.bytes == whole


def test_a_frame_that_is_longer_than_what_is_held_is_left_to_the_general_way() -> None:
    good = record("LONG", 1)
    scanned = Scanned("LONG", [good, record("LONG", 2, "x" * sorting.HELD), good])
    assert scanned.in_one_pass()[0] == 1
    assert scanned.page.counts.bytes == len(good) + 4
    assert scanned.page.counts.spanning == 0, "it is counted where it is put together"


def test_stretches_get_room_when_they_need_it() -> None:
    elements = [record("LONG", key % 50, "") for key in range(5000)]
    scanned = Scanned("LONG", elements, page=4096)
    assert scanned.in_one_pass() == (len(elements), scanned.in_the_general_way())


@pytest.mark.seed("001-11")
def test_only_what_crosses_a_border_between_two_fillings_spans() -> None:
    """Once each, however many fillings it takes."""
    exact = record("LONG", 1, "x" * 50)
    size = len(exact) + 4
    for page, spanning in ((size, 0), (size + 1, 4), (size // 2, 5), (5 * size, 0)):
        scanned = Scanned("LONG", [exact] * 5, page=page)
        scanned.in_one_pass()
        assert scanned.page.counts.spanning == spanning


def test_a_key_group_that_no_lane_has_is_left_to_the_general_way() -> None:
    scanned = Scanned("LONG", [record("LONG", 1), record("LONG", 2)])
    scanned.lane_of[:] = -1
    assert scanned.in_one_pass()[0] == 0


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("TUPLE<STRING, LONG>", "f1"),
        ("TUPLE<NULLABLE<LONG>, INT>", "f0"),
        ("ROW<a LONG, b LONG>", "a"),
        ("POJO<a LONG, b LONG>", "a"),
        ("TUPLE<DOUBLE, INT>", "f0"),
        ("ROWDATA<k STRING>", "k"),
        ("TUPLE<TUPLE<LONG, INT>, INT>", "f0"),
    ],
)
def test_a_key_that_has_to_be_looked_for_has_no_place(text: str, key: str) -> None:
    assert key_place(parse_type(text), (key,)) is None


def test_two_fields_have_no_place() -> None:
    assert key_place(parse_type("TUPLE<LONG, LONG>"), ("f0", "f1")) is None
