"""One pass in this very process, and what can be compared with the five phases afterwards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cdr_core.metadata import Phase, RecoveryState, Repository
from cdr_core.phases.onepass.driver import run_one_pass
from cdr_core.phases.request import RecoveryRequest
from cdr_core.settings import Settings
from tests.support import inline, output


def set_flags(monkeypatch: pytest.MonkeyPatch, spill: Path, *, output: bool = True, checkpoints: bool = True) -> None:
    """The two flags; only with both of them there are spill directories."""
    monkeypatch.setenv("CDR_RECOVER_OUTPUT_DOWNSTREAM", str(output).lower())
    monkeypatch.setenv("CDR_CHECKPOINT_DURING_RECOVERY", str(checkpoints).lower())
    monkeypatch.delenv("CDR_SPILL_DIRS", raising=False)
    if output and checkpoints:
        spill.mkdir(exist_ok=True)
        monkeypatch.setenv("CDR_SPILL_DIRS", str(spill))


def set_small(monkeypatch: pytest.MonkeyPatch, pages: int = 1) -> None:
    """The smallest page there is, and a queue of so many of them."""
    monkeypatch.setenv("CDR_PAGE_SIZE", "4KiB")
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "512")
    monkeypatch.setenv("CDR_MEMORY_BUDGET", f"{4 * pages}KiB")


class Recovered:
    """A recovery that is published, and everything that must not depend on the way it ran."""

    def __init__(self, repository: Repository, recovery: str, to: Path) -> None:
        assert repository.recovery(recovery).state is RecoveryState.DONE
        self.repository, self.recovery = repository, recovery
        self.rows = output.rows(to)

    @property
    def table(self) -> list[Any]:
        """All rows in an order of their own."""
        return sorted(self.rows, key=lambda row: (row["exchange"], row["up"], row["down"], row["pos"]))

    @property
    def ledgers(self) -> dict[str, list[Any]]:
        found = {str(phase): self.repository.ledger(self.recovery, phase) for phase in Phase}
        return {name: sorted(lines, key=_line) for name, lines in found.items()}

    @property
    def receipt(self) -> dict[str, Any]:
        receipt = self.repository.receipt(self.recovery)
        assert receipt is not None
        return dict(receipt)

    @property
    def watermarks(self) -> list[tuple[int, int | None, bool]]:
        """Of the prepared entries, by subtask."""
        return [(row.subtask, row.watermark, row.idle) for row in self.repository.prepared(self.recovery)]


def _line(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return line["exchange"], line["up"], line["down"], -1 if line["new_down"] is None else line["new_down"]


def request(checkpoint: str, spec: str, parallelism: str, to: Path, **options: Any) -> RecoveryRequest:
    return RecoveryRequest(checkpoint, spec, parallelism, f"parquet:{to}", **options)


def phased(wish: RecoveryRequest) -> Recovered:
    repository, recovery, settings = inline.start(wish)
    inline.run_all(repository, recovery, settings)
    return Recovered(repository, recovery, Path(wish.to.removeprefix("parquet:")))


def one_pass(
    repository: Repository, recovery: str, settings: Settings, workers: inline.InlineWorkers | None = None
) -> Mapping[str, Any]:
    """Everything up to commit; the counters."""
    return run_one_pass(repository, recovery, settings, workers or inline.InlineWorkers(), lambda _: None)


def passed(wish: RecoveryRequest, workers: inline.InlineWorkers | None = None) -> tuple[Recovered, Mapping[str, Any]]:
    """A whole recovery, and how its bytes went."""
    repository, recovery, settings = inline.start(wish)
    counters = one_pass(repository, recovery, settings, workers)
    inline.run(repository, recovery, Phase.COMMIT, settings)
    return Recovered(repository, recovery, Path(wish.to.removeprefix("parquet:"))), counters


def spilled_files(spill: Path) -> list[str]:
    """Files of spilled data; what a tier knows of its reservations is not one. They may vanish under our eyes."""
    found = [Path(parent, name) for parent, _, names in os.walk(spill) for name in names]
    return [str(path) for path in found if not path.name.startswith(".")]


def spilled_bytes(spill: Path) -> int:
    """How much lies there now."""
    total = 0
    for name in spilled_files(spill):
        with suppress(FileNotFoundError):
            total += Path(name).stat().st_size
    return total
