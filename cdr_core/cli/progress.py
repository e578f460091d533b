"""Progress on stderr: bars on a terminal, a line per step in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from cdr_core.metadata.progress import rest_s
from cdr_core.runtime.driver import Progress as PhaseProgress

LINE_SECONDS = 1.0
"""Seconds between lines of a log while a phase runs."""
UNITS_A_LINE = 8
"""Running units that such a line names."""


class PhaseBars:
    """One bar per phase while it runs; callable as a phase's report."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._next_line: dict[str, float] = {}
        self._bars: Progress | None = None
        if sys.stderr.isatty():
            self._bars = Progress(
                TextColumn("{task.description:>7}"),
                BarColumn(),
                DownloadColumn(),
                TextColumn("{task.fields[units]} units"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self._console,
            )

    def __enter__(self) -> PhaseBars:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._bars:
            self._bars.stop()

    def print(self, text: str) -> None:
        """Print a line beside the bars."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)  # a log has no width

    def __call__(self, progress: PhaseProgress) -> None:
        self._started.setdefault(progress.phase, time.monotonic())
        if self._bars is None:
            self._line(progress)
            return
        if progress.phase not in self._tasks:
            self._tasks[progress.phase] = self._bars.add_task(progress.phase, total=progress.bytes_total, units="")
        over = progress.units_done == progress.units_total
        self._bars.update(
            self._tasks[progress.phase],
            completed=progress.bytes,
            total=progress.bytes if over else progress.bytes_total,  # announced sizes are approximate
            units=f"{progress.units_done}/{progress.units_total}",
        )

    def _line(self, progress: PhaseProgress) -> None:
        now = time.monotonic()
        over = progress.units_done == progress.units_total
        if not over and now < self._next_line.get(progress.phase, 0.0):
            return
        self._next_line[progress.phase] = now + LINE_SECONDS
        seconds = now - self._started[progress.phase]
        units = f"{progress.units_done}/{progress.units_total} units"
        left = "" if over or not progress.bytes or not progress.bytes_total else f", about {_left(progress, seconds)} s"
        done = f"{progress.records:,} records, {progress.bytes:,} bytes"
        self.print(
            f"{progress.phase}: {units}, {done}, {seconds:.1f} s{left}{' left' if left else ''}{_units(progress)}"
        )


def _units(progress: PhaseProgress) -> str:
    """Return the running units that need longest, each with its progress."""
    slowest = sorted(progress.running.items(), key=lambda each: -(each[1].eta_s or 0.0))[:UNITS_A_LINE]
    texts = []
    for name, unit in slowest:
        percent = f"{min(100 * unit.bytes // unit.bytes_total, 100)} %" if unit.bytes_total else f"{unit.bytes:,} bytes"
        left = "" if unit.eta_s is None else f", about {unit.eta_s:.0f} s"
        texts.append(f"{name} {percent} ({unit.records:,} records{left})")
    return "; " + "; ".join(texts) if texts else ""


def _left(progress: PhaseProgress, seconds: float) -> int:
    """Return the seconds that the rest takes at this speed."""
    rest = max((progress.bytes_total or 0) - progress.bytes, 0)
    at_this_pace = rest_s(rest, progress.running.values())
    return round(seconds * rest / progress.bytes if at_this_pace is None else at_this_pace)
