"""The watermark of a commit: the minimum over those who have to be waited for, and never less than before."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cdr_core.commit.watermarks import WatermarkAligner
from cdr_core.drain.segment_elements import SegmentElements
from cdr_core.drain.watermark_state import ChannelWatermarks, InputWatermark
from cdr_core.errors import IllegalState
from cdr_core.kernels import frames
from cdr_core.planning.plan import PlanChannels, VirtualChannel
from tests.commit.coordination import entry

IDLE = "idle"


def align(*checkpoints: dict[int, object], subtasks: int = 2) -> list[int | None]:
    """Per checkpoint what each subtask says: a watermark, None, or (watermark, IDLE)."""
    aligner, found = WatermarkAligner(range(subtasks)), []
    for number, says in enumerate(checkpoints, start=1):
        entries = {}
        for subtask, word in says.items():
            watermark, idle = (word[0], True) if isinstance(word, tuple) else (word, False)
            assert watermark is None or isinstance(watermark, int)
            entries[subtask] = entry(subtask, number, watermark=watermark, idle=idle)
        found.append(aligner.align(number, entries))
    return found


@pytest.mark.seed("004-23", "E65")
def test_the_slowest_subtask_decides() -> None:
    """[1000, 0] gives 0, not 1000."""
    assert align({0: 1000, 1: 0}) == [0]
    assert align({0: 0, 1: 1000}) == [0]


@pytest.mark.seed("E65")
def test_a_subtask_without_a_watermark_holds_everybody_back() -> None:
    """Missing is the lowest."""
    assert align({0: 1000, 1: None}) == [None]
    assert align({0: 1000, 1: 5}, {0: 1001, 1: None}) == [5, 5]


def test_an_idle_subtask_holds_nobody_back() -> None:
    assert align({0: 1000, 1: (0, IDLE)}) == [1000]
    assert align({0: 1000, 1: (None, IDLE)}) == [1000]


def test_a_laggard_that_comes_back_does_not_pull_it_back() -> None:
    assert align({0: 1000, 1: (0, IDLE)}, {0: 1000, 1: 10}, {0: 2000, 1: 1500}) == [1000, 1000, 1500]


def test_when_all_are_idle_it_rises_once_to_the_highest_and_stays() -> None:
    assert align({0: (100, IDLE), 1: (300, IDLE)}, {0: (900, IDLE), 1: (300, IDLE)}) == [300, 300]
    assert align({0: (100, IDLE), 1: (300, IDLE)}, {0: 400, 1: (300, IDLE)}, {0: (400, IDLE), 1: (900, IDLE)}) == [
        300,
        400,
        900,
    ]
    assert align({0: (None, IDLE), 1: (None, IDLE)}) == [None]


def test_a_subtask_without_an_entry_is_where_it_was() -> None:
    """A checkpoint that was given up: only some have handed over."""
    assert align({0: 10, 1: 20}, {0: 30}, {0: 40, 1: 50}) == [10, 20, 40]
    assert align({0: 10}, {0: 30, 1: 20}) == [None, 20]


def test_it_is_asked_in_order() -> None:
    aligner = WatermarkAligner([0])
    aligner.align(2, {0: entry(0, 2, watermark=1)})
    with pytest.raises(IllegalState):
        aligner.align(2, {0: entry(0, 2, watermark=5)})


def test_it_never_falls_whatever_is_said() -> None:
    luck = random.Random(7)
    for _ in range(200):
        words: list[dict[int, object]] = [
            {s: luck.choice([luck.randrange(50), None, (luck.randrange(50), IDLE)]) for s in range(3)} for _ in range(9)
        ]
        found = [watermark for watermark in align(*words, subtasks=3) if watermark is not None]
        assert found == sorted(found)


WORDS: dict[bool | None, list[Any]] = {
    None: [],
    **{idle: [(frames.TAG_WATERMARK_STATUS, "i", -int(idle))] for idle in (False, True)},
}


def heard(channels: int, *words: tuple[int, int | None, bool | None]) -> ChannelWatermarks:
    """The input of a subtask with so many channels, after (channel, watermark, idle) came, in this order.

    ``None`` = that was not said.
    """
    owned = PlanChannels.of(VirtualChannel(0, up, 0, up, 10, (0,)) for up in range(channels))
    plan: Any = SimpleNamespace(channels=owned, exchanges=[SimpleNamespace(new_up=max(channels, 1))])
    found = ChannelWatermarks(plan, np.arange(channels))
    elements = [
        [*([] if watermark is None else [(frames.TAG_WATERMARK, "q", watermark)]), *WORDS[idle]]
        for _, watermark, idle in words
    ]
    bodies = [struct.pack(f">b{form}", tag, value) for piece in elements for tag, form, value in piece]
    ends = np.cumsum([0, *map(len, bodies)])
    data = np.frombuffer(b"".join(bodies) or b"\0", np.uint8)
    tags = np.array([tag for piece in elements for tag, _, _ in piece], np.int8)
    first = np.cumsum([0, *map(len, elements)])
    lines = np.array([channel for channel, _, _ in words], np.int64)
    found.take(SegmentElements(data, ends[:-1], ends[1:], tags, np.zeros(0, np.int64), lines, first))
    return found


def test_a_subtasks_own_watermark_is_that_of_its_channels_with_data() -> None:
    assert heard(2, (0, 1000, False), (1, 0, False)).of_input() == InputWatermark(0)
    assert heard(2, (0, 1000, False)).of_input() == InputWatermark(None), "the other one is still to come"
    assert heard(2, (0, 1000, False), (1, None, True)).of_input() == InputWatermark(1000)
    assert heard(2, (0, 7, True), (1, 9, True)).of_input() == InputWatermark(7, idle=True)
    assert heard(0).of_input() == InputWatermark(None, idle=True), "a subtask without data delays no other"
    assert heard(1, (0, 7, None), (0, 9, None)).of_input() == InputWatermark(9), "the last word of a channel counts"
    assert heard(1, (0, 7, True), (0, 9, False)).of_input() == InputWatermark(9), "it is active again"
    again = heard(2)
    again.restore(heard(2, (0, 7, True), (1, 5, False)).to_columns())
    assert again.of_input() == InputWatermark(5), "a cut keeps them"
