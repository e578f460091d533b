"""Output of the commands while they work: a spinner on a terminal, a line per step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console as RichConsole


class Console:
    """Progress on standard error, results on standard output."""

    def __init__(self) -> None:
        from rich.console import Console as RichConsole

        self.progress: RichConsole = RichConsole(stderr=True, highlight=False)
        self.result: RichConsole = RichConsole(highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show a step while the block runs, and how long it took."""
        begun = time.monotonic()
        if self.progress.is_terminal:
            with self.progress.status(f"{what} …"):
                yield
        else:
            self.note(f"{what} …")
            yield
        self.progress.print(f"[green]✓[/] {what} [dim]({time.monotonic() - begun:.1f} s)[/]")

    def note(self, text: str) -> None:
        """Print a line of progress unchanged, never wrapped."""
        self.progress.print(text, markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Print a line of the result unchanged."""
        self.result.print(text, markup=False)
