"""Reading through one page: elements do not depend on how bytes are cut, and the page's own rules hold."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from cdr_core.errors import CorruptChannelState, IllegalState
from cdr_core.flink import paged_reader as paged
from cdr_core.flink.paged_reader import SPOOLED_FROM, paged_windows
from cdr_core.flink.read_page import PageCounts, ReadPage
from cdr_core.flink.virtual_channel import ChannelBytes
from tests.kernels.streams import STREAM, WHOLE, channel, frame, record

KIB = 1024


def read(source: ChannelBytes, page: ReadPage, spool: Path) -> list[bytes]:
    found: list[bytes] = []
    with closing(paged_windows(source, 0, source.size, 0, page, spool)) as reading:
        for window in reading:
            assert not page.in_use, "the page goes back before a window is handed out"
            assert window.position == len(found)
            found += [window.data[a:b].tobytes() for a, b in zip(window.starts, window.ends, strict=True)]
            if len(found) == 1:
                assert window.base == 0
    return found


@pytest.mark.seed("001-22")
@pytest.mark.parametrize("chunks", range(1, 10))
def test_records_cut_at_every_byte_into_up_to_nine_chunks_over_both_states_are_whole_again(
    tmp_path: Path, chunks: int
) -> None:
    """Also inside the length field, and with the border of input and output state at every cut."""
    data = b"".join(STREAM)
    page = ReadPage(7)
    for first in range(len(data) + 1):
        cuts = [min(first + n, len(data)) for n in range(chunks - 1)]
        pieces = [data[a:b] for a, b in pairwise([0, *cuts, len(data)])]
        for inputs in range(chunks + 1):
            assert read(channel(pieces, inputs), page, tmp_path) == WHOLE
    assert page.counts.allocations == 1


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 14, 15, 64, 80, 81, 4096])
def test_any_page_size_gives_the_same_elements_and_every_byte_passes_it(tmp_path: Path, size: int) -> None:
    data = b"".join(STREAM)
    page = ReadPage(size)
    assert read(channel([data[:9], data[9:]], 1), page, tmp_path) == WHOLE
    assert page.counts.bytes == len(data)
    assert page.counts.allocations == 1


@pytest.mark.seed("001-11")
def test_a_record_that_ends_exactly_with_the_page_does_not_span(tmp_path: Path) -> None:
    """The page is given back both at the end of a record and inside one."""
    exact = record(b"x" * (16 - 5))
    page = ReadPage(16)
    assert read(channel([exact * 3]), page, tmp_path) == [exact[4:]] * 3
    assert page.counts == PageCounts(allocations=1, bytes=48)
    crossing = record(b"x" * (17 - 5))
    assert read(channel([crossing * 3]), page, tmp_path) == [crossing[4:]] * 3
    assert page.counts == PageCounts(allocations=1, bytes=48 + 51, spanning=3)


@pytest.mark.parametrize("batch", [16, 50, 4096])
def test_batches_of_any_size_hand_on_the_same_elements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(paged, "BATCH", batch)
    stream, whole = STREAM * 30, WHOLE * 30
    assert read(channel([b"".join(stream)]), ReadPage(16), tmp_path) == whole


@pytest.mark.seed("001-12")
@pytest.mark.parametrize("size", [SPOOLED_FROM - 1, SPOOLED_FROM, SPOOLED_FROM + 1, 6 * KIB * KIB])
def test_a_record_from_five_megabytes_on_has_a_file_of_its_own_while_it_is_looked_at(tmp_path: Path, size: int) -> None:
    """6 MB over 4 KiB pages survives, between small records, and its file is removed."""
    big = record(np.random.default_rng(7).bytes(size - 5))
    assert len(big) == size
    page = ReadPage(4 * KIB)
    source = channel([STREAM[0] + big[:3], big[3:2_000_001], big[2_000_001:] + big + STREAM[1]], 1)
    files: list[int] = []
    found: list[bytes] = []
    for window in paged_windows(source, 0, source.size, 0, page, tmp_path):
        found += [window.data[a:b].tobytes() for a, b in zip(window.starts, window.ends, strict=True)]
        files.append(len(list(tmp_path.iterdir())))
    assert found == [WHOLE[0], big[4:], big[4:], WHOLE[1]]
    spooled = 2 if size >= SPOOLED_FROM else 0
    assert page.counts.spooled == sum(files) == spooled
    assert page.counts.allocations == 1
    assert page.counts.bytes == source.size
    assert list(tmp_path.iterdir()) == []


@pytest.mark.seed("001-13")
def test_an_error_while_a_long_record_is_looked_at_removes_its_file_and_gives_the_page_back(tmp_path: Path) -> None:
    """Whatever goes wrong, nothing stays behind."""
    source = channel([record(bytes(SPOOLED_FROM))])
    page = ReadPage(4 * KIB)

    def fail_with_the_first() -> None:
        with closing(paged_windows(source, 0, source.size, 0, page, tmp_path)) as reading:
            next(reading)
            assert len(list(tmp_path.iterdir())) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_with_the_first()
    assert list(tmp_path.iterdir()) == []
    assert not page.in_use


@pytest.mark.parametrize("body", [b"\x07" + bytes(SPOOLED_FROM), b"\x02" + bytes(SPOOLED_FROM)])
def test_a_long_frame_that_cannot_be_one_is_an_error_and_leaves_no_file(tmp_path: Path, body: bytes) -> None:
    source = channel([STREAM[0] + frame(body)])
    with pytest.raises(CorruptChannelState) as caught:
        read(source, ReadPage(4 * KIB), tmp_path)
    assert caught.value.where.offset == len(STREAM[0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [1, 5, 16, 4096])
@pytest.mark.parametrize("left", range(1, len(STREAM[-1])))
def test_bytes_left_over_and_impossible_frames_are_errors_with_their_offset(
    tmp_path: Path, left: int, size: int
) -> None:
    page = ReadPage(size)
    with pytest.raises(CorruptChannelState, match="the channel ends inside a record") as caught:
        read(channel([b"".join(STREAM)[:-left]]), page, tmp_path)
    assert caught.value.where.offset == len(b"".join(STREAM[:-1]))
    assert not page.in_use


@pytest.mark.parametrize("bad", [frame(b"\x04\0\0\0\7"), frame(b"\5\2")])
@pytest.mark.parametrize("size", [1, 5, 4096])
def test_a_status_or_flag_that_flink_does_not_have_is_an_error_with_its_offset(
    tmp_path: Path, bad: bytes, size: int
) -> None:
    with pytest.raises(CorruptChannelState, match="neither") as caught:
        read(channel([STREAM[0] + bad + STREAM[1]]), ReadPage(size), tmp_path)
    assert caught.value.where.offset == len(STREAM[0])


@pytest.mark.seed("000-19", "001-03", "001-05")
def test_nothing_is_allocated_before_the_first_request_and_the_same_memory_serves_all() -> None:
    """Giving back flips a flag, it frees nothing."""
    page = ReadPage(4 * KIB)
    assert page.counts.allocations == 0
    first = page.take()
    assert len(first) == 4 * KIB
    assert page.in_use
    page.give_back(10)
    assert not page.in_use
    assert page.take() is first
    page.give_back(20)
    assert page.counts == PageCounts(allocations=1, bytes=30)


@pytest.mark.seed("001-04")
def test_asking_for_the_page_while_it_is_out_is_an_error() -> None:
    """Never a second page, never the same memory twice."""
    page = ReadPage(4 * KIB)
    page.take()
    with pytest.raises(IllegalState, match="still in use"):
        page.take()
    assert page.counts.allocations == 1


@pytest.mark.seed("001-15")
def test_a_closed_page_is_free_and_cannot_be_taken() -> None:
    """Freed on close, also while it is out."""
    page = ReadPage(4 * KIB)
    page.take()
    page.close()
    page.close()
    assert not page.in_use
    with pytest.raises(IllegalState, match="closed"):
        page.take()


@pytest.mark.parametrize("size", [0, -1])
def test_a_page_without_room_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="cannot be filled"):
        ReadPage(size)


@pytest.mark.parametrize("bad", [frame(b"\x07"), b"\xff\xff\xff\xff", b"\x00\x00\x10\x00\x01"])
@pytest.mark.parametrize("size", [1, 16, 4096])
def test_elements_before_a_frame_that_cannot_be_one_are_handed_on_first(tmp_path: Path, bad: bytes, size: int) -> None:
    """One of them may have a fault of its own, and the first fault is the one to be told of."""
    source, found = channel([b"".join(STREAM) + bad]), list[int]()
    reading = paged_windows(source, 0, source.size, 0, ReadPage(size), tmp_path)
    with pytest.raises(CorruptChannelState) as caught:
        found.extend(len(window.starts) for window in reading)
    assert sum(found) == len(STREAM)
    assert caught.value.where.offset == len(b"".join(STREAM))
