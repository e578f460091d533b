"""The watermark of a commit: the minimum over those who have to be waited for, and never less than before."""

from __future__ import annotations

import random

import pytest

from cdr_core.commit.watermarks import WatermarkAligner
from cdr_core.errors import IllegalState
from cdr_core.phases.draining import said
from cdr_core.rescale.other_elements import Last
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


def test_the_slowest_subtask_decides() -> None:
    """004-23, E65: [1000, 0] gives 0, not 1000."""
    assert align({0: 1000, 1: 0}) == [0]
    assert align({0: 0, 1: 1000}) == [0]


def test_a_subtask_without_a_watermark_holds_everybody_back() -> None:
    """E65: missing is the lowest."""
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
    """I7"""
    luck = random.Random(7)
    for _ in range(200):
        words: list[dict[int, object]] = [
            {s: luck.choice([luck.randrange(50), None, (luck.randrange(50), IDLE)]) for s in range(3)} for _ in range(9)
        ]
        found = [watermark for watermark in align(*words, subtasks=3) if watermark is not None]
        assert found == sorted(found)


def test_a_subtasks_own_watermark_is_that_of_its_channels_with_data() -> None:
    channels = [(0, 0), (0, 1)]
    assert said.to_json(channels, {(0, 0): Last(1000), (0, 1): Last(0)})["watermark"] == 0
    assert said.to_json(channels, {(0, 0): Last(1000)})["watermark"] is None, "the other one is still to come"
    assert said.to_json(channels, {(0, 0): Last(1000), (0, 1): Last(None, True)})["watermark"] == 1000
    both = said.to_json(channels, {(0, 0): Last(7, True), (0, 1): Last(9, True)})
    assert (both["watermark"], both["idle"]) == (7, True)
    assert said.to_json([], {})["idle"] is True, "a subtask without data holds nobody back"
    kept = {(0, 0): Last(7, True), (2, 1): Last(None, None)}
    assert said.channels(said.to_json(channels, kept)) == kept
