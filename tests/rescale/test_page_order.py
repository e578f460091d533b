"""The read page goes back before anybody looks at what was in it, and whatever fails while it is out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cdr_core.errors import Where
from cdr_core.flink.paged_reader import paged_windows
from cdr_core.flink.read_page import ReadPage
from cdr_core.flink.virtual_channel import Bytes, ChannelBytes, Part
from tests.rescale.inflight import frame

PAGE = 16
"""Bytes; a record takes 17, so every one of them spans."""


def part_of(data: bytes) -> Part:
    return Part(np.frombuffer(data, np.uint8), np.array([0]), np.array([len(data)]))


class Noting(ReadPage):
    """Notes how often it was taken and given back."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.taken, self.given = 0, 0

    def take(self) -> Bytes:
        memory = super().take()
        self.taken += 1
        return memory

    def give_back(self, used: int) -> None:
        super().give_back(used)
        self.given += 1


@pytest.mark.seed("001-11")
@pytest.mark.parametrize("records", [1, 3, 16])
def test_the_page_is_back_whenever_records_are_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    """Given back when its last record is whole or goes on in the next page, before the records are handed on."""
    monkeypatch.setattr("cdr_core.flink.paged_reader.BATCH", 32)
    data = b"".join(frame(number, number) for number in range(records))
    # Two parts, so that some pages lie in both of them.
    channel = ChannelBytes((part_of(data[:20]),), (part_of(data[20:]),), Where())
    page, seen = Noting(PAGE), 0
    for window in paged_windows(channel, 0, channel.size, 0, page, tmp_path):
        assert not page.in_use
        assert page.taken == page.given
        seen += len(window.starts)
    assert seen == records
    assert page.counts.bytes == len(data)
    assert page.counts.spanning == records


class Failing(ChannelBytes):
    """Fails in the middle of a page."""

    page: ReadPage
    calls = 0

    def copy(self, begin: int, end: int, target: Bytes, at: int = 0) -> None:
        assert self.page.in_use, "the error is to come while the page is out"
        self.calls += 1
        if self.calls == 2:
            raise ZeroDivisionError("injected")
        super().copy(begin, end, target, at)


@pytest.mark.seed("001-13")
def test_an_error_while_the_page_is_out_gives_it_back(tmp_path: Path) -> None:
    """The error gives it back without a close, and it can be taken again."""
    data = frame(1, 1) * 2
    pieces = [part_of(data[at : at + 9]) for at in range(0, len(data), 9)]  # no page lies in one of them
    channel = Failing(tuple(pieces), (), Where())
    channel.page = page = Noting(PAGE)
    with pytest.raises(ZeroDivisionError, match="injected"):
        list(paged_windows(channel, 0, channel.size, 0, page, tmp_path))
    assert (page.taken, page.given, page.in_use) == (2, 2, False)
    assert len(page.take()) == PAGE
