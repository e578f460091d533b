"""A cache of sums over ledgers: a phase writes its ledger when it is done, and it never changes after that.

A ledger of a wide job has ten thousands of lines, and an open page requests it every second or two.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from cdr_core.metadata import Phase, PhaseProgress, PhaseState, Repository
from cdr_core.metadata.recovery_list import Flow, LedgerSum

MOST_SUMS = 5_000
MOST_FLOWS = 64
"""The flows of one phase may be as many as old times new subtasks."""


class Ledgers:
    """Caches, and queries, only ledgers of phases that are DONE."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: OrderedDict[tuple[str, Phase], LedgerSum] = OrderedDict()
        self._flows: OrderedDict[tuple[str, Phase], tuple[Flow, ...]] = OrderedDict()

    def sums(self, rows: Repository, recovery: str, phases: Iterable[PhaseProgress]) -> tuple[LedgerSum, ...]:
        """Return the sums of every phase that is done, in order."""
        done = [row.name for row in phases if row.state is PhaseState.DONE]
        with self._lock:
            found = {phase: self._sums[recovery, phase] for phase in done if (recovery, phase) in self._sums}
        missing = [phase for phase in done if phase not in found]
        if missing:
            read = {each.phase: each for each in rows.ledger_sums(recovery, missing)}
            found |= read
            with self._lock:
                self._sums |= {(recovery, phase): each for phase, each in read.items()}
                _forget(self._sums, MOST_SUMS)
        return tuple(found[phase] for phase in done if phase in found)

    def flows(self, rows: Repository, recovery: str, phase: Phase) -> tuple[Flow, ...]:
        """Return the phase's ledger by old and new subtask; the phase is done."""
        with self._lock:
            known = self._flows.get((recovery, phase))
        if known is not None:
            return known
        found = rows.flows(recovery, phase)
        with self._lock:
            self._flows[recovery, phase] = found
            _forget(self._flows, MOST_FLOWS)
        return found


def _forget(remembered: OrderedDict[tuple[str, Phase], Any], most: int) -> None:
    while len(remembered) > most:
        remembered.popitem(last=False)
