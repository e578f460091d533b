"""``/cdr/metrics``: what the database knows, in Prometheus's text format. Names and labels are in docs/page.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from cdr_core.drill.history import staleness
from cdr_core.metadata import Drill
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
    """The text; ``clean`` takes out of the labels what must not be said."""
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines(clean))


def metrics(
    statistics: Statistics, newest: Iterable[Drill], counts: Iterable[DrillCount], now: datetime
) -> tuple[Metric, ...]:
    """Everything; a plan that never passed has no time of a last success, which is what an alert must look for."""
    return (*_recoveries(statistics, now), *_drills(statistics, tuple(newest), tuple(counts), now))


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
    statistics: Statistics, newest: tuple[Drill, ...], counts: tuple[DrillCount, ...], now: datetime
) -> tuple[Metric, ...]:
    listed = staleness(newest, now)[:MOST_PLANS]
    ended = tuple(
        ({"job": each.job, "plan": each.plan, "result": str(each.result)}, each.count)
        for each in counts[: 4 * MOST_PLANS]
        if each.result is not None
    )
    success = tuple(
        ({"job": each.job, "plan": each.plan}, each.last_success.timestamp())
        for each in listed
        if each.last_success is not None
    )
    stale = tuple(({"job": each.job, "plan": each.plan}, float(each.is_stale)) for each in listed)
    return (
        Metric("cdr_drill_results", "gauge", "Drills that ended, by result.", _by_result(statistics)),
        Metric("cdr_drills", "gauge", "Drills that ended, by job, plan and result.", ended),
        Metric("cdr_drill_last_success_timestamp_seconds", "gauge", "When the last passed drill began.", success),
        Metric("cdr_drill_is_stale", "gauge", "1 = the last success is too old, or there never was one.", stale),
        Metric("cdr_drill_rto_seconds", "gauge", "How long the newest ended drill took.", _measured(newest, "rto_s")),
        Metric("cdr_drill_rpo_seconds", "gauge", "How old its checkpoint was.", _measured(newest, "rpo_s")),
    )


def _by_result(statistics: Statistics) -> tuple[tuple[Mapping[str, str], float], ...]:
    return tuple(({"result": str(result)}, count) for result, count in statistics.drills.items())


def _measured(newest: tuple[Drill, ...], name: str) -> tuple[tuple[Mapping[str, str], float], ...]:
    """Of each plan the newest drill that measured it; ``newest`` is newest first."""
    found: dict[tuple[str, str], float] = {}
    for drill in newest:
        value = getattr(drill, name)
        key = (str(drill.args.get("job") or ""), str(drill.args.get("plan") or ""))
        if value is not None and key not in found and len(found) < MOST_PLANS:
            found[key] = value
    return tuple(({"job": job, "plan": plan}, value) for (job, plan), value in sorted(found.items()))


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
