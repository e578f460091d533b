"""``/cdr/metrics``: the database's statistics in Prometheus's text format. Names and labels are in docs/page.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from cdr_core.drill.history import PlanStatus
from cdr_core.metadata.statistics import DrillCount, Statistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_PLANS = 500
"""Plans whose drills have series of their own; a series costs its reader memory."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with its samples: labels and value of each."""

    name: str
    kind: str
    text: str
    samples: tuple[tuple[Mapping[str, str], float], ...]

    def lines(self, clean: Callable[[str], str]) -> Iterator[str]:
        yield f"# HELP {self.name} {self.text}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.samples:
            yield f"{self.name}{_labels({name: clean(text) for name, text in labels.items()})} {value!r}"


def render(metrics: Iterable[Metric], clean: Callable[[str], str] = str) -> str:
    """Return the text; ``clean`` removes secrets from the labels."""
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines(clean))


def metrics(
    statistics: Statistics, plans: Iterable[PlanStatus], counts: Iterable[DrillCount], now: datetime
) -> tuple[Metric, ...]:
    """Return all metrics; a plan that never passed has no time of a last success, which an alert must check."""
    return (*_recoveries(statistics, now), *_drills(statistics, tuple(plans), tuple(counts)))


def _recoveries(statistics: Statistics, now: datetime) -> tuple[Metric, ...]:
    by_state = tuple(({"state": str(state)}, count) for state, count in statistics.recoveries.items())
    attempts = tuple(({"state": str(state)}, count) for state, count in statistics.attempts.items())
    checkpoints = tuple(({"state": str(state)}, count) for state, count in statistics.checkpoints.items())
    ages = tuple(
        ({"recovery": each.recovery_id, "phase": str(each.phase)}, max((now - each.started_at).total_seconds(), 0.0))
        for each in statistics.running
    )
    return (
        Metric("cdr_recoveries", "gauge", "Recoveries by state.", by_state),
        Metric("cdr_running_phase_age_seconds", "gauge", "How long each running phase has run.", ages),
        Metric("cdr_recovered_records_total", "counter", "Records published.", (({}, statistics.records),)),
        Metric("cdr_recovered_bytes_total", "counter", "Bytes of published records.", (({}, statistics.bytes),)),
        Metric("cdr_attempts", "gauge", "Attempts by state; FENCED were overtaken by a newer one.", attempts),
        Metric("cdr_recovery_checkpoints", "gauge", "Recovery checkpoints by state.", checkpoints),
    )


def _drills(
    statistics: Statistics, plans: tuple[PlanStatus, ...], counts: tuple[DrillCount, ...]
) -> tuple[Metric, ...]:
    # A plan that drills.yaml no longer has, and drills by hand, keep their counts only: nothing there can go stale.
    planned = tuple(each for each in plans if each.is_planned)[:MOST_PLANS]
    ended = tuple(
        ({"job": each.job, "plan": each.plan, "result": str(each.result)}, each.count)
        for each in counts[: 4 * MOST_PLANS]
        if each.result is not None
    )
    success = _of_plans(planned, lambda each: each.last_success.timestamp() if each.last_success else None)
    stale = _of_plans(planned, lambda each: float(each.is_stale))
    rto, rpo = _of_plans(planned, lambda each: each.rto_s), _of_plans(planned, lambda each: each.rpo_s)
    return (
        Metric("cdr_drill_results", "gauge", "Drills that ended, by result.", _by_result(statistics)),
        Metric("cdr_drills", "gauge", "Drills that ended, by job, plan and result.", ended),
        Metric("cdr_drill_last_success_timestamp_seconds", "gauge", "When the last passed drill began.", success),
        Metric("cdr_drill_is_stale", "gauge", "1 = the last success is too old, or there never was one.", stale),
        Metric("cdr_drill_rto_seconds", "gauge", "How long the newest ended drill took.", rto),
        Metric("cdr_drill_rpo_seconds", "gauge", "How old its checkpoint was.", rpo),
    )


def _by_result(statistics: Statistics) -> tuple[tuple[Mapping[str, str], float], ...]:
    return tuple(({"result": str(result)}, count) for result, count in statistics.drills.items())


def _of_plans(
    plans: tuple[PlanStatus, ...], value: Callable[[PlanStatus], float | None]
) -> tuple[tuple[Mapping[str, str], float], ...]:
    samples = (({"job": each.job, "plan": each.plan}, value(each)) for each in plans)
    return tuple((labels, number) for labels, number in samples if number is not None)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
