"""Framing and fingerprinting in one pass finds what the two passes find, in sound bytes and in damaged ones."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cdr_core.kernels import fingerprint, frame_tally, frames

OTHERS = (b"\2" + bytes(8), b"\3" + bytes(28), b"\4" + bytes(4), b"\4" + b"\xff" * 4, b"\5\1", b"\6" + bytes(12))
ELEMENTS = st.one_of(
    st.builds(lambda size, seed: b"\1" + seed * size, st.integers(0, 700), st.binary(min_size=1, max_size=1)),
    st.builds(lambda size: b"\0" + bytes(8 + size), st.integers(0, 700)),
    st.sampled_from(OTHERS),
)

Found = tuple[int, int, list[int], list[int], int, int]


def framed(elements: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(element)) + element for element in elements)


def two_passes(data: np.ndarray, most: int) -> Found:
    starts, ends, tags = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int8)
    found, used, _ = frames.scan_frames(data, len(data), starts, ends, tags, len(data))
    sums, kinds = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64), np.zeros(frames.TAGS, np.int64)
    spoke = fingerprint.fold_elements(data, starts[:found], ends[:found], tags[:found], sums, kinds)
    places = [-1 if each < 0 else int(starts[each]) for each in spoke]
    return found, used, sums[0].tolist(), kinds.tolist(), places[0], places[1]


def one_pass(data: np.ndarray, most: int) -> Found:
    sums, kinds = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64), np.zeros(frames.TAGS, np.int64)
    found, used, watermark, status = frame_tally.tally_frames(data, len(data), most, sums, kinds)
    return found, used, sums[0].tolist(), kinds.tolist(), watermark, status


@settings(deadline=None, max_examples=200)
@given(st.lists(ELEMENTS, max_size=12), st.integers(0, 14))
def test_one_pass_finds_what_two_find(elements: list[bytes], most: int) -> None:
    data = np.frombuffer(framed(elements), np.uint8)
    assert one_pass(data, most) == two_passes(data, most)
    if most >= len(elements):
        assert one_pass(data, most)[:2] == (len(elements), len(data))


@settings(deadline=None, max_examples=300)
@given(
    st.lists(ELEMENTS, min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=3),
    st.integers(0, 1 << 16),
)
def test_it_stops_at_the_same_frame_that_cannot_be_one(
    elements: list[bytes], changes: list[tuple[int, int]], cut: int
) -> None:
    damaged = bytearray(framed(elements))
    for place, value in changes:
        damaged[place % len(damaged)] = value
    data = np.frombuffer(bytes(damaged[: cut % (len(damaged) + 1)]), np.uint8)
    assert one_pass(data, 20) == two_passes(data, 20)


def test_a_fold_goes_on_where_the_last_one_ended() -> None:
    parts = [framed([b"\1" + bytes([number]) * 300] * 3) for number in range(4)]
    sums, kinds = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64), np.zeros(frames.TAGS, np.int64)
    for part in parts:
        frame_tally.tally_frames(np.frombuffer(part, np.uint8), len(part), 3, sums, kinds)
    assert (sums[0].tolist(), kinds.tolist()) == one_pass(np.frombuffer(b"".join(parts), np.uint8), 12)[2:4]
