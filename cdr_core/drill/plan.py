"""A drill plan: which checkpoints of which job, how they are recovered, and what must be true afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cdr_core.drill.cron import is_ever_due
from cdr_core.drill_values import DrillChecks, Expect, Query
from cdr_core.errors import DrillPlanRefused
from cdr_core.settings import parse_duration

DAY = 86_400.0
DEFAULT_STALE_AFTER = 7 * DAY
"""A last success older than this is reported, where a plan does not say."""

LONGEST = 36_500 * DAY
"""A century: what is longer is a slip, and no calendar reaches as far."""

TOO_LONG = f"is longer than {LONGEST / DAY:,.0f} days"

SHORTEST_GIVE_UP = 600.0
WITHOUT_RTO = 6 * 3600.0
PATIENCE = 4.0
"""A drill goes on behind its RTO, to show by how much it is missed, and is given up at four times of it."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
CRON = re.compile(r"^(@(hourly|daily|weekly|monthly|quarterly|yearly)|\S+( +\S+){4})$")
RANDOM = re.compile(r"^random within (?P<window>.+)$")

FIELDS = frozenset(
    {"job", "spec", "checkpoints", "choose", "schedule", "parallelism", "rto", "max_age"}
    | {"stale_after", "give_up", "checks"}
)
CHECKS = frozenset(DrillChecks.__struct_fields__)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which checkpoint: the latest, or with ``within_s`` a random one that is no older."""

    within_s: float | None = None

    @property
    def text(self) -> str:
        return "latest" if self.within_s is None else f"random within {self.within_s:g}s"


@dataclass(frozen=True, slots=True)
class Schedule:
    """When: by ``cron``, or whenever a look every ``poll_s`` seconds finds a newer checkpoint; neither = by hand."""

    cron: str | None = None
    poll_s: float | None = None

    @property
    def text(self) -> str:
        if self.poll_s is not None:
            return f"on a new checkpoint, looked for every {self.poll_s:g} s"
        return self.cron or "by hand"


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """One drill, ready to be begun. Limits are seconds, ``None`` = no limit; ``spec`` is a path or the YAML itself;
    an empty ``job`` is what the spec calls it; an empty ``name`` is a drill by hand, which belongs to no plan.
    """

    name: str
    job: str
    spec: str
    checkpoints: str
    choice: Choice = Choice()
    schedule: Schedule = Schedule()
    parallelism: str = "same"
    rto_s: float | None = None
    max_age_s: float | None = None
    stale_after_s: float = DEFAULT_STALE_AFTER
    give_up_s: float = WITHOUT_RTO
    checks: DrillChecks = field(default_factory=DrillChecks)


def give_up_after(rto_s: float | None) -> float:
    """When a drill that does not end is given up, where its plan does not say."""
    return WITHOUT_RTO if rto_s is None else min(max(PATIENCE * rto_s, SHORTEST_GIVE_UP), LONGEST)


def parse_plan(name: str, value: Any) -> DrillPlan:
    """A plan from its section of the file, or :class:`DrillPlanRefused` with its name and the field."""
    if not NAME.fullmatch(name):
        raise DrillPlanRefused(
            f"drill plan {name!r} has a name that is no name of a DAG", hint="use letters, digits, - _ and ."
        )
    section = _Section(name, value)
    section.refuse_unknown(FIELDS)
    checks = _Section(name, section.value.get("checks") or {}, "checks")
    checks.refuse_unknown(CHECKS)
    rto_s = section.duration("rto")
    plan = DrillPlan(
        name=name,
        job=section.text("job") if "job" in section.value else "",
        spec=section.text("spec"),
        checkpoints=section.text("checkpoints"),
        choice=parse_choice(section.text("choose", "latest"), name),
        schedule=_schedule(section),
        parallelism=section.text("parallelism", "same"),
        rto_s=rto_s,
        max_age_s=section.duration("max_age"),
        stale_after_s=section.duration("stale_after") or DEFAULT_STALE_AFTER,
        give_up_s=section.duration("give_up") or give_up_after(rto_s),
        checks=DrillChecks(
            sql=_queries(checks),
            **{
                flag.name: checks.flag(flag.name, bool(flag.default))
                for flag in msgspec.structs.fields(DrillChecks)
                if flag.type is bool
            },
        ),
    )
    return _refuse_contradictions(plan)


def parse_choice(text: str, name: str = "") -> Choice:
    """``latest`` or ``random within 7d``."""
    if text == "latest":
        return Choice()
    match = RANDOM.match(text)
    try:
        window = parse_duration(match.group("window")) if match is not None else 0.0
    except ValueError:
        window = 0.0
    where = f"drill plan {name}: " if name else ""
    if window > LONGEST:
        raise DrillPlanRefused(f"{where}choose {text!r} {TOO_LONG}", hint="write: random within 7d")
    if window > 0:
        return Choice(window)
    raise DrillPlanRefused(
        f"{where}choose {text!r} is neither latest nor random within a time", hint="write: random within 7d"
    )


def _refuse_contradictions(plan: DrillPlan) -> DrillPlan:
    if plan.checks.flink_restore and (plan.checks.sql or plan.checks.verify):
        # One recovery has one target: rows to query lie in a table, what Flink restores is a checkpoint.
        raise DrillPlanRefused(
            f"drill plan {plan.name}: flink_restore and checks of rows need two recoveries",
            hint="make two plans of it",
        )
    if plan.schedule.poll_s is not None and plan.choice.within_s is not None:
        raise DrillPlanRefused(
            f"drill plan {plan.name}: on a new checkpoint, that one is drilled, not a random one",
            hint="choose latest, or give it a cron schedule",
        )
    if not plan.checkpoints.startswith(("/", "file://", "s3://")):
        raise DrillPlanRefused(
            f"drill plan {plan.name}: checkpoints {plan.checkpoints!r} is no absolute path and no address",
            hint="write /path or s3://bucket/path",
        )
    return plan


def _schedule(section: _Section) -> Schedule:
    value = section.value.get("schedule")
    if value is None:
        return Schedule()
    if isinstance(value, Mapping):
        inner = _Section(section.plan, value, "schedule")
        inner.refuse_unknown(frozenset({"new_checkpoint"}))
        poll = inner.duration("new_checkpoint")
        if poll is None or poll < 1:
            raise inner.refusal("new_checkpoint", "is how often to look for one", "write: {new_checkpoint: 5m}")
        return Schedule(poll_s=poll)
    if not isinstance(value, str) or not CRON.match(value.strip()):
        raise section.refusal(
            "schedule", f"{value!r} is no cron expression", 'write "0 3 * * *", or {new_checkpoint: 5m}'
        )
    if not is_ever_due(value.strip()):
        raise section.refusal(
            "schedule", f"{value!r} is no cron expression, or one that is never due", 'write "0 3 * * *"'
        )
    return Schedule(cron=value.strip())


def _queries(checks: _Section) -> tuple[Query, ...]:
    entries = checks.value.get("sql") or []
    if not isinstance(entries, list):
        raise checks.refusal("sql", "is no list", "list queries, each with name, query and expect")
    queries = [_query(_Section(checks.plan, entry, f"sql query {n + 1}"), n) for n, entry in enumerate(entries)]
    names = [query.name for query in queries]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise checks.refusal("sql", f"has two queries named {twice!r}", "give each a name of its own")
    return tuple(queries)


def _query(section: _Section, number: int) -> Query:
    section.refuse_unknown(frozenset({"name", "query", "expect"}))
    expect = str(section.value.get("expect", Expect.NO_ROWS)).lower()
    if expect not in set(Expect):
        raise section.refusal("expect", f"{expect!r} is neither 'no rows' nor true", "write one of them")
    return Query(section.text("name", f"query {number + 1}"), section.text("query"), Expect(expect))


class _Section:
    """A mapping of the file, with the words to say what is wrong in it."""

    def __init__(self, plan: str, value: Any, place: str = "") -> None:
        self.plan, self.place = plan, place
        if not isinstance(value, Mapping):
            raise DrillPlanRefused(f"{self._label} is not a mapping", hint="see docs/drills.md for an example")
        self.value: Mapping[str, Any] = value

    @property
    def _label(self) -> str:
        return f"drill plan {self.plan}" + (f", {self.place}" if self.place else "")

    def refusal(self, field: str, what: str, hint: str) -> DrillPlanRefused:
        return DrillPlanRefused(f"{self._label}: {field} {what}", hint=hint)

    def refuse_unknown(self, known: frozenset[str]) -> None:
        unknown = sorted(str(name) for name in set(self.value) - known)
        if unknown:
            raise self.refusal(unknown[0], "is no field of it", f"it has {', '.join(sorted(known))}")

    def text(self, field: str, default: str | None = None) -> str:
        value = self.value.get(field, default)
        if value is None or isinstance(value, bool | Mapping | list) or not str(value).strip():
            raise self.refusal(field, "is missing" if value is None else "is no text", f"give it a {field}")
        return str(value).strip()

    def flag(self, field: str, default: bool) -> bool:
        value = self.value.get(field, default)
        if not isinstance(value, bool):
            raise self.refusal(field, f"{value!r} is neither true nor false", "write true or false")
        return value

    def duration(self, field: str) -> float | None:
        value = self.value.get(field)
        if value is None:
            return None
        try:
            seconds = parse_duration(str(value))
        except ValueError as error:
            raise self.refusal(field, str(error), "write 10m, 36h or 7d") from None
        if seconds > LONGEST:
            raise self.refusal(field, f"{str(value)!r} {TOO_LONG}", "write 10m, 36h or 7d")
        return seconds
