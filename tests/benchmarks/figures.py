"""What a benchmark finds: figures, each beside a baseline that was measured in the same run, and what is asked of it.

Machines differ and are busy with other things, so nothing is held to an absolute number alone: the measured and the
baseline take turns, and what counts is how the one stands to the other.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure's ratio to its baseline has to be: at least ``low``, at most ``high``; ``None`` = no such bound."""

    low: float | None = None
    high: float | None = None

    def holds(self, ratio: float) -> bool:
        return (self.low is None or ratio >= self.low) and (self.high is None or ratio <= self.high)

    @property
    def text(self) -> str:
        bounds = [f"≥ {self.low:g}"] if self.low is not None else []
        return ", ".join(bounds + ([f"≤ {self.high:g}"] if self.high is not None else []))


NO_BAR = Bar()


@dataclass(frozen=True, slots=True)
class Figure:
    """``measured`` and ``baseline`` hold a value per run, in the same ``unit``; ``detail`` is what else was seen.

    ``goal`` says in words what is asked besides the ratio, and ``reached`` whether it was.
    """

    name: str
    what: str
    beside: str
    unit: str
    measured: tuple[float, ...]
    baseline: tuple[float, ...]
    bar: Bar = NO_BAR
    goal: str = ""
    reached: bool | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return quotient(statistics.median(self.measured), statistics.median(self.baseline))

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and the largest ratio of a run and the baseline it took turns with."""
        each = [quotient(*pair) for pair in zip(self.measured, self.baseline, strict=True)]
        return min(each), max(each)

    @property
    def verdict(self) -> str:
        asked = [self.bar.holds(self.ratio)] if self.bar != NO_BAR else []
        asked += [self.reached] if self.reached is not None else []
        return "" if not asked else "held" if all(asked) else "missed"

    def to_json(self) -> dict[str, Any]:
        low, high = self.spread
        found = {
            "median": statistics.median(self.measured),
            "baseline_median": statistics.median(self.baseline),
            "ratio": self.ratio,
            "ratio_min": low,
            "ratio_max": high,
            "verdict": self.verdict,
        }
        return asdict(self) | {"bar": asdict(self.bar), "asked": self.bar.text} | found


def quotient(value: float, baseline: float) -> float:
    return value / baseline if baseline else float(value != 0)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a run handles, in bytes. ``large`` can be chosen, because not every disk has room for it."""

    buffer: int
    checkpoint: int
    small: int
    big: int
    large: int
    channel: int
    bound: int
    budget: int


EARNEST = Sizes(
    buffer=256 << 20,
    checkpoint=430_000_000,
    small=100_000_000,
    big=2_000_000_000,
    large=4_000_000_000,
    channel=10_000_000_000,
    bound=800_000_000,
    budget=16 << 20,
)
TINY = Sizes(
    buffer=400_000,
    checkpoint=600_000,
    small=200_000,
    big=400_000,
    large=600_000,
    channel=600_000,
    bound=400_000,
    budget=16 << 20,
)
"""Only shows that everything runs and reports."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What a group of benchmarks works with. ``scratch`` is its own and removed afterwards."""

    scratch: Path
    sizes: Sizes
    runs: int
    tiny: bool
    memory: Path
    say: Callable[[str], None]

    def processes(self, count: int) -> int:
        """Worker processes of a figure: none where only this process is used, because starting them takes seconds."""
        return 0 if self.tiny else count

    @property
    def before(self) -> str:
        """The old parallelism of a rescaled checkpoint."""
        return "3" if self.tiny else "16"

    @property
    def after(self) -> str:
        """The new one."""
        return "2" if self.tiny else "12"

    def taking_turns(
        self, first: Callable[[], float], second: Callable[[], float], *, runs: int = 0, warm: bool = True
    ) -> tuple[list[float], list[float]]:
        """Both, one after the other, as many times as asked, after one round that is not counted."""
        if warm and not self.tiny:
            first(), second()
        pairs = [(first(), second()) for _ in range(runs or self.runs)]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def figure(self, figure: Figure) -> Figure:
        """Say what was found. What a tiny run finds means nothing, so nothing is asked of it."""
        if self.tiny:
            figure = replace(figure, bar=NO_BAR, goal="", reached=None)
        low, high = figure.spread
        asked = "; ".join(part for part in (figure.bar.text, figure.goal) if part)
        self.say(
            f"{figure.name:<28} {figure.ratio:8.3f} × {figure.beside} ({low:.3f} to {high:.3f})"
            + (f"   {figure.verdict}: {asked}" if asked else "")
        )
        return figure


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def core_seconds(work: Callable[[], object]) -> float:
    """Processor time of work that waits for nothing: how fast one core does it, also while others want that core."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def speeds(size: int, times: Sequence[float]) -> tuple[float, ...]:
    """MB/s."""
    return tuple(size / each / 1e6 for each in times)


def load_average() -> list[float]:
    return [round(value, 2) for value in os.getloadavg()]
