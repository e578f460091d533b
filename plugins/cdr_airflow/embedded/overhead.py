"""Airflow's overhead: the time of a run that is not a phase's own.

A phase counts from the moment its epoch is taken until its result is stored, which includes the start of its driver.
The rest is Airflow's: starting each task's process, reading the DAG, the plan that ``read`` logs, reporting back, and
the gaps between the tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdr_airflow.embedded.rest import Client
    from cdr_core.metadata import PhaseProgress


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds within the tasks beyond their phases, and seconds between the tasks."""

    within: float
    between: float

    @property
    def seconds(self) -> float:
        return self.within + self.between

    def __str__(self) -> str:
        parts = f"{self.within:.1f} s in the tasks, {self.between:.1f} s between them"
        return f"{self.seconds:.1f} s beyond the phases: {parts}"

    @classmethod
    def of(cls, tasks: Mapping[str, float], phases: Mapping[str, float], whole: float) -> Overhead:
        """Return the overhead from the seconds of each task, of each phase, and of the run from its first task to its
        last.
        """
        within = sum(max(0.0, seconds - phases.get(task, 0.0)) for task, seconds in tasks.items())
        return cls(within, max(0.0, whole - sum(tasks.values())))


def phase_seconds(phases: Iterable[PhaseProgress]) -> dict[str, float]:
    """Return how long each finished phase of a recovery took."""
    return {
        str(phase.name): (phase.ended_at - phase.started_at).total_seconds()
        for phase in phases
        if phase.started_at is not None and phase.ended_at is not None
    }


def of_run(client: Client, run: str, phases: Mapping[str, float]) -> Overhead:
    """Return the overhead of a finished run, by the task times of Airflow's API."""
    rows = [row for row in client.tasks(run).values() if row["start_date"] and row["end_date"]]
    spans = {row["task_id"]: (_time(row["start_date"]), _time(row["end_date"])) for row in rows}
    whole = max(end for _, end in spans.values()) - min(start for start, _ in spans.values())
    tasks = {task: (end - start).total_seconds() for task, (start, end) in spans.items()}
    return Overhead.of(tasks, phases, whole.total_seconds())


def _time(text: Any) -> datetime:
    return datetime.fromisoformat(str(text))
