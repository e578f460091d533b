"""The five tasks on the terminal while they run: the state, the elapsed time and the last message of each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdr_airflow.embedded.console import Console

if TYPE_CHECKING:
    from rich.table import Table

TASKS = ("read", "filter", "spill", "drain", "commit")
FINISHED = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})
SIGNS = {"success": "[green]✓[/]", "failed": "[red]✗[/]", "running": "[cyan]▸[/]", "up_for_retry": "[yellow]↻[/]"}


@dataclass(slots=True)
class Row:
    """The last known state of one task."""

    state: str = ""
    line: str = ""
    begun: float | None = None
    seconds: float = 0.0

    @property
    def elapsed(self) -> float:
        return self.seconds if self.begun is None else self.seconds + time.monotonic() - self.begun


class Board:
    """Follows events (``task`` with ``state`` and/or ``line``) and shows where the run is."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.rows = {task: Row() for task in TASKS}
        self.errors: list[str] = []

    def follow(self, events: Iterable[Mapping[str, Any]]) -> str:
        """Show every event until there are no more; return the run's final state, empty if no event had it."""
        if not self._console.progress.is_terminal:
            return self._take_all(events)
        from rich.live import Live

        with Live(get_renderable=self._table, console=self._console.progress, refresh_per_second=8):
            return self._take_all(events)

    def _take_all(self, events: Iterable[Mapping[str, Any]]) -> str:
        state = ""
        for event in events:
            if task := event.get("task"):
                self._take(task, event)
            else:
                state = str(event.get("state", ""))
        return state

    def _take(self, task: str, event: Mapping[str, Any]) -> None:
        row = self.rows[task]
        if (state := event.get("state")) and state != row.state:
            self._move(row, str(state))
            if state != "running" and not self._console.progress.is_terminal:
                self._console.note(f"{task}: {state} after {row.elapsed:.1f} s")
        if line := _worth_showing(task, event):
            row.line = line
            if not self._console.progress.is_terminal:
                self._console.note(f"{task}: {line}")
        if state in {"failed", "up_for_retry"} and event.get("line"):
            self.errors.append(f"{task}: {event['line']}")

    def _move(self, row: Row, state: str) -> None:
        if state == "running":
            row.begun = time.monotonic()
        elif row.begun is not None:
            row.seconds, row.begun = row.elapsed, None
        row.state = state

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=False, padding=(0, 1))
        for task, row in self.rows.items():
            seconds = f"{row.elapsed:.1f} s" if row.state else ""
            line = "" if row.line.startswith("{") else row.line
            table.add_row(
                SIGNS.get(row.state, "[dim]·[/]"), task, seconds, Text(line, style="dim", overflow="ellipsis")
            )
        return table


def _worth_showing(task: str, event: Mapping[str, Any]) -> str:
    """Return the task's message, without the task's name in front and without its result, which is for programs."""
    line = str(event.get("line", ""))
    return "" if line.startswith("{") else line.removeprefix(f"{task}: ")
