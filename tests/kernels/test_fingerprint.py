"""The fingerprint as it is written down in the kernel's docstring, against a second implementation."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cdr_core.audit.ledger import Tally
from cdr_core.kernels import fingerprint as kernel
from tests.kernels.naive import M, naive_hash
from tests.support.record_hash import record_hash


def fold(records: list[bytes]) -> Tally:
    data = np.frombuffer(b"".join(records) or b"\0", dtype=np.uint8)
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    starts = ends - np.array([len(record) for record in records], dtype=np.int64)
    sums = np.zeros((1, kernel.FOLD_COLUMNS), np.uint64)
    kernel.fold_records(data, starts, ends, np.zeros(len(records), np.int64), sums)
    return Tally.of_fold(sums[0])


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=70))
def test_the_hash_is_the_one_that_is_written_down(data: bytes) -> None:
    array = np.frombuffer(b"x" + data + b"y", dtype=np.uint8)
    assert record_hash(array, 1, len(data) + 1) == naive_hash(data)


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=12), st.integers(0, 12))
def test_parts_tallied_apart_join_to_the_whole(records: list[bytes], cut: int) -> None:
    assert fold(records[:cut]).then(fold(records[cut:])) == fold(records)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 1), st.integers(1, 700)), max_size=8), st.integers(0, 1 << 32))
def test_a_fold_is_the_sum_of_each_lanes_hashes_however_long_records_are(
    wanted: list[tuple[int, int]], seed: int
) -> None:
    """Long neighbours are hashed side by side, which must not show."""
    random = np.random.default_rng(seed)
    records = [random.bytes(length) for _, length in wanted]
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    starts = ends - np.array([len(record) for record in records], dtype=np.int64)
    sums = np.zeros((2, kernel.FOLD_COLUMNS), np.uint64)
    lanes = np.array([lane for lane, _ in wanted], np.int64)
    kernel.fold_records(np.frombuffer(b"".join(records) or b"\0", np.uint8), starts, ends, lanes, sums)
    for lane in (0, 1):
        mine = [record for record, (where, _) in zip(records, wanted, strict=True) if where == lane]
        hashes = [naive_hash(record) for record in mine]
        chain = 0
        for first, _ in hashes:
            chain = (chain * kernel.CHAIN + first) & M
        totals = [sum(first for first, _ in hashes) & M, sum(second for _, second in hashes) & M, chain]
        assert sums[lane].tolist() == [*totals, len(mine), sum(map(len, mine))]


def test_order_changes_the_chain_and_nothing_else() -> None:
    one, other = fold([b"a", b"b", b"c"]), fold([b"b", b"a", b"c"])
    assert one.same_records(other)
    assert one.chain != other.chain


def test_a_changed_missing_or_doubled_record_changes_the_fingerprint() -> None:
    whole = fold([b"first", b"second", b"third"])
    for altered in ([b"first", b"second"], [b"first", b"second", b"third", b"third"], [b"first", b"sec0nd", b"third"]):
        assert not whole.same_records(fold(altered))


def test_records_of_a_negative_lane_are_left_out() -> None:
    sums = np.zeros((2, kernel.FOLD_COLUMNS), np.uint64)
    data = np.frombuffer(b"abcd", dtype=np.uint8)
    starts = np.array([0, 1, 2], np.int64)
    kernel.fold_records(data, starts, starts + 1, np.array([0, -1, 1], np.int64), sums)
    assert [int(row[3]) for row in sums] == [1, 1]
    assert Tally.of_fold(sums[0]) == fold([b"a"])
    assert Tally.of_fold(sums[1]) == fold([b"c"])
