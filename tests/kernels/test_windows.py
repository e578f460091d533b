"""Framing across any cut: the elements of a virtual channel do not depend on how its bytes are chunked."""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdr_core.errors import CorruptChannelState
from cdr_core.flink.virtual_channel import ChannelBytes, windows
from tests.kernels.streams import STREAM, WHOLE, channel, frame, record


def elements(source: ChannelBytes, window: int) -> list[bytes]:
    found: list[bytes] = []
    for each in windows(source, 0, source.size, 0, window):
        assert each.position == len(found)
        found += [each.data[a:b].tobytes() for a, b in zip(each.starts, each.ends, strict=True)]
    return found


@pytest.mark.parametrize("cut", range(len(b"".join(STREAM)) + 1))
def test_a_cut_between_input_and_output_state_at_every_byte_changes_nothing(cut: int) -> None:
    data = b"".join(STREAM)
    assert elements(channel([data[:cut], data[cut:]], 1), 16) == WHOLE


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 79), max_size=8), st.integers(1, 200), st.integers(0, 9))
def test_any_chunks_and_any_window_give_the_same_elements(cuts: list[int], window: int, inputs: int) -> None:
    data = b"".join(STREAM)
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(borders)]
    assert elements(channel(pieces, min(inputs, len(pieces))), window) == WHOLE


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.integers(0, 79), max_size=8), st.lists(st.integers(0, 79), min_size=2, max_size=12), st.integers(0, 9)
)
def test_runs_are_gathered_from_any_chunks_and_across_both_states(
    cuts: list[int], borders: list[int], inputs: int
) -> None:
    data = b"".join(STREAM)[:79]
    pieces = [data[a:b] for a, b in pairwise([0, *sorted(cuts), len(data)])]
    source = channel(pieces, min(inputs, len(pieces)))
    starts, ends = (np.array(sorted(borders)[first : len(borders) // 2 * 2 : 2], np.int64) for first in (0, 1))
    expected = b"".join(data[a:b] for a, b in zip(starts, ends, strict=True))
    target = np.zeros(len(expected), np.uint8)
    assert source.gather(starts, ends, target) == len(expected)
    assert target.tobytes() == expected


@pytest.mark.parametrize(
    ("starts", "ends", "room"), [([0, 70], [5, 90], 90), ([0, 2], [5, 8], 90), ([-1], [3], 90), ([0, 10], [5, 20], 14)]
)
@pytest.mark.parametrize("inputs", [0, 1, 2])
def test_runs_that_leave_the_channel_run_backwards_or_do_not_fit_are_refused(
    starts: list[int], ends: list[int], room: int, inputs: int
) -> None:
    data = b"".join(STREAM)
    source = channel([data[:40], data[40:80]], inputs)
    with pytest.raises(ValueError, match=r"run|range"):
        source.gather(np.array(starts, np.int64), np.array(ends, np.int64), np.zeros(room, np.uint8))


def test_a_record_longer_than_the_window_is_read_whole() -> None:
    big = record(bytes(range(256)) * 4000)
    assert elements(channel([STREAM[0], big, STREAM[1]]), 64) == [WHOLE[0], big[4:], WHOLE[1]]


@pytest.mark.parametrize("left", range(1, len(STREAM[-1])))
def test_bytes_left_over_are_an_error_with_their_offset(left: int) -> None:
    data = b"".join(STREAM)[:-left]
    with pytest.raises(CorruptChannelState) as caught:
        elements(channel([data]), 1024)
    there = len(STREAM[-1]) - left
    held = f"{len(WHOLE[-1])} bytes are announced and {there - 4} are" if there >= 4 else f"{there} of the 4 bytes"
    assert f"the channel ends inside a record, {held}" in caught.value.what
    assert caught.value.where.offset == len(b"".join(STREAM[:-1]))
    assert caught.value.where.channel == 2


@pytest.mark.parametrize("length", [0, -1, -5, -(1 << 31)])
def test_a_length_that_no_record_has_is_not_taken_for_a_channel_that_ends_too_early(length: int) -> None:
    with pytest.raises(CorruptChannelState, match=f"an impossible record length of {length} "):
        elements(channel([STREAM[0] + struct.pack(">i", length)]), 1024)


@pytest.mark.parametrize(
    "bad",
    [frame(b"\x07"), struct.pack(">i", 0), struct.pack(">i", -5), frame(b"\x02short"), frame(b"\x00seconds")],
)
def test_a_frame_that_cannot_be_one_is_an_error_with_its_offset(bad: bytes) -> None:
    with pytest.raises(CorruptChannelState) as caught:
        elements(channel([STREAM[0] + bad + STREAM[1]]), 1024)
    assert caught.value.where.offset == len(STREAM[0])


@pytest.mark.parametrize("status", [1, -2, 7, 1 << 24, -(1 << 31)])
def test_a_watermark_status_that_flink_does_not_have_is_an_error_with_its_offset(status: int) -> None:
    with pytest.raises(CorruptChannelState, match="neither active") as caught:
        elements(channel([STREAM[0] + frame(b"\x04" + struct.pack(">i", status)) + STREAM[1]]), 1024)
    assert caught.value.where.offset == len(STREAM[0])


@pytest.mark.parametrize("flag", [2, 127, 128, 255])
def test_record_attributes_with_a_flag_that_is_no_boolean_are_an_error_with_their_offset(flag: int) -> None:
    with pytest.raises(CorruptChannelState, match="neither 0 nor 1") as caught:
        elements(channel([STREAM[0] + frame(bytes([5, flag])) + STREAM[1]]), 1024)
    assert caught.value.where.offset == len(STREAM[0])


def test_every_status_and_every_flag_that_flink_has_is_an_element() -> None:
    known = [frame(b"\x04" + struct.pack(">i", status)) for status in (0, -1)] + [frame(b"\5\0"), frame(b"\5\1")]
    assert elements(channel(known), 1024) == [each[4:] for each in known]
