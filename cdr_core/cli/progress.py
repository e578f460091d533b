"""Progress on stderr: bars on a terminal, a line per step in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from cdr_core.phases.driver import Progress as PhaseProgress


class PhaseBars:
    """One bar per phase while it runs; callable as a phase's report."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._bars: Progress | None = None
        if sys.stderr.isatty():
            self._bars = Progress(
                TextColumn("{task.description:>7}"),
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f} units  {task.fields[records]:,} records"),
                TimeElapsedColumn(),
                console=self._console,
            )

    def __enter__(self) -> PhaseBars:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._bars:
            self._bars.stop()

    def say(self, text: str) -> None:
        """A line beside the bars."""
        self._console.print(text, highlight=False, markup=False)

    def __call__(self, progress: PhaseProgress) -> None:
        self._started.setdefault(progress.phase, time.monotonic())
        if self._bars is None:
            self._line(progress)
            return
        if progress.phase not in self._tasks:
            self._tasks[progress.phase] = self._bars.add_task(progress.phase, total=progress.units_total, records=0)
        self._bars.update(self._tasks[progress.phase], completed=progress.units_done, records=progress.records)

    def _line(self, progress: PhaseProgress) -> None:
        seconds = time.monotonic() - self._started[progress.phase]
        units = f"{progress.units_done}/{progress.units_total} units"
        self.say(f"{progress.phase}: {units}, {progress.records:,} records, {seconds:.1f} s")
