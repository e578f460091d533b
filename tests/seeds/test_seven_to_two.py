"""7 → 2 with two keyed inputs through the real phases, over and over; ``make seeds`` does it by the thousand."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from cdr_core.drain import task
from cdr_core.drain.drain_state import DrainState, Longs
from cdr_core.drain.segment_elements import SegmentElements
from cdr_core.metadata import Phase
from cdr_core.spill.set_reader import Segment
from tests.seeds import seven_to_two
from tests.seeds.__main__ import as_line, journal_of, sentence, summary
from tests.seeds.expected import Compared, compare
from tests.seeds.seven_to_two import Crash, Run, Source, choose, run, sources

RUNS = 20
MOST_BROKEN = 40


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, ...]:
    return sources(tmp_path_factory.mktemp("seven"))


@pytest.mark.parametrize("seed", range(RUNS))
def test_seven_to_two_with_crashes_and_checkpoints_loses_nothing(
    checkpoints: tuple[Source, ...], tmp_path: Path, seed: int
) -> None:
    """002-12, 002-13: real and generated checkpoints in turn; every record once, at its owner, in order."""
    done = run(seed, choose(seed, checkpoints), tmp_path)
    assert done.is_exact, done


class Repeats(DrainState):
    """Cuts say what was delivered before the last segment, whose rows are in the files already."""

    _before: dict[str, Any] | None = None

    def taken(self, segment: Segment, skip: Longs | None) -> SegmentElements:
        self._before = super().to_columns()
        return super().taken(segment, skip)

    def to_columns(self) -> dict[str, Any]:
        return self._before or super().to_columns()


class Forgets(DrainState):
    """Cuts say that one element more of each channel was delivered."""

    def to_columns(self) -> dict[str, Any]:
        columns = super().to_columns()
        return {**columns, "delivered": columns["delivered"] + 1}


def three_crashes(draw: Random) -> list[Crash]:
    return [Crash(Phase.DRAIN, seconds=draw.uniform(0.1, 0.6)) for _ in range(3)]


@pytest.mark.parametrize("broken", [Repeats, Forgets])
def test_the_same_runs_catch_a_drain_whose_cut_is_torn(
    checkpoints: tuple[Source, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: type[DrainState]
) -> None:
    """002-12: one that repeats and one that forgets; the ledger stops either before anything is published.

    Every run dies three times while it drains, or one would wait long for the worst moment.
    """
    monkeypatch.setattr(task, "DrainState", broken)
    monkeypatch.setattr(seven_to_two, "SIZES", (("1KiB", 16),))
    monkeypatch.setattr(seven_to_two, "PAUSES", (0.001,))
    monkeypatch.setattr(seven_to_two, "bad_luck", three_crashes)
    caught: list[Run] = []
    for seed in range(1, MOST_BROKEN):
        done = run(seed, choose(seed, checkpoints), tmp_path)
        assert done.compared.is_exact, "what was published must be right whatever is broken"
        if done.failure is not None:
            caught.append(done)
            break
    assert caught, "not one of the runs noticed"


def test_whatever_is_wrong_with_a_table_is_counted(checkpoints: tuple[Source, ...]) -> None:
    """002-13: a row that is missing, there twice, with another's bytes, at another subtask, or out of order."""
    source = checkpoints[-1]
    rows = [
        {**place._asdict(), "raw": record.raw, "new_down": record.owner(2)}
        for place, record in sorted(source.records.items())
    ]
    assert compare(rows, source.records, 2) == Compared(0, 0, 0)
    assert compare(rows[1:], source.records, 2).lost == 1
    assert compare([*rows, rows[0]], source.records, 2).duplicated == 1
    assert compare([{**rows[0], "raw": b""}, *rows[1:]], source.records, 2).misplaced == 1
    elsewhere = {**rows[0], "new_down": 1 - rows[0]["new_down"]}
    assert compare([elsewhere, *rows[1:]], source.records, 2).misplaced == 1
    assert compare(rows[::-1], source.records, 2).misplaced > 0


def test_a_bound_stands_beside_a_zero_and_beside_nothing_else() -> None:
    """002-13: three divided by the runs; a run that failed counts as one that went wrong."""
    fine = [Run(seed, "x", 10, 1, 1, Compared(0, 0, 0)) for seed in range(1500)]
    value = summary(fine, 2, 1, 0)
    assert value["bad_run_rate_95_percent_upper_bound"] == pytest.approx(0.002)
    assert "fewer than 0.20 %" in sentence(value).replace("%", " %")
    for bad in (Run(7, "x", 10, 1, 1, Compared(1, 0, 0)), Run(7, "x", 10, 1, 1, Compared(0, 0, 0), "why")):
        value = summary([*fine, bad], 2, 1, 0)
        assert value["bad_run_rate_95_percent_upper_bound"] is None
        assert value["bad_seeds"] == [7]


def test_an_interrupted_command_goes_on_where_it_was(tmp_path: Path) -> None:
    """002-13: only whole lines of wanted runs count, each seed once."""
    runs = [Run(seed, "x", 10, 1, 1, Compared(0, seed, 0), "why" if seed == 3 else None, 0.5) for seed in range(5)]
    file = tmp_path / "journal"
    lines = [as_line(each) for each in (*runs, runs[2])]
    file.write_text("\n".join([*lines, lines[4][:20]]))
    assert journal_of(file, 1, 3) == [runs[1], runs[2], runs[3]]
    assert journal_of(tmp_path / "none", 0, 5) == []
